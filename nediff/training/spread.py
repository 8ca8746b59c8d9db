"""Learning how uncertain unmeasured pixels are, from measured ones that are hidden.

The sampler walks in measurement space, so what was not measured gets its conditional mean and
its spread would come out too narrow. But hide some measured pixels from the network, and its
errors there are known up to their noise: r = x̂ − y has variance Var(x | shown) + σ². A small
network learns that variance by the Gaussian likelihood, Σ log(v + σ²) + r²/(v + σ²), and tells
it for pixels that were never measured. Of a mosaic, the gathered half-size image plays the part
of the complete measurement. No clean image is needed, and no draw of the sampler.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nediff.config import RunConfig
from nediff.data import Measurements
from nediff.divergence import expand
from nediff.networks import Denoiser, build_spread
from nediff.networks.spread import SpreadNetwork
from nediff.operators import LinearOperator, Mask
from nediff.problem import Problem
from nediff.randomness import Draws
from nediff.recipes import hide_pixels
from nediff.restorer import Restorer
from nediff.training.batches import BatchSource
from nediff.training.schedule import learning_rate
from nediff.unmeasured import UnmeasuredSpread

HIDDEN = 0.15
"""Of the measured pixels of an inpainting mask, up to this share is hidden."""
SHARE_OF_STEPS = 0.1
"""Steps of this network for each step of the denoiser's training."""


def can_learn_spread(problem: Problem) -> bool:
    """Pixels can be hidden only where there are pixels: masks and mosaics."""
    return isinstance(problem.operator, Mask)


def learn_spread(
    denoiser: Denoiser,
    config: RunConfig,
    train: Measurements,
    problem: Problem,
    report: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> SpreadNetwork | None:
    """Train the network; a function of the denoiser, the data and the seed alone.

    None if ``stop()`` said so on the way.
    """
    settings = config.training
    steps = max(20, int(SHARE_OF_STEPS * settings.steps))
    mosaic = problem.kind == "demosaicing"
    seed = settings.seed + 1
    factors = (2,) if mosaic else (1,)
    source = BatchSource(train, problem, settings.crop, settings.batch, factors, (1.0,), seed)
    spread = build_spread(config.network, settings.seed)
    optimizer = torch.optim.Adam(spread.parameters(), lr=2e-3, betas=(0.9, 0.99))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = learning_rate(step, steps, 2e-3, settings.warmup)
        optimizer.zero_grad()
        for samples, batch in source.groups(step):
            draws = Draws(seed, "spread", samples)
            given = batch.given or batch.problem.operator
            if not mosaic:
                given = hide_pixels(given, batch.y, HIDDEN, draws)
            loss = likelihood(denoiser, spread, batch.y, batch.sigma, batch.problem, given)
            torch.autograd.backward(loss * len(samples) / settings.batch)
        optimizer.step()
        if report is not None:
            report(step + 1, steps)
        if stop():
            return None
    return spread.eval()


def with_spread(
    restorer: Restorer,
    train: Measurements,
    heldout: Measurements,
    report: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Restorer | None:
    """The same restorer with an honest spread where nothing was measured; None if stopped."""
    problem, denoiser, config = restorer.problem, restorer.denoiser, restorer.config
    network = learn_spread(denoiser, config, train, problem, report, stop)
    if network is None:
        return None
    whole = Restorer(problem, denoiser, config, UnmeasuredSpread(network, 1.0))
    share = remaining_share(whole, heldout)
    return Restorer(problem, denoiser, config, UnmeasuredSpread(network, share))


def remaining_share(
    restorer: Restorer, heldout: Measurements, images: int = 8, samples: int = 4
) -> float:
    """The part of Var(x | y) of unmeasured pixels that samples without it do not have yet.

    The law of total variance: Var(x | y) is the variance of the conditional means, which the
    samples show, and the mean of the conditional variances, which is to be added.
    """
    shown, total = 0.0, 0.0
    spread = restorer.unmeasured
    assert spread is not None
    plain = Restorer(restorer.problem, restorer.denoiser, restorer.config)
    for i in range(min(images, len(heldout))):
        y, problem = restorer.measured(heldout.image(i))
        sigma = torch.full((1,), problem.sigma, device=y.device)
        with torch.no_grad():
            estimate = restorer.denoiser(y, sigma, problem.operator)
            variance = spread.network(y, estimate, sigma, problem.operator)
        missing = 1 - problem.operator.known(estimate)
        drawn = torch.as_tensor(plain.sample(heldout.image(i), samples, seed=i))
        shown += float((missing[0].cpu() * drawn.var(dim=0)).sum())
        total += float((missing * variance).sum())
    return min(max(1 - shown / total, 0.0), 1.0) if total > 0 else 0.0


def likelihood(
    denoiser: Denoiser,
    spread: SpreadNetwork,
    y: Tensor,
    sigma: Tensor,
    problem: Problem,
    given: LinearOperator,
) -> Tensor:
    """Mean of log(v + σ²) + r²/(v + σ²) over the measured pixels that ``given`` hides."""
    shown = given.mask_noise(y)
    with torch.no_grad():
        estimate: Tensor = denoiser(shown, sigma, given)
    variance: Tensor = spread(shown, estimate, sigma, given) + expand(sigma.square())
    hidden = problem.operator.known(y) * (1 - given.known(y))
    terms = variance.log() + (estimate - y).square() / variance
    value: Tensor = (hidden * terms).sum() / hidden.sum().clamp_min(1)
    return value
