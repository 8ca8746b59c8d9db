"""The error of a denoiser without the truth: SURE, and how far SURE itself may be off."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from nediff.divergence import Map, expand
from nediff.losses import NO_ERROR, decibels
from nediff.problem import Problem

NORMAL_95 = 1.96


@dataclass(frozen=True)
class Sure:
    """Sums over the m measured values of images; add them up with ``+``."""

    error: float
    """SURE: ‖y − f‖² + 2σ² div f − mσ², whose expectation is ‖f − Ax‖²."""
    variance: float
    """Of SURE − ‖f − Ax‖², the truth being what it is."""
    predicted: float
    """σ² div f: equal for the MMSE denoiser (METHOD.md §5, law 3)."""
    values: float
    """m."""

    def __add__(self, other: Sure) -> Sure:
        return Sure(
            self.error + other.error,
            self.variance + other.variance,
            self.predicted + other.predicted,
            self.values + other.values,
        )

    def scaled(self, by: float) -> Sure:
        """Of images ``by`` times as strong."""
        return Sure(self.error * by**2, self.variance * by**4, self.predicted * by**2, self.values)

    @property
    def psnr(self) -> float:
        """Estimated: −10 log₁₀ of the mean squared error over all measured values."""
        return decibels(self.error / self.values)

    @property
    def interval(self) -> tuple[float, float]:
        """PSNR, lowest and highest by a 95 % confidence interval of the mean squared error."""
        width = NORMAL_95 * math.sqrt(max(self.variance, 0.0))
        high, low = (decibels((self.error + side * width) / self.values) for side in (-1, 1))
        return low, high

    @property
    def overstated(self) -> bool:
        """Whether σ must be too large: not even the upper end of that interval is an error > 0."""
        return self.interval[0] >= NO_ERROR

    @property
    def predicted_psnr(self) -> float:
        """From the network's own divergence."""
        return decibels(self.predicted / self.values)


def estimate_error(
    denoiser: Map, y: Tensor, sigma: Tensor, probe: Tensor, problem: Problem
) -> Sure:
    """SURE of f = A D(·, σ) at measurements y (B, C, h, w) with noise σ (B,), with its own error.

    With J = ∂f/∂y and a normal ``probe`` b like y, masked like the noise, div f = tr J is
    estimated by b·Jb. What SURE is off by has the variance ("SURE for SURE", Bellec and Zhang
    2021)

        E(SURE − ‖f − Ax‖²)² = E[4σ²‖y − f‖² + 4σ⁴ tr J² − 2mσ⁴],

    and the probe adds 4σ⁴ Var(b·Jb) = 4σ⁴ (‖J‖² + tr J²). Both traces by the same probe,
    ‖Jb‖² and b·J(Jb), which takes three passes through the network. Correlated noise, of
    covariance σ²C, has b ~ N(0, C), tr CJ, and (y − f)·C(y − f), tr (CJ)², tr C² and
    tr CJᵀCJ instead.
    """

    def f(u: Tensor) -> Tensor:
        return problem.A(denoiser(u, sigma))

    def pushed(direction: Tensor) -> Tensor:
        return (f(y + expand(step) * direction) - value) / expand(step)

    value, step = f(y), 0.01 * sigma
    covariance = problem.operator.covariance
    once = problem.mask_noise(pushed(probe))
    spread, rest = covariance(once), y - value
    m, variance = problem.measured(y).double(), sigma.double().square()
    trace, squared = _dot(probe, once), _dot(probe, pushed(spread))
    residual = _dot(rest, rest)
    own = 4 * variance * _dot(rest, covariance(rest)) + 4 * variance**2 * squared
    own = own - 2 * variance**2 * problem.operator.covariance_square(y).double()
    probed = 4 * variance**2 * (_dot(once, spread) + squared)
    sure = residual + 2 * variance * trace - m * variance
    sums = (sure, own + probed, variance * trace, m)
    return Sure(*(float(part.sum()) for part in sums))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Per image, (B,), in double precision."""
    return (a.double() * b.double()).flatten(1).sum(1)
