"""Sampling in measurement space: p(Ax | y) in closed form, through A (METHOD.md §4, §5)."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import Tensor

from nediff.operators import Convolution, Fourier, LinearOperator, Mask
from nediff.problem import Problem
from nediff.sampling import SOLVERS, SamplerSettings, sample_posterior
from tests.gaussian import GaussianPrior
from tests.instruments import centred_mask, some_kernel, some_mask
from tests.measured import MeasuredPrior

SIGMA, N = 0.075, 10_000
Z = 5.0  # standard errors allowed: a right sampler fails one entry in 2·10⁶
BIAS = 0.02  # what 40 levels leave of discretisation, in units of posterior sd

OPERATORS: dict[str, tuple[LinearOperator, tuple[int, int, int]]] = {
    "mask": (Mask(some_mask((1, 1, 3, 4), 0.6)), (1, 3, 4)),
    "blur": (Convolution(some_kernel(2, 3)), (1, 4, 5)),
    "fourier": (Fourier(centred_mask(3, 3)), (2, 3, 3)),
}


def setting(name: str) -> tuple[MeasuredPrior, Problem, Tensor]:
    """A prior with full covariance, the instrument, and one measurement (1, C', h, w)."""
    operator, shape = OPERATORS[name]
    known = MeasuredPrior(GaussianPrior.random(shape, scale=0.2), operator)
    y = known.measure(known.prior.sample(1, seed=4), SIGMA, seed=5)
    return known, Problem(SIGMA, shape[0], operator), y


@cache
def draw(name: str, solver: str) -> tuple[Tensor, list[Tensor]]:
    """N samples x (N, values), and the states z that the denoiser was shown."""
    known, problem, y = setting(name)
    shown: list[Tensor] = []

    def denoise(u: Tensor, sigma: Tensor) -> Tensor:
        shown.append(u)
        return known.denoise(u, sigma)

    settings = SamplerSettings(solver, steps=40, sigma_min_ratio=1 / 300, gamma=7)
    sigma = torch.full((1,), SIGMA, dtype=torch.float64)
    return sample_posterior(denoise, y, sigma, problem, N, [3], settings).flatten(1), shown


def assert_law(samples: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Mean and full covariance of the rows of ``samples``, to their standard errors."""
    n = len(samples)
    sd = covariance.diagonal().sqrt()
    assert ((samples.mean(0) - mean).abs() < (Z / math.sqrt(n) + BIAS) * sd).all()
    # standard error of a sample covariance: √((S_ii S_jj + S_ij²)/n)
    outer = sd[:, None] * sd[None, :]
    error = (outer.square() + covariance.square()).div(n).sqrt()
    assert ((torch.cov(samples.T) - covariance).abs() < Z * error + 2 * BIAS * outer).all()
    # and the test can see both the spread and its correlations
    off_diagonal = covariance - covariance.diagonal().diag()
    assert (off_diagonal.abs() / outer).max() > 2 * (Z / math.sqrt(n) + 2 * BIAS)


@pytest.mark.parametrize("solver", ["dpm2m", "heun"])
@pytest.mark.parametrize("name", list(OPERATORS))
def test_samples_of_ax_have_the_posterior_law(name: str, solver: str) -> None:
    known, _, y = setting(name)
    samples, shown = draw(name, solver)
    mean, covariance = known.posterior(y[0], SIGMA)
    rows = known.rows
    assert len(rows) < known.matrix.shape[1]  # A is not injective
    assert_law(samples @ rows.T, rows @ mean, rows @ covariance @ rows.T)
    # nothing is measured there, so neither the state nor the measurement of a sample has noise
    outside = ~known.where
    for z in shown:
        assert not z.flatten(1)[:, outside].any()
        assert z.flatten(1)[:, known.where].all()
    if name == "blur":
        assert known.where.all()
    else:
        assert outside.any()


@pytest.mark.parametrize("name", list(OPERATORS))
def test_what_is_not_seen_gets_its_conditional_mean(name: str) -> None:
    """x = E[x | Ax] for the sampled Ax: right in the mean, too narrow where A does not see."""
    known, _, y = setting(name)
    samples, _ = draw(name, "dpm2m")
    mean, covariance = known.posterior(y[0], SIGMA)
    spread = known.gain(1e-6) @ known.rows @ covariance @ known.rows.T @ known.gain(1e-6).T
    assert_law(samples, mean, spread)
    missing = (covariance - spread).diagonal() / covariance.diagonal()
    assert missing.max() > 0.3  # by far more than the tolerance


def test_a_sampler_that_forgets_the_mask_is_seen() -> None:
    """With noise where nothing is measured, the states there are not zero."""
    known, _, y = setting("mask")

    class Forgetful(Mask):
        def mask_noise(self, noise: Tensor) -> Tensor:
            return noise

    operator = known.operator
    assert isinstance(operator, Mask)
    problem = Problem(SIGMA, 1, Forgetful(operator.mask))
    shown: list[Tensor] = []

    def denoise(u: Tensor, sigma: Tensor) -> Tensor:
        shown.append(u)
        return known.denoise(u, sigma)

    sigma = torch.full((1,), SIGMA, dtype=torch.float64)
    sample_posterior(denoise, y, sigma, problem, 4, [3], SamplerSettings(steps=4))
    assert any(z.flatten(1)[:, ~known.where].any() for z in shown)


@pytest.mark.parametrize("solver", list(SOLVERS))
@pytest.mark.parametrize("name", list(OPERATORS))
def test_a_sample_is_an_image_whatever_is_computed_together(name: str, solver: str) -> None:
    known, problem, y = setting(name)
    two = torch.cat([y, known.measure(known.prior.sample(1, seed=8), SIGMA, seed=9)])
    sigma = torch.full((2,), SIGMA, dtype=torch.float64)
    settings = SamplerSettings(solver, steps=5)

    def samples(rows: list[int], seeds: list[int], pixels: int = 2**17) -> Tensor:
        return sample_posterior(
            known.denoise, two[rows], sigma[rows], problem, 3, seeds, settings, None, pixels
        )

    together = samples([0, 1], [1, 2])
    assert together.shape == (3, 2, *known.prior.shape)
    torch.testing.assert_close(samples([0, 1], [1, 2], 1), together, rtol=0, atol=1e-12)
    torch.testing.assert_close(samples([1], [2]), together[:, 1:], rtol=0, atol=1e-12)
    assert sample_posterior(known.denoise, two, sigma, problem, 0, [1, 2]).shape == (
        0,
        2,
        *known.prior.shape,
    )


@pytest.mark.parametrize("name", list(OPERATORS))
def test_samples_agree_with_the_measurement_to_within_its_noise(name: str) -> None:
    """‖Ax − y‖²/(m σ²) over many x, y, samples: 1 like that of the truth, for any prior.

    (y | x has variance σ² and a sample of p(Ax | y) is distributed like the truth.)
    """
    known, problem, _ = setting(name)
    images = 3000
    y = known.measure(known.prior.sample(images, seed=1), SIGMA, seed=2)
    sigma = torch.full((images,), SIGMA, dtype=torch.float64)
    settings = SamplerSettings("dpm2m", steps=30, sigma_min_ratio=1 / 200, gamma=7)
    x = sample_posterior(known.denoise, y, sigma, problem, 1, list(range(images)), settings)[0]
    m = int(known.where.sum())
    found = (problem.A(x) - y).square().flatten(1).sum(1) / (m * SIGMA**2)
    # a mean of `images` χ² with m degrees of freedom, over m: sd √(2/(m·images))
    assert abs(found.mean().item() - 1) < Z * math.sqrt(2 / (m * images)) + 0.01
    estimate = problem.A(known.denoise(y, sigma))  # the MMSE estimate is nearer to y than that
    nearer = (estimate - y).square().flatten(1).sum(1).mean() / (m * SIGMA**2)
    assert nearer < 0.9
