"""The samplers against closed forms (METHOD.md §5, laws 1, 4 and 5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from nediff.evaluation import Calibration
from nediff.problem import Problem
from nediff.sampling import (
    PAPER_SETTINGS,
    SOLVERS,
    SamplerSettings,
    noise_levels,
    sample_posterior,
    solve,
)
from nediff.sampling.solvers import network_calls
from tests.gaussian import GaussianPrior, TwoModes

SIGMA, N = 0.075, 20_000
Z = 5.0  # standard errors allowed: a right sampler fails one entry in 2·10⁶
FINE = SamplerSettings(steps=40, sigma_min_ratio=1 / 300, gamma=7)


def draw(
    denoise: object, y: Tensor, settings: SamplerSettings, n: int = N, seed: int = 0
) -> Tensor:
    """n samples for one measurement (C, H, W), with plain generator noise."""
    generator = torch.Generator().manual_seed(seed)
    batch = y.double().expand(n, *y.shape)
    sigma = torch.full((n,), SIGMA, dtype=torch.float64)
    low = sigma * settings.sigma_min_ratio
    levels = noise_levels(sigma, low, settings.steps, settings.gamma)
    step = SOLVERS[settings.solver]

    def noise(_: int) -> Tensor:
        return torch.randn(batch.shape, generator=generator, dtype=torch.float64)

    z = solve(step, batch, denoise, levels, noise)  # type: ignore[arg-type]
    return denoise(z, low)  # type: ignore[operator,no-any-return]


@pytest.fixture(scope="module")
def prior() -> GaussianPrior:
    return GaussianPrior.random((1, 3, 4), scale=0.2)


@pytest.fixture(scope="module")
def measurement(prior: GaussianPrior) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(prior.shape, generator=generator, dtype=torch.float64)
    return prior.sample(1, seed=4)[0] + SIGMA * noise


@pytest.mark.parametrize("solver", ["heun", "dpm2m"])
def test_gaussian_prior_with_full_covariance(
    solver: str, prior: GaussianPrior, measurement: Tensor
) -> None:
    settings = replace(FINE, solver=solver)
    samples = draw(prior.denoise, measurement, settings).flatten(1)
    mean, covariance = prior.posterior(measurement, SIGMA)
    sd = covariance.diagonal().sqrt()
    bias = 0.02  # what 40 levels leave of discretisation, in units of posterior sd
    assert ((samples.mean(0) - mean).abs() < (Z / math.sqrt(N) + bias) * sd).all()
    found = torch.cov(samples.T)
    # standard error of a sample covariance: √((S_ii S_jj + S_ij²)/N)
    error = ((sd[:, None] * sd[None, :]).square() + covariance.square()).div(N).sqrt()
    assert ((found - covariance).abs() < Z * error + 2 * bias * sd[:, None] * sd[None, :]).all()
    off_diagonal = covariance - covariance.diagonal().diag()
    assert off_diagonal.abs().max() > 3 * Z * error.max()  # the test can see full covariances


@pytest.mark.parametrize("solver", ["heun", "dpm2m"])
def test_mixture_mode_weights(solver: str) -> None:
    centre = torch.full((1, 2, 2), 0.09, dtype=torch.float64)
    prior = TwoModes(centre, variance=0.02**2, weight=0.5)
    y = torch.full((1, 2, 2), 0.006, dtype=torch.float64)
    expected = prior.posterior_weight(y[None], torch.tensor([SIGMA]))[0].item()
    assert 0.55 < expected < 0.9  # both modes matter
    samples = draw(prior.denoise, y, SamplerSettings(solver, 60, 1 / 300, 7)).flatten(1)
    upper = samples.mean(1) > 0
    error = math.sqrt(expected * (1 - expected) / N)
    assert abs(upper.double().mean().item() - expected) < Z * error + 0.01
    for mode, sign in ((upper, 1), (~upper, -1)):
        shrink = prior.variance / (prior.variance + SIGMA**2)
        mean = shrink * 0.006 + (1 - shrink) * sign * 0.09
        sd = math.sqrt(shrink) * SIGMA
        inside = samples[mode]
        assert abs(inside.mean().item() - mean) < (Z / math.sqrt(inside.numel()) + 0.05) * sd
        assert abs(inside.std().item() / sd - 1) < Z / math.sqrt(2 * inside.numel()) + 0.04


@pytest.mark.parametrize("solver", ["euler", "ancestral"])
def test_first_order_solvers_converge(
    solver: str, prior: GaussianPrior, measurement: Tensor
) -> None:
    """Their error in the spread falls with the number of levels, and is small at the end."""
    _, covariance = prior.posterior(measurement, SIGMA)
    errors = []
    for steps in (25, 200):
        samples = draw(prior.denoise, measurement, SamplerSettings(solver, steps, 1 / 300, 7), 8000)
        ratio = samples.flatten(1).var(0).sum() / covariance.trace()
        errors.append(abs(ratio.item() - 1))
    assert errors[1] < 0.06
    assert errors[1] < errors[0] or errors[0] < 0.02


def test_the_default_settings_are_right_to_a_few_per_cent(
    prior: GaussianPrior, measurement: Tensor
) -> None:
    """Ten calls: what they leave of discretisation stays below 5 % of the spread."""
    mean, covariance = prior.posterior(measurement, SIGMA)
    sd = covariance.diagonal().sqrt()
    samples = draw(prior.denoise, measurement, SamplerSettings()).flatten(1)
    assert ((samples.mean(0) - mean).abs() < (Z / math.sqrt(N) + 0.02) * sd).all()
    assert ((samples.std(0) / sd - 1).abs() < Z / math.sqrt(2 * N) + 0.05).all()


def calibration_of(prior: GaussianPrior, settings: SamplerSettings, images: int) -> Calibration:
    """Laws 4 and 5 over many draws of x, y and 8 samples each."""
    x = prior.sample(images, seed=1)
    generator = torch.Generator().manual_seed(2)
    y = x + SIGMA * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    sigma = torch.full((images,), SIGMA, dtype=torch.float64)
    problem = Problem.denoising(SIGMA)
    drawn = sample_posterior(prior.denoise, y, sigma, problem, 8, list(range(images)), settings)
    estimate = prior.denoise(y, sigma)
    calibration = Calibration(n=8)
    for i in range(images):
        calibration.add(x[i].numpy(), drawn[:, i].numpy(), estimate[i].numpy())
    return calibration


@pytest.mark.parametrize("solver", ["heun", "dpm2m"])
def test_right_samplers_are_calibrated(solver: str, prior: GaussianPrior) -> None:
    images = 3000
    calibration = calibration_of(prior, SamplerSettings(solver, 25, 1 / 100, 7), images)
    # relative error of a mean of squares over ≥ `images` independent values, twice: √(2·2/images)
    tolerance = Z * math.sqrt(4 / images) / 2 + 0.02
    assert abs(calibration.ratio - 1) < tolerance
    assert abs(calibration.psnr_drop - 3.0103) < 4.343 * tolerance
    for promised, found in calibration.coverage():
        assert abs(found - promised) < Z * math.sqrt(promised * (1 - promised) / images) + 0.01


def test_the_printed_algorithm_is_detected_as_too_narrow(
    prior: GaussianPrior, measurement: Tensor
) -> None:
    settings = PAPER_SETTINGS
    _, covariance = prior.posterior(measurement, SIGMA)
    samples = draw(prior.denoise, measurement, settings, 2000).flatten(1)
    assert samples.var(0).sum() < 0.05 * covariance.trace()
    calibration = calibration_of(prior, settings, 300)
    assert calibration.ratio > 10
    assert calibration.psnr_drop < 1.5
    assert all(found < 0.5 * promised for promised, found in calibration.coverage())


MIXTURE = TwoModes(torch.full((1, 2, 2), 0.04, dtype=torch.float64), 0.02**2, 0.3)
RANKED = 1200
"""Images of the simulation-based calibration, with 19 samples each."""


def rank_statistic(denoise: Callable[[Tensor, Tensor], Tensor], settings: SamplerSettings) -> float:
    """χ² of the ranks of the truth among 19 samples, in 20 classes: 19 ± 6 if all is right.

    Ranked by the mean of the image, along which the two modes lie, and by its first pixel less
    its last, across; the worse of both.
    """
    x = MIXTURE.sample(RANKED, seed=1)
    generator = torch.Generator().manual_seed(2)
    y = x + SIGMA * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    sigma, seeds = torch.full((RANKED,), SIGMA, dtype=torch.float64), list(range(RANKED))
    drawn = sample_posterior(denoise, y, sigma, Problem.denoising(SIGMA), 19, seeds, settings)
    worst = 0.0
    for along in (
        lambda u: u.flatten(-3).mean(-1),
        lambda u: u[..., 0, 0, 0] - u[..., 0, -1, -1],
    ):
        ranks = (along(drawn) < along(x)).sum(0)
        counts = torch.bincount(ranks, minlength=20).double()
        expected = RANKED / 20
        worst = max(worst, float((counts - expected).square().sum() / expected))
    return worst


def test_ranks_are_uniform_for_a_mixture_and_broken_samplers_are_detected() -> None:
    """Simulation-based calibration (Talts et al. 2018): a right sampler ranks uniformly.

    P(χ²₁₉ > 48) = 2.6e-4; the discretisation of 40 steps may add a little.
    """
    right = rank_statistic(MIXTURE.denoise, FINE)
    assert right < 48
    one_sided = replace(MIXTURE, weight=0.7)  # favours the wrong mode
    too_sure = replace(MIXTURE, variance=0.01**2)  # believes the modes narrower
    for broken in (one_sided.denoise, too_sure.denoise):
        assert rank_statistic(broken, FINE) > 2 * 48
    assert rank_statistic(MIXTURE.denoise, PAPER_SETTINGS) > 10 * 48  # no spread at all
    assert rank_statistic(MIXTURE.denoise, replace(FINE, steps=3)) > 2 * 48  # too few steps


def test_calibration_detects_samples_that_are_too_wide() -> None:
    rng = np.random.default_rng(0)
    calibration = Calibration(n=9)
    for _ in range(20):
        truth = rng.normal(size=(1, 30, 30))
        calibration.add(truth, 1.5 * rng.normal(size=(9, 1, 30, 30)), np.zeros_like(truth))
    assert calibration.ratio < 0.7
    assert all(found > promised + 0.03 for promised, found in calibration.coverage())
    narrow = Calibration(n=9)
    narrow.add(truth, 0.7 * rng.normal(size=(9, 1, 30, 30)), np.zeros_like(truth))
    assert narrow.ratio > 1.4


def test_network_calls_are_counted_right(prior: GaussianPrior, measurement: Tensor) -> None:
    for solver in SOLVERS:
        calls = 0

        def counted(z: Tensor, level: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return prior.denoise(z, level)

        draw(counted, measurement, SamplerSettings(solver, 7), n=2)
        assert calls == network_calls(solver, 7)


def test_schedule_is_the_formula_with_exact_ends() -> None:
    levels = noise_levels(torch.tensor([0.075, 0.1]), torch.tensor([0.01, 0.02]), 25)
    assert levels.shape == (25, 2)
    assert torch.equal(levels[0].float(), torch.tensor([0.075, 0.1]))
    assert torch.equal(levels[-1].float(), torch.tensor([0.01, 0.02]))
    assert (levels.diff(dim=0) < 0).all()
    middle = ((0.075 ** (1 / 7) + 0.01 ** (1 / 7)) / 2) ** 7
    assert levels[12, 0].item() == pytest.approx(middle, rel=1e-6)


def test_a_sample_depends_on_its_image_and_seed_alone(prior: GaussianPrior) -> None:
    problem, sigma = Problem.denoising(SIGMA), torch.full((3,), SIGMA, dtype=torch.float64)
    y = prior.sample(3, seed=8)

    def samples(rows: list[int], seeds: list[int], **more: int) -> Tensor:
        return sample_posterior(
            prior.denoise, y[rows], sigma[: len(rows)], problem, 3, seeds, None, None, **more
        )

    together = samples([0, 1, 2], [5, 5, 9])
    one_by_one = samples([0, 1, 2], [5, 5, 9], pixels_at_once=1)
    torch.testing.assert_close(together, one_by_one, rtol=0, atol=1e-12)
    torch.testing.assert_close(together[:, 2:], samples([2], [9]), rtol=0, atol=1e-12)
    assert (together[:, 0] - samples([0], [6])[:, 0]).abs().max() > 1e-3
    assert (together[0] - together[1]).abs().max() > 1e-3


@pytest.mark.parametrize("solver", SOLVERS)
def test_samples_of_an_image_share_their_first_answer(prior: GaussianPrior, solver: str) -> None:
    """And are what each would be by itself."""
    problem, sigma = Problem.denoising(SIGMA), torch.full((2,), SIGMA, dtype=torch.float64)
    y, settings, rows = prior.sample(2, seed=8), SamplerSettings(solver, 6), 0

    def counted(z: Tensor, level: Tensor) -> Tensor:
        nonlocal rows
        rows += len(z)
        return prior.denoise(z, level)

    several = sample_posterior(counted, y, sigma, problem, 4, [5, 6], settings)
    assert rows == 2 + 2 * 4 * (network_calls(solver, 6) - 1)
    alone = sample_posterior(prior.denoise, y, sigma, problem, 1, [5, 6], settings)
    torch.testing.assert_close(several[:1], alone, rtol=0, atol=1e-12)


def test_progress_counts_up_to_the_total(prior: GaussianPrior) -> None:
    seen: list[tuple[int, int]] = []
    y, sigma = prior.sample(2, seed=8), torch.full((2,), SIGMA, dtype=torch.float64)
    sample_posterior(
        prior.denoise,
        y,
        sigma,
        Problem.denoising(SIGMA),
        2,
        [0, 1],
        SamplerSettings(steps=4),
        lambda done, total: seen.append((done, total)),
        pixels_at_once=1,
    )
    assert seen == sorted(seen)
    assert seen[-1] == (16, 16)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown solver"):
        SamplerSettings("rk4")
    with pytest.raises(ValueError, match="at least 2"):
        SamplerSettings(steps=1)
