"""Learning how uncertain the unmeasured part of an image is, without a clean image.

The sampler walks in measurement space, so what was not measured gets its conditional mean and
its spread would come out too narrow. But there are tasks of which more is known than the network
is shown (misses.py): its misses in the unseen part have E[miss²] = share · Var(x | shown) + noise.
A small network learns that variance v by the Gaussian likelihood,
Σ log(share·v + noise) + miss²/(share·v + noise), and tells it for what was never measured.

- Masks: measured pixels are hidden. Mosaics: averages over 2×2 pixels of posterior samples are
  complete images, mosaicked again.
- Blur: likewise, blurred again. There v is the variance of the whole image, and what samples do not
  have of it is found by frequency, with such images of measurements that were held out.
- Super-resolution: the pooled measurement is an image, measured again.
- MRI, and any other physics: posterior samples are moved and measured again. They are smoother
  than true images; for MRI, hidden lines of k-space then tell by how much v must be larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from nediff.config import RunConfig, TrainingConfig
from nediff.data import Measurements
from nediff.networks import Denoiser, build_spread
from nediff.networks.spread import SpreadNetwork
from nediff.operators import Convolution, Fourier, Mask
from nediff.problem import Problem
from nediff.processes import ALONE, Processes
from nediff.randomness import Draws, derive_key
from nediff.restorer import Restorer
from nediff.sampling import sample_posterior
from nediff.training.batches import BatchSource
from nediff.training.crops import blocks
from nediff.training.misses import (
    Task,
    coarse_again,
    hidden_lines,
    hidden_pixels,
    measured_again,
    moved_again,
)
from nediff.training.rehearsal import SIDE, draw_rehearsal
from nediff.training.schedule import learning_rate
from nediff.unmeasured import UnmeasuredSpread, radial_power

SHARE_OF_STEPS = 0.1
"""Steps of this network for each step of the denoiser's training."""
OWN_IMAGES = 64
"""So many images of our own are moved and measured again …"""
OWN_SQUARES = 256
"""… or squares of them averaged and measured again."""
RINGS = 12
"""Of frequencies, in which the spread of samples is compared with their misses."""
COMPARED = 64
"""Crops of images that were held out, for that comparison, with …"""
COMPARED_SAMPLES = 4
"""… so many samples each."""

Report = Callable[[int, int], None]
Tasks = Callable[[int], Iterable[Task]]
"""The tasks of a step."""


def can_learn_spread(problem: Problem) -> bool:
    """Whether anything is unmeasured."""
    return problem.kind != "denoising"


def with_spread(
    restorer: Restorer,
    train: Measurements,
    heldout: Measurements,
    report: Report | None = None,
    stop: Callable[[], bool] = lambda: False,
    processes: Processes = ALONE,
) -> Restorer | None:
    """The same restorer with an honest spread where nothing was measured; None if stopped.

    Of several ``processes`` each learns it by itself, from samples that were drawn together: the
    network is small, and its likelihood is that of a whole batch. All must stop together.
    """
    problem, denoiser, config = restorer.problem, restorer.denoiser, restorer.config
    tasks = _tasks(restorer, train, processes)
    network = learn_spread(denoiser, config, tasks, report, stop)
    if network is None:
        return None
    if _is_blur(problem):
        steps = range(-(-COMPARED // config.training.batch))
        seen = _averaged_tasks(restorer, heldout, config.training.seed + 2, COMPARED, processes)
        spectrum = missing_spectrum(restorer, [task for step in steps for task in seen(step)])
        if spectrum is not None:
            return Restorer(problem, denoiser, config, UnmeasuredSpread(network, 1.0, spectrum))
    scale = 1.0
    if isinstance(problem.operator, Fourier):
        scale = missing_scale(denoiser, network, _line_tasks(restorer, heldout))
    whole = Restorer(problem, denoiser, config, UnmeasuredSpread(network, scale))
    share = scale * remaining_share(whole, heldout)
    return Restorer(problem, denoiser, config, UnmeasuredSpread(network, share))


def spread_steps(settings: TrainingConfig) -> int:
    """How long the small network is trained."""
    return max(20, int(SHARE_OF_STEPS * settings.steps))


def learn_spread(
    denoiser: Denoiser,
    config: RunConfig,
    tasks: Tasks,
    report: Report | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> SpreadNetwork | None:
    """Train the network; a function of the denoiser, the tasks and the seed alone.

    None if ``stop()`` said so on the way.
    """
    settings = config.training
    steps = spread_steps(settings)
    device = next(denoiser.parameters()).device
    spread = build_spread(config.network, settings.seed).to(device)
    optimizer = torch.optim.Adam(spread.parameters(), lr=2e-3, betas=(0.9, 0.99))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = learning_rate(step, steps, 2e-3, settings.warmup)
        optimizer.zero_grad()
        for task in tasks(step):
            loss = likelihood(denoiser, spread, task)
            torch.autograd.backward(loss * len(task.shown) / settings.batch)
        optimizer.step()
        if report is not None:
            report(step + 1, steps)
        if stop():
            return None
    return spread.eval()


def _tasks(restorer: Restorer, train: Measurements, processes: Processes) -> Tasks:
    """Where this problem's misses can be seen."""
    operator, settings = restorer.problem.operator, restorer.config.training
    seed = settings.seed + 1

    def source(factor: int) -> BatchSource:
        crop, batch = settings.crop, settings.batch
        return BatchSource(train, restorer.problem, crop, batch, (factor,), (1.0,), seed)

    def draws(samples: list[int]) -> Draws:
        return Draws(seed, "spread", samples, restorer.device)

    if restorer.problem.kind == "demosaicing" or _is_blur(restorer.problem):
        squares = min(OWN_SQUARES, spread_steps(settings) * settings.batch)  # no more are looked at
        return _averaged_tasks(restorer, train, seed, squares, processes)
    if isinstance(operator, Mask):
        masked = source(1)
        return lambda step: [
            hidden_pixels(batch.to(restorer.device), draws(samples))
            for samples, batch in masked.groups(step)
        ]
    if isinstance(operator, Convolution):
        factor = operator.stride
        coarse, by = source(factor), blocks(operator, factor)
        return lambda step: [
            coarse_again(b := batch.to(restorer.device), draws(samples), by * b.sigma)
            for samples, batch in coarse.groups(step)
            if batch.given is not None  # images too small to be pooled
        ]
    return _moved_tasks(restorer, train, seed, processes)


def _is_blur(problem: Problem) -> bool:
    """Whether detail is weakened little by little, not seen or unseen."""
    return isinstance(problem.operator, Convolution) and problem.operator.stride == 1


def _averaged_tasks(
    restorer: Restorer, images: Measurements, seed: int, squares: int, processes: Processes
) -> Tasks:
    """Posterior samples of squares of images, averaged over 2×2 pixels."""
    problem, settings, device = restorer.problem, restorer.config.training, restorer.device
    side = max(settings.crop, min(SIDE, images.min_size))
    pixels = squares * side**2
    own = draw_rehearsal(
        restorer.denoiser, images, problem, settings.crop, pixels, seed, device, processes
    )
    halved = restorer.config.recipe.model_copy(update={"pool": (2,), "pool_weights": (1.0,)})

    def tasks(step: int) -> list[Task]:
        samples = range(step * settings.batch, (step + 1) * settings.batch)
        return [
            measured_again(
                batch.to(device),
                Draws(seed, "spread", group, device),
                _some_sigmas(images, seed, group, device),
            )
            for group, batch in own.groups(samples, problem, settings.crop, halved, seed)
            if batch.given is not None  # images too small to be averaged
        ]

    return tasks


def _moved_tasks(restorer: Restorer, train: Measurements, seed: int, processes: Processes) -> Tasks:
    """Posterior samples of some training images, moved and measured again."""
    problem, count = restorer.problem, min(OWN_IMAGES, len(train))
    chosen = [i * len(train) // count for i in range(count)]
    plain = Restorer(problem, restorer.denoiser, restorer.config)
    own = {
        k: torch.as_tensor(
            plain.sample(
                train.image(i), 1, derive_key("spread", seed, i), train.sigma_of(i, problem.sigma)
            )[0]
        )
        for k, i in processes.share(list(enumerate(chosen)))
    }
    images = processes.collect(own, count).to(restorer.device)
    group = restorer.config.recipe.group or problem.operator.group
    batch = restorer.config.training.batch

    def tasks(step: int) -> list[Task]:
        samples = range(step * batch, (step + 1) * batch)
        draws = Draws(seed, "spread", samples, restorer.device)
        which = (draws.uniform() * count).long().clamp_max(count - 1)
        sigma = _some_sigmas(train, seed, samples, restorer.device)
        return [moved_again(images[which], problem, group, draws, sigma)]

    return tasks


def _some_sigmas(
    train: Measurements, seed: int, samples: Sequence[int], device: torch.device
) -> Tensor | None:
    """The noise levels of images taken at random, (B,); None where all have the same."""
    if train.sigmas is None:
        return None
    draws = Draws(seed, "spread sigmas", samples, device)
    chosen = (draws.uniform().double() * len(train)).long().clamp_max(len(train) - 1)
    sigmas = [train.sigmas.of(train.windows[i].source_name) for i in chosen.tolist()]
    return torch.tensor(sigmas, device=device)


def _line_tasks(restorer: Restorer, heldout: Measurements, rounds: int = 4) -> list[Task]:
    """The held-out measurements with lines hidden, several times."""
    seed, batch = restorer.config.training.seed + 2, restorer.config.training.batch
    source = BatchSource(heldout, restorer.problem, 0, batch, (1,), (1.0,), seed)
    steps = rounds * -(-len(heldout) // batch)
    return [
        hidden_lines(b.to(restorer.device), Draws(seed, "spread", samples, restorer.device))
        for step in range(steps)
        for samples, b in source.groups(step)
    ]


@torch.no_grad()
def missing_scale(denoiser: Denoiser, spread: SpreadNetwork, tasks: Iterable[Task]) -> float:
    """By what factor misses are larger than v says: Σ (miss² − noise) / Σ share·v."""
    found, expected = 0.0, 0.0
    for task in tasks:
        estimate = denoiser(task.shown, task.sigma, task.given)
        variance = spread(task.shown, estimate, task.sigma, task.given)
        miss = task.miss(estimate).square()
        found += float((miss - task.noise).sum())
        expected += float((task.share * variance).sum())
    return max(found / expected, 0.0) if expected > 0 else 1.0


def remaining_share(
    restorer: Restorer, heldout: Measurements, images: int = 8, samples: int = 4
) -> float:
    """The part of Var(x | y) of what is unseen that samples without it do not have yet.

    The law of total variance: Var(x | y) is the variance of the conditional means, which the
    samples show, and the mean of the conditional variances, which is to be added.
    """
    shown, total = 0.0, 0.0
    spread = restorer.unmeasured
    assert spread is not None
    plain = Restorer(restorer.problem, restorer.denoiser, restorer.config)
    for i in range(min(images, len(heldout))):
        y, problem = restorer.measured(heldout.image(i))
        level = heldout.sigma_of(i, problem.sigma)
        sigma = torch.full((1,), level, device=y.device)
        with torch.no_grad():
            estimate = restorer.denoiser(y, sigma, problem.operator)
        variance = spread.variance(y, estimate, sigma, problem.operator)
        drawn = torch.as_tensor(plain.sample(heldout.image(i), samples, i, level)).to(y.device)
        unseen = problem.operator.unseen(drawn.view(samples, *estimate.shape[1:]))
        shown += float(unseen.var(dim=0).sum())
        total += float((problem.operator.unseen_share(estimate) * variance).sum())
    return min(max(1 - shown / total, 0.0), 1.0) if total > 0 else 0.0


@torch.no_grad()
def missing_spectrum(restorer: Restorer, tasks: Iterable[Task]) -> Tensor | None:
    """What samples miss of E[miss²], by frequency and relative to its mean, (RINGS,).

    In each ring, max(E|miss|² − Var(samples), 0) / mean E|miss|². None where there is no task.
    """
    missed, drawn, mean, weight = torch.zeros(RINGS).double(), torch.zeros(RINGS).double(), 0.0, 0
    for task in tasks:
        problem = restorer.problem.with_operator(task.given)
        network = partial(restorer.denoiser, operator=task.given)
        size, seeds = task.shown.shape[-2:], range(len(task.shown))
        miss = task.given.frame(task.miss(network(task.shown, task.sigma)), *size)
        samples = sample_posterior(
            network, task.shown, task.sigma, problem, COMPARED_SAMPLES, seeds, restorer.sampler
        )
        deviation = task.given.frame((samples - samples.mean(0)).flatten(0, 1), *size)
        count = len(task.shown)
        missed += count * radial_power(miss, RINGS)
        drawn += count * radial_power(deviation, RINGS) * COMPARED_SAMPLES / (COMPARED_SAMPLES - 1)
        mean, weight = mean + count * float(miss.double().square().mean()), weight + count
    if weight == 0 or mean == 0:
        return None
    return ((missed - drawn).clamp_min(0) / mean).float()


def likelihood(denoiser: Denoiser, spread: SpreadNetwork, task: Task) -> Tensor:
    """Mean of log(share·v + noise) + miss²/(share·v + noise), over pixels weighted by share."""
    with torch.no_grad():
        estimate: Tensor = denoiser(task.shown, task.sigma, task.given)
        miss = task.miss(estimate)
    v: Tensor = spread(task.shown, estimate, task.sigma, task.given)
    share = task.share.expand_as(v)
    variance = torch.where(share > 0, share * v + task.noise, 1.0)
    terms = variance.log() + miss.square() / variance
    value: Tensor = (share * terms).sum() / share.sum().clamp_min(1)
    return value
