"""The paper's two baselines, Consistent Diffusion and Ambient Diffusion, against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.ndimage import gaussian_filter
from torch import Tensor

import nediff as package
from nediff import baselines
from nediff.card import card_text
from nediff.config import NetworkConfig, RecipeConfig
from nediff.data import Measurements, open_measurements
from nediff.divergence import Map, expand
from nediff.errors import NediffError
from nediff.networks import build_denoiser
from nediff.operators import LinearOperator, Mask
from nediff.problem import Problem, random_mask
from nediff.randomness import Draws
from nediff.recipes import Batch, recipe_named, training_loss
from nediff.training.fitting import Plan, plan_run, run_training, start_folder
from tests.command import nediff
from tests.test_resume import assert_same_run, stop_after

PRIOR, SIGMA, N, Z = 0.2, 0.1, 4000, 5.0
"""iid pixels N(0.5, PRIOR²), in N images of 16; Z standard errors are tolerated everywhere."""
SHAPE = (N, 1, 4, 4)


def normal(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def full(value: float, n: int = N) -> Tensor:
    return torch.full((n,), value, dtype=torch.float64)


@pytest.fixture(scope="module")
def noisy() -> Tensor:
    return 0.5 + PRIOR * normal(SHAPE, 1) + SIGMA * normal(SHAPE, 2)


def wiener_gain(sigma: Tensor, variance: float | Tensor = PRIOR**2) -> Tensor:
    return variance / (variance + sigma.square())


def wiener(y: Tensor, sigma: Tensor) -> Tensor:
    """E[x | y], exactly."""
    return 0.5 + expand(wiener_gain(sigma)) * (y - 0.5)


def shrink(gain: float) -> Map:
    return lambda y, sigma: 0.5 + gain * (y - 0.5)


def best_gain(loss: Callable[[Map], Tensor]) -> tuple[float, float]:
    """Where a loss, quadratic in the gain, is least, and the standard error of that place."""
    at0, half, at1 = (loss(shrink(g)) for g in (0.0, 0.5, 1.0))
    curvature = 2 * (at0 - 2 * half + at1)  # of a g² + b g + c: a
    slope = at1 - at0 - curvature
    best = -slope.mean() / (2 * curvature.mean())
    error = (slope + 2 * curvature * best).std() / (2 * curvature.mean()) / math.sqrt(len(slope))
    return float(best), float(error)


def assert_mean(values: Tensor, truth: float) -> None:
    """The mean is ``truth`` within Z of its own standard errors."""
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - truth) < Z * error


# Consistent Diffusion above σ_n


@pytest.mark.parametrize("ratio", [1.2, 2.0, 4.0])
def test_noisy_targets_teach_the_wiener_gain_above_the_noise(noisy: Tensor, ratio: float) -> None:
    """Without one clean value, the loss is least at P²/(P² + σ_t²); a naive one is not."""
    level, noise = full(ratio * SIGMA), normal(SHAPE, 3)
    truth = float(wiener_gain(level)[0])
    best, error = best_gain(
        lambda d: baselines.ambient_tweedie(d, noisy, full(SIGMA), level, noise)
    )
    assert abs(best - truth) < Z * error
    assert error < 0.03  # 64,000 pixels; their targets' noise grows as σ_t comes down to σ_n

    x_t = noisy + math.sqrt(ratio**2 - 1) * SIGMA * noise
    naive, error = best_gain(lambda d: (d(x_t, level) - noisy).square().flatten(1).mean(1))
    assert naive - truth > 2 * Z * error  # it is least at (P² + σ_n²)/(P² + σ_t²)


def test_at_the_noise_level_itself_nothing_is_learned(noisy: Tensor) -> None:
    for gain in (0.0, 1.0):
        value = baselines.ambient_tweedie(
            shrink(gain), noisy, full(SIGMA), full(SIGMA), normal(SHAPE, 3)
        )
        assert float(value.abs().max()) < 1e-20


# the model's sampler, and its agreement with itself


def fields(count: int, seed: int) -> list[Tensor]:
    return [normal(SHAPE, 100 * seed + k) for k in range(count)]


@pytest.mark.parametrize("steps", [1, 3])
def test_going_down_has_the_right_mean(noisy: Tensor, steps: int) -> None:
    """E[x_low | x_high] − ½ = (P² + σ_low²)/(P² + σ_high²) (x_high − ½), however few the steps."""
    low = 0.3 * SIGMA
    x = baselines.descend(wiener, noisy, full(SIGMA), full(low), fields(steps, 1))
    slope = (PRIOR**2 + low**2) / (PRIOR**2 + SIGMA**2)
    assert_mean(((x - 0.5 - slope * (noisy - 0.5)) * (noisy - 0.5)).flatten(1).mean(1), 0.0)
    assert_mean((x - 0.5 - slope * (noisy - 0.5)).flatten(1).mean(1), 0.0)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_going_down_has_the_right_spread_for_a_prior_of_one_point(steps: int) -> None:
    """All images are ½: x_low = ½ + (b²/a²)(x_high − ½) + b√(1 − b²/a²) η, in one step or more."""
    a, b = SIGMA, 0.3 * SIGMA
    x = 0.5 + a * normal(SHAPE, 1)
    low = baselines.descend(shrink(0.0), x, full(a), full(b), fields(steps, 1))
    left = (low - 0.5 - (b / a) ** 2 * (x - 0.5)).square().flatten(1).mean(1)
    assert_mean(left, b**2 * (1 - (b / a) ** 2))


def below(noisy: Tensor, denoiser: Map) -> tuple[Tensor, Tensor, Tensor]:
    """x_t, σ_t and σ'', different for each image."""
    level = torch.linspace(0.3, 0.95, N, dtype=torch.float64) * SIGMA
    lower = level * torch.linspace(0.9, 0.2, N, dtype=torch.float64)
    with torch.no_grad():
        x_t = baselines.descend(denoiser, noisy, full(SIGMA), level, fields(3, 2))
    return x_t, level, lower


@pytest.mark.parametrize("steps", [1, 2])
def test_the_true_denoiser_agrees_with_itself(noisy: Tensor, steps: int) -> None:
    x_t, level, lower = below(noisy, wiener)
    first, second = fields(steps, 3), fields(steps, 4)
    value = baselines.consistency(wiener, x_t, level, lower, first, second)
    assert_mean(value, 0.0)
    once = baselines.consistency(wiener, x_t, level, lower, first, first)
    # two runs are needed: of one alone the square holds its spread as well
    assert float(once.mean()) > 2 * Z * float(value.std()) / math.sqrt(N)


def test_a_wrong_denoiser_does_not(noisy: Tensor) -> None:
    """With gains g and one step, the violation is (g''((1−ρ)g_t + ρ) − g_t)(x_t − ½), squared."""

    def cautious(y: Tensor, sigma: Tensor) -> Tensor:
        return 0.5 + 0.7 * (y - 0.5)

    x_t, level, lower = below(noisy, cautious)
    value = baselines.consistency(cautious, x_t, level, lower, fields(1, 3), fields(1, 4))
    g, low, rho = full(0.7), full(0.7), (lower / level).square()
    violation = expand(low * ((1 - rho) * g + rho) - g) * (x_t - 0.5)
    truth = violation.square().flatten(1).mean(1)
    assert_mean(value - truth, 0.0)
    assert float(value.mean()) > Z * float(value.std()) / math.sqrt(N)


def slopes(loss: Callable[[Tensor], Tensor], at: float, parts: int = 50) -> Tensor:
    """d loss / d parameter, of equal parts of the images each, for its standard error."""
    parameter = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    values = loss(parameter).view(parts, -1).mean(1)
    out = [torch.autograd.grad(value, parameter, retain_graph=True)[0] for value in values]
    return torch.stack(out)


@pytest.mark.parametrize(("factor", "sign"), [(0.5, -1), (2.0, 1)])
def test_its_gradient_leads_to_the_truth(noisy: Tensor, factor: float, sign: int) -> None:
    """Right at σ_n, and below for a prior of another variance: the slope says which way."""
    x_t, lower = noisy, full(0.4 * SIGMA)
    first, second = fields(2, 3), fields(2, 4)

    def loss(variance: Tensor) -> Tensor:
        def denoiser(y: Tensor, sigma: Tensor) -> Tensor:
            right = sigma > 0.999 * SIGMA
            gain = torch.where(right, wiener_gain(sigma), wiener_gain(sigma, variance))
            return 0.5 + expand(gain) * (y - 0.5)

        return baselines.consistency(denoiser, x_t, full(SIGMA), lower, first, second)

    found = slopes(loss, factor * PRIOR**2)
    error = float(found.std()) / math.sqrt(len(found))
    assert sign * float(found.mean()) > Z * error
    at_truth = slopes(loss, PRIOR**2)
    assert abs(float(at_truth.mean())) < Z * float(at_truth.std()) / math.sqrt(len(at_truth))


def test_its_gradient_goes_through_the_runs() -> None:
    """D = x + bσ: the violation is b σ''(1 − σ''/σ_t), and its square has the slope 2 b (…)².

    With the runs taken as given, the slope would be 2 b σ''(1 − σ''/σ_t)(σ'' − σ_t), negative:
    training would increase b without end.
    """
    b, level, lower = 0.5, SIGMA, 0.5 * SIGMA
    x_t, first, second = 0.5 + PRIOR * normal(SHAPE, 1), fields(1, 3), fields(1, 4)

    def loss(shift: Tensor) -> Tensor:
        def denoiser(y: Tensor, sigma: Tensor) -> Tensor:
            return y + shift * expand(sigma)

        return baselines.consistency(denoiser, x_t, full(level), full(lower), first, second)

    per_b = lower * (1 - lower / level)
    assert_mean(loss(torch.tensor(b)), (b * per_b) ** 2)
    found = slopes(loss, b)
    assert_mean(found, 2 * b * per_b**2)
    assert float(found.mean()) > Z * float(found.std()) / math.sqrt(len(found))


# Ambient Diffusion


def neighbours(n: int = 20_000) -> tuple[Tensor, Tensor]:
    """n rows of 8 pixels with correlation 0.8 from pixel to pixel, and their covariance."""
    k = torch.arange(8, dtype=torch.float64)
    covariance = PRIOR**2 * 0.8 ** (k[:, None] - k).abs()
    x = 0.5 + normal((n, 8), 1) @ torch.linalg.cholesky(covariance).T
    return x.view(n, 1, 1, 8), covariance


MEASURED = torch.tensor([1, 1, 1, 0, 1, 1, 0, 1]).double().view(1, 1, 1, 8)
SHOWN = torch.tensor([1, 0, 1, 0, 1, 1, 0, 0]).double().view(1, 1, 1, 8)


def conditional_mean(covariance: Tensor, sigma: float) -> Callable[[Tensor], Tensor]:
    """E[x | what is shown, with noise], by the normal equations."""
    seen = SHOWN.flatten().nonzero().flatten()
    inner = covariance[seen][:, seen] + sigma**2 * torch.eye(len(seen), dtype=torch.float64)
    gain = covariance[:, seen] @ torch.linalg.inv(inner)
    return lambda u: (0.5 + (u.flatten(1)[:, seen] - 0.5) @ gain.T).view_as(u)


def test_ambient_is_least_at_the_conditional_mean() -> None:
    """Also of hidden pixels, from their neighbours: the slope along any other estimate is zero."""
    x, covariance = neighbours()
    problem = Problem.inpainting(MEASURED[0, 0], SIGMA).with_operator(Mask(MEASURED))
    noise, sigma = normal(tuple(x.shape), 2), full(SIGMA, len(x))
    exact = conditional_mean(covariance, SIGMA)

    def loss(estimate: Callable[[Tensor], Tensor]) -> Tensor:
        return baselines.ambient(lambda u, s: estimate(u), x, sigma, noise, problem, Mask(SHOWN))

    least = loss(exact)
    directions: list[Callable[[Tensor], Tensor]] = [
        lambda u: torch.ones_like(u),
        lambda u: u - 0.5,
        lambda u: (u - 0.5).roll(1, dims=-1),
        lambda u: (u - 0.5) * torch.arange(8),
    ]
    for h in directions:
        more, less = (
            loss(lambda u, h=h, e=e: exact(u) + e * h(u))
            for e in (0.01, -0.01)  # type: ignore[misc]
        )
        assert_mean((more - less) / 0.02, 0.0)
    for other in (conditional_mean(covariance, 0.0), conditional_mean(covariance, 2 * SIGMA)):
        excess = loss(other) - least
        assert float(excess.mean()) > Z * float(excess.std()) / math.sqrt(len(x))


def test_ambient_judges_what_is_measured_and_nothing_else() -> None:
    x, _ = neighbours(10)
    problem = Problem.inpainting(MEASURED[0, 0], SIGMA).with_operator(Mask(MEASURED))

    def loss(answer: Tensor) -> Tensor:
        return baselines.ambient(
            lambda u, s: answer, x, full(SIGMA, 10), normal(tuple(x.shape), 2), problem, Mask(SHOWN)
        )

    assert torch.equal(loss(x + 7 * (1 - MEASURED)), torch.zeros(10, dtype=torch.float64))
    hidden = MEASURED - SHOWN  # two of the six measured pixels, each off by 0.3
    torch.testing.assert_close(loss(x + 0.3 * hidden), full(2 * 0.09 / 6, 10))


class Spy:
    """A network that answers ``y`` and remembers what it was shown."""

    def __call__(self, y: Tensor, sigma: Tensor, operator: LinearOperator) -> Tensor:
        assert isinstance(operator, Mask)
        self.y, self.sigma, self.mask = y, sigma, operator.mask
        return y


def masked_batch(n: int = 64, kind: str = "inpainting") -> Batch:
    x = 0.5 + PRIOR * normal((n, 3, 16, 16), 5).float()
    if kind == "demosaicing":
        problem = Problem.demosaicing(SIGMA)
    else:
        problem = Problem.inpainting(random_mask(0.7, (16, 16), 0), SIGMA, 3)
    y = problem.A(x) + SIGMA * problem.mask_noise(normal((n, 3, 16, 16), 6).float())
    return Batch(y, torch.full((n,), SIGMA), problem, x)


def ambient_shown(batch: Batch) -> Spy:
    spy = Spy()
    samples = len(batch.y)
    training_loss(recipe_named("ambient", batch.problem.kind), spy, batch, Draws(0, "l", samples))
    return spy


@pytest.mark.parametrize("kind", ["inpainting", "demosaicing"])
def test_the_network_is_shown_less_than_was_measured(kind: str) -> None:
    batch = masked_batch(kind=kind)
    assert batch.clean is not None
    measured = batch.problem.operator.known(batch.clean)
    spy = ambient_shown(batch)
    assert bool((spy.mask <= measured).all())
    assert bool((spy.y[spy.mask == 0] == 0).all())  # neither values nor noise
    # each pixel, all its channels, is hidden with probability 0.1, and differently in each image
    pixels = measured.amax(1).sum()
    hidden = (measured - spy.mask).amax(1).sum()
    assert abs(hidden / pixels - 0.1) < Z * math.sqrt(0.1 * 0.9 / pixels)
    assert not torch.equal(spy.mask[0], spy.mask[1])
    # what is shown is the noise-free measurement and fresh noise of the level it is told of
    assert float(spy.sigma.min()) > 0
    assert float(spy.sigma.max()) <= SIGMA
    noise = ((spy.y - batch.clean) / expand(spy.sigma))[spy.mask == 1]
    assert abs(float(noise.var()) - 1) < Z * math.sqrt(2 / len(noise))


def test_the_network_cannot_know_what_is_hidden() -> None:
    """Other values where it is shown nothing, and another noisy y: it is shown the same."""
    batch = masked_batch()
    assert batch.clean is not None
    before = ambient_shown(batch)
    altered = torch.where(before.mask.bool(), batch.clean, 1 - batch.clean)
    after = ambient_shown(Batch(torch.zeros_like(batch.y), batch.sigma, batch.problem, altered))
    assert torch.equal(before.y, after.y)
    assert torch.equal(before.mask, after.mask)


# the recipes


def test_recipes_by_name() -> None:
    assert recipe_named("cd").loss == "cd"
    for kind in ("inpainting", "demosaicing"):
        recipe = recipe_named("ambient", kind)
        assert (recipe.loss, recipe.hide, recipe.pool) == ("ambient", 0.1, (1,))
        with pytest.raises(NediffError, match=f"no recipe 'cd' for {kind}.*supervised.*ambient"):
            recipe_named("cd", kind)
    for kind in ("denoising", "blur", "mri"):
        with pytest.raises(NediffError, match=f"no recipe 'ambient' for {kind}"):
            recipe_named("ambient", kind)
    with pytest.raises(NediffError, match="'cd' is for denoising only, not for inpainting"):
        recipe_named(RecipeConfig(name="mine", loss="cd"), "inpainting")
    for kind in ("denoising", "blur"):
        with pytest.raises(NediffError, match="for inpainting and demosaicing only, not for"):
            recipe_named(RecipeConfig(name="mine", loss="ambient", hide=0.1), kind)


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "ambient"},
        {"loss": "ambient", "hide": 0.1, "pool": (1, 2), "pool_weights": (1, 1)},
        {"loss": "cd", "sigma_max_ratio": 1.0},
        {"loss": "cd", "consistency": -1.0},
        {"loss": "cd", "consistency": math.inf},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RecipeConfig(name="mine", **settings)


def test_losses_refuse_what_they_are_not_for() -> None:
    masked = masked_batch(2)
    noisy_only = Batch(masked.y, masked.sigma, masked.problem)
    with pytest.raises(NediffError, match="needs measurements without noise"):
        training_loss(recipe_named("ambient", "inpainting"), Spy(), noisy_only, Draws(0, "l", 2))
    with pytest.raises(NediffError, match="for denoising only"):
        training_loss(recipe_named("cd"), Spy(), masked, Draws(0, "l", 2))


def test_ambient_is_not_for_real_measurements(tmp_path: Path) -> None:
    """On the command line: whoever has noise-free ones only by simulation is told so."""
    options = ("--operator", "inpainting", "--mask", "mask.png", "--recipe", "ambient")
    done = nediff("train", "data", "--sigma", SIGMA, "--out", tmp_path / "run", *options)
    assert done.code != 0
    assert "The ambient recipe needs clean images" in done.err
    done = nediff("train", "data", "--sigma", SIGMA, "--out", tmp_path / "run", *options[:-1], "cd")
    assert "no recipe 'cd' for inpainting" in done.err


def tiny(seed: int = 1) -> torch.nn.Module:
    config = NetworkConfig(size="tiny", channels=1, sigma_data=0.2)
    network = build_denoiser(config, seed)
    with torch.no_grad():  # wake the layers that start at zero
        for k, parameter in enumerate(network.parameters()):
            generator = torch.Generator().manual_seed(k)
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return network


def test_a_sample_is_a_function_of_its_seed_and_number_alone() -> None:
    network, recipe = tiny(), recipe_named("cd")
    y = 0.5 + 0.2 * normal((4, 1, 16, 16), 1).float()
    sigma, problem = torch.full((4,), SIGMA), Problem.denoising(SIGMA)
    together = training_loss(recipe, network, Batch(y, sigma, problem), Draws(3, "l", range(7, 11)))
    for k in range(4):
        one = Batch(y[k : k + 1], sigma[k : k + 1], problem)
        alone = training_loss(recipe, network, one, Draws(3, "l", [7 + k]))
        torch.testing.assert_close(alone[0], together[k], rtol=1e-3, atol=1e-5)
    other = training_loss(recipe, network, Batch(y, sigma, problem), Draws(4, "l", range(7, 11)))
    assert not torch.isclose(together, other, rtol=1e-3).any()


def test_the_consistency_term_is_weighted_and_can_be_left_out() -> None:
    network, draws = tiny(), Draws(0, "l", 16)
    y = 0.5 + 0.2 * normal((16, 1, 16, 16), 1).float()
    batch = Batch(y, torch.full((16,), SIGMA), Problem.denoising(SIGMA))

    def value(weight: float, share: float = 1.0) -> Tensor:
        draws.restart()
        recipe = RecipeConfig(name="cd", loss="cd", consistency=weight, consistency_share=share)
        return training_loss(recipe, network, batch, draws).detach()

    whole = value(1.0) - value(0.0)
    torch.testing.assert_close(value(2.0) - value(0.0), 2 * whole)
    assert bool((whole != 0).all())
    # for half of the images it counts twice, for the others not at all: the same on average
    half = value(1.0, 0.5) - value(0.0)
    computed = half != 0
    assert 0 < int(computed.sum()) < 16
    torch.testing.assert_close(half[computed], 2 * whole[computed], rtol=1e-3, atol=1e-5)
    assert torch.equal(value(1.0, 1e-9), value(0.0))  # for none of them


# runs


def smooth_fields(count: int, side: int, seed: int) -> np.ndarray:
    """Gaussian fields, 0.5 ± 0.15, smooth over some two pixels."""
    white = np.random.default_rng(seed).normal(size=(count, side, side))
    blurred = np.stack([gaussian_filter(plane, 2.0, mode="wrap") for plane in white])
    return (0.5 + 0.15 * blurred / blurred.std()).astype(np.float32)


def smooth_measurements(problem: Problem, count: int = 6, side: int = 48) -> Measurements:
    clean = open_measurements(smooth_fields(count, side, 0), axes="NHW", range=(0, 1))
    return clean.simulate(problem.sigma, 0, None if problem.kind == "denoising" else problem)


@pytest.mark.parametrize("recipe", ["cd", "ambient"])
def test_stopped_and_resumed_equals_uninterrupted(recipe: str, tmp_path: Path) -> None:
    problem = Problem.denoising(SIGMA, 1)
    if recipe == "ambient":
        problem = Problem.inpainting(random_mask(0.7, (48, 48), 0), SIGMA)
    plan = Plan(steps=12, size="tiny", crop=24, batch=2, recipe=recipe)
    for name, stops in (("a", ()), ("b", (3, 4))):
        measurements = smooth_measurements(problem)
        config = plan_run(measurements, problem, plan, "(in memory)")
        start_folder(tmp_path / name, config, problem)
        for stop in stops:
            _, done = run_training(config, measurements, tmp_path / name, stop=stop_after(stop))
            assert not done
        _, done = run_training(config, measurements, tmp_path / name)
        assert done
    assert_same_run(tmp_path / "a", tmp_path / "b")
    text = card_text(package.load(tmp_path / "a").config)
    assert ("WITHOUT noise" in text) == (recipe == "ambient")


def relative_error(restorer: package.Restorer, share: float) -> tuple[float, float]:
    """MSE / σ² at σ = share · σ_n on other fields: of the trained network, and of an untrained."""
    config, sigma = restorer.config, share * SIGMA
    x = torch.from_numpy(smooth_fields(8, 64, 9))[:, None]
    y = x + sigma * normal(tuple(x.shape), 1).float()
    untrained = build_denoiser(config.network, config.training.seed)
    with torch.no_grad():
        guesses = restorer.restore(y, sigma), untrained(y, torch.full((8,), sigma))
    one, other = (float((guess - x).square().mean()) / sigma**2 for guess in guesses)
    return one, other


def test_a_short_run_learns_to_denoise_below_the_noise_it_saw() -> None:
    """150 steps on smooth fields with σ_n = 0.1, of which it has seen nothing less noisy.

    The errors are mostly white noise that is left, of 8 × 64² pixels: an MSE has the standard
    error √(2/32768) = 0.8 %, so 4 % is five of them.
    """
    problem = Problem.denoising(SIGMA, 1)
    measurements = smooth_measurements(problem, count=16, side=64)
    runs = {}
    for weight in (0.0, recipe_named("cd").consistency):
        recipe = recipe_named("cd").model_copy(update={"consistency": weight})
        plan = Plan(steps=150, size="tiny", crop=24, batch=4, recipe=recipe)
        config = plan_run(measurements, problem, plan, "(in memory)")
        runs[weight], _ = run_training(config, measurements, None)
    alone, consistent = runs.values()
    for share in (0.3, 0.5, 1.0):
        trained, untrained = relative_error(consistent, share)
        assert trained < 0.96 * untrained
        assert trained < 0.96  # less than the noise itself
    # at the lowest level only the consistency term knows better than to distort the image
    assert relative_error(consistent, 0.2)[0] < 0.96 * relative_error(alone, 0.2)[0]
