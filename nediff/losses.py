"""The losses of METHOD.md §2, as pure functions: per image, shape (B,).

All randomness comes in as tensors: noise or probes like y, α, μ, τ and σ as (B,). Losses in
measurement space are divided by m, the number of measured values (where there is none, they
are zero); `supervised` and `equivariance`, in image space, by n. ``weight`` multiplies the
squared residuals, per pixel or per image; what to weight by is left to the recipe.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nediff.divergence import Map, expand, monte_carlo
from nediff.operators import Identity, LinearOperator
from nediff.problem import Problem

Divergence = Callable[[Map, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _total(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """Σ weight · values over each image, (B,)."""
    weighted = values if weight is None else weight * values
    return weighted.flatten(1).sum(1)


NO_ERROR = 100.0
"""dB: the PSNR of an estimated MSE that is not positive, as it is where σ is said too large, or
where many pixels are cut off at an end of the range and so have no noise."""


def decibels(mse: float) -> float:
    """PSNR = −10 log₁₀ MSE for intensities in [0, 1], at most `NO_ERROR`."""
    return -10 * math.log10(max(mse, 10 ** (-NO_ERROR / 10)))


def decibels_in_words(psnr: float) -> str:
    """An estimated PSNR as it is shown; none where the estimated error is not positive."""
    return "(not known)" if psnr >= NO_ERROR else f"{psnr:.2f} dB"


def rescale(y: Tensor, alpha: Tensor, mu: Tensor, problem: Problem) -> Tensor:
    """y' = α y + μ A1: a measurement of αx + μ1 with noise ασ."""
    return expand(alpha) * y + expand(mu) * problem.A1(y)


def supervised(
    denoiser: Map,
    x: Tensor,
    sigma: Tensor,
    noise: Tensor,
    problem: Problem,
    weight: Tensor | None = None,
) -> Tensor:
    """‖D(Ax + σ η, σ) − x‖² / n: needs clean x; the upper bound in every comparison."""
    y = problem.A(x) + expand(sigma) * problem.noise(noise)
    return _total((denoiser(y, sigma) - x).square(), weight) / x[0].numel()


def sure(
    denoiser: Map,
    y: Tensor,
    sigma: Tensor,
    probe: Tensor,
    problem: Problem,
    divergence: Divergence = monte_carlo,
) -> Tensor:
    """(‖y − A D(y, σ)‖² + 2 σ² div(A∘D)(y, σ) − m σ²) / m.

    Its expectation over the noise of y is E‖A D(y, σ) − A x‖² / m, for any D.
    """
    value, div = divergence(lambda u, s: problem.A(denoiser(u, s)), y, sigma, problem.noise(probe))
    m, variance = problem.measured(y), sigma.square()
    total = _total((y - value).square()) + 2 * variance * div - m * variance
    return total / m.clamp_min(1)


def ne_sure(
    denoiser: Map,
    y: Tensor,
    sigma: Tensor,
    alpha: Tensor,
    mu: Tensor,
    probe: Tensor,
    problem: Problem,
    divergence: Divergence = monte_carlo,
) -> Tensor:
    """`sure` at (y', s) = (αy + μA1, ασ): the paper's loss, unbiased for the MSE at level s."""
    return sure(denoiser, rescale(y, alpha, mu, problem), alpha * sigma, probe, problem, divergence)


def ne_r2r(
    denoiser: Map,
    y: Tensor,
    sigma: Tensor,
    alpha: Tensor,
    mu: Tensor,
    tau: Tensor,
    noise: Tensor,
    problem: Problem,
    given: LinearOperator | None = None,
    weight: Tensor | None = None,
    complement: Tensor | None = None,
) -> Tensor:
    """Recorrupted-to-recorrupted at (α, μ): unbiased for the MSE at level s√(1+τ²), s = ασ.

    With b ~ N(0, I) masked (or correlated) like the noise, y + τσb and y − σb/τ carry
    independent noise. So
    ‖A D(α(y + τσb) + μA1, s√(1+τ²)) − (α(y − σb/τ) + μA1)‖² / m − s²(1 + 1/τ²)
    is an estimate of the error from one network pass, without a divergence.

    ``given`` shows the denoiser less than y. A mask inside that of the problem: the rest needs
    no b; what the network did not see has noise of its own, s² of it, and teaches it to predict
    what was never measured. Another operator, where y is a complete image: the denoiser sees
    its measurement, with noise of covariance I − AAᵀ (``complement``) that makes it white.
    """
    part = given or problem.operator
    b = part.noise(noise)
    s = alpha * sigma
    level = recorrupted_level(s, tau)
    noisier = rescale(y + expand(tau * sigma) * b, alpha, mu, problem)
    if given is not None:
        noisier = shown_part(noisier, problem, given)
    if complement is not None:
        noisier = noisier + expand(level) * complement
    target = rescale(y - expand(sigma / tau) * b, alpha, mu, problem)
    residual = problem.A(denoiser(noisier, level)) - target
    seen = part.mask_noise(torch.ones_like(y))
    noise_of_target = expand(s.square()) * (1 + seen * expand(tau**-2))
    unbiased = residual.square() - problem.mask_noise(noise_of_target)
    return _total(unbiased, weight) / problem.measured(y).clamp_min(1)


def shown_part(y: Tensor, problem: Problem, given: LinearOperator) -> Tensor:
    """What ``given`` shows of y: its measurement if y is the image itself, or a part of y."""
    whole = isinstance(problem.operator, Identity)
    return given.A(y) if whole else given.mask_noise(y)


def rehearsed(
    denoiser: Map,
    y: Tensor,
    sigma: Tensor,
    noise: Tensor,
    problem: Problem,
    given: LinearOperator | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """‖A D(y + σ η, σ) − y‖² / m for y = A x without noise, of a posterior sample x of our own.

    ``given`` shows the denoiser only part of it, as in `ne_r2r`; ``noise`` is like what is shown.
    """
    given = given or problem.operator
    shown = shown_part(y, problem, given) + expand(sigma) * given.noise(noise)
    residual = problem.A(denoiser(shown, sigma)) - y
    return _total(residual.square(), weight) / problem.measured(y).clamp_min(1)


def equivariance(
    denoiser: Map,
    y: Tensor,
    sigma: Tensor,
    level: Tensor,
    noise: Tensor,
    transform: Callable[[Tensor], Tensor],
    problem: Problem,
    weight: Tensor | None = None,
) -> Tensor:
    """The `ei` term: with x̂ = D(y, σ), ‖T_g x̂ − D(A T_g x̂ + σ' η, σ')‖² / n at ``level`` σ'.

    A turned or shifted image is as plausible, and the instrument sees another part of it: what
    D fills in must survive being measured again. The gradient flows through x̂ too.
    """
    moved = transform(denoiser(y, sigma))
    again = problem.A(moved) + expand(level) * problem.noise(noise)
    return _total((moved - denoiser(again, level)).square(), weight) / moved[0].numel()


def recorrupted_level(s: Tensor, tau: Tensor) -> Tensor:
    """s√(1+τ²), the noise level of the recorrupted input."""
    return s * (1 + tau.square()).sqrt()


def matched_contrast(level: Tensor, sigma: Tensor, tau_min: float) -> tuple[Tensor, Tensor]:
    """(α, τ) that bring a measurement of noise σ to ``level`` with as much contrast as can be.

    α σ √(1+τ²) = level with α = min(1, level / (σ√(1+τ_min²))). Where the measurement is
    cleaner than the level (a pooled one), the contrast stays full (α = 1) and τ > τ_min
    makes up the noise, against a target with far less noise than the input: almost
    supervised training. Otherwise α < 1 shrinks it, as in the paper, with τ = τ_min.
    """
    alpha = (level / (sigma * (1 + tau_min**2) ** 0.5)).clamp(max=1.0)
    tau = ((level / (alpha * sigma)).square() - 1).clamp_min(tau_min**2).sqrt()
    return alpha, tau
