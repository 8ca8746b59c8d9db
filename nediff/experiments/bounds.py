"""How far an MMSE denoiser is from scale equivariance, and the bounds of the theorem.

    error = ‖D(y, σ') − (σ'/σ) D(σy/σ', σ)‖ ≤ ε          (Theorem 3.1 of the paper)

Notation of its proof. q(x) = ‖x‖^(−β) is a positively homogeneous *reference*, p̃(x | y, σ) the
posterior it gives, κ_σ(y) = E‖∇log p₁ − ∇log q‖² under p(x | y, σ), the Fisher divergence, and
ψ_σ = 1/K where ∇² log p̃(x | y, σ) ⪯ −K I. Readings of ε, all from `fisher_bound`:

    printed     ε² = (ψ_σ' κ_σ'(y))² + (σ'/σ)² (ψ_σ κ_σ(y))²
    corrected   ε  = ψ_σ' √κ_σ'(y) + (σ'/σ) ψ_σ √κ_σ(σy/σ')            (METHOD.md §2)

and the corrected one without its root, its sum, or its shifted argument, to see that each of
the three corrections is needed. (ψκ is a pure number and cannot bound a length: whether the
printed bound "holds" depends on the unit of x. W₂ ≤ √κ/K is Talagrand's inequality followed by
the logarithmic Sobolev one; the mean moves by at most W₂; two errors add by the triangle
inequality; and D(σy/σ', σ) is a mean over p(x | σy/σ', σ), not over p(x | y, σ).)

What the assumptions leave (derived here; not in the paper, nor in METHOD.md):

1. log q twice differentiable on all of ℝᵈ, as the proof asks of its class 𝒫, leaves only the
   constants, β = 0. Likewise U = −log p twice differentiable at the origin makes the factor
   p₂(x/‖x‖) constant: the theorem speaks of isotropic priors, and D̃(y, σ) = y.
2. For β = 0, K = 1/σ² and ψ_σ = σ². Then D − y = σ² E[∇log p₁ | y] (Tweedie), so the corrected
   bound is Jensen's inequality: true for every smooth prior and every σ; no σ* is needed.
3. For β ≠ 0 the posterior p̃ is not log-concave near 0 (the Hessian of log q has the eigenvalues
   ±β/r² for d > 1, and β/r² on the line; for β < 0 on the line the density vanishes at 0 and has
   a mode on either side), so K > 0 does not exist and METHOD.md's ψ says nothing. Moreover
   E[β²/r²] = ∞ for d ≤ 2 whenever p(0) > 0, so that κ is infinite; and for β ≥ d, that is for
   the q of *every* proper power-law tail, p̃(x | y, σ) is not normalisable at all.

What is right for 0 ≠ β < d. Given the radius, the direction has the same law under p and p̃, so
D − D̃ is a difference of means of g(r) = r A(r‖y‖/σ²) under two laws f, f̃ of the radius. With
the Stein kernel τ ≥ 0 of f̃ for g, an integration by parts gives, exactly,

    τ(r) = ∫_r^∞ (g − E_f̃ g) f̃ / f̃(r)
    ‖D‖ − ‖D̃‖ = E_f[τ Δ],     Δ = d log p₁/dr + β/r

hence two bounds that need no log-concavity, `stein_constant` and `stein_distance`:

    |‖D‖ − ‖D̃‖| ≤ √E_f[τ²Δ²] ≤ (sup τ) √κ

so ψ = sup τ (for β = 0, τ = σ² A and sup τ = σ², as before), and the first form is finite also
for d ≤ 2, because τ vanishes at the origin as fast as Δ grows.

All functions work in the units of the noise (t = ‖y‖/σ, see `priors`): τ is in σ², κ in 1/σ².
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from nediff.experiments.priors import (
    ACCURACY,
    NODES,
    Array,
    Grid,
    PowerLaw,
    Prior,
    denoise,
    length,
    log_posterior,
    nodes,
    posterior,
    rule,
)


@dataclass(frozen=True)
class Case:
    """The theorem's quantifiers: a prior, ‖y‖, the level σ learned at, the level σ' used at."""

    prior: Prior
    y: float
    sigma: float
    sigma_prime: float

    @property
    def t(self) -> float:
        """‖y‖/σ' = ‖σy/σ'‖/σ: both sides of the theorem see the same one."""
        return self.y / self.sigma_prime


@lru_cache(maxsize=8192)
def _denoise(prior: Prior, t: float, sigma: float) -> float:
    """‖D(tσ, σ)‖/σ."""
    return denoise(prior, t * sigma, sigma) / sigma


def rescaling_error(case: Case) -> float:
    """‖D(y, σ') − (σ'/σ) D(σy/σ', σ)‖; D is along y for an isotropic prior."""
    at_prime = _denoise(case.prior, case.t, case.sigma_prime)
    return case.sigma_prime * abs(at_prime - _denoise(case.prior, case.t, case.sigma))


def holds(case: Case, error: float, bound: float) -> bool:
    """error ≤ bound, up to the accuracy of the quadrature."""
    return error <= bound + 2 * ACCURACY * max(case.y, case.sigma_prime)


def log_concavity(beta: float, sigma: float) -> float | None:
    """K > 0 with ∇² log p̃(x | y, σ) ⪯ −K I for all x: 1/σ² for β = 0, else there is none."""
    return 1 / sigma**2 if beta == 0 else None


def _gap(prior: Prior, sigma: float, beta: float, grid: Grid) -> Array:
    """Δ = d log p₁/du + β/u, the difference of the scores of p and p̃, u = r/σ."""
    u, _ = nodes(grid)
    return sigma * prior.regular_score(sigma * u) + (beta - prior.pole) / u


@lru_cache(maxsize=8192)
def fisher(prior: Prior, t: float, sigma: float, beta: float = 0.0) -> float:
    """σ²κ_σ = E[Δ²] under p(x | y, σ), ‖y‖ = tσ. At the origin Δ² ~ (β − pole)²/u² and the
    density is ~ u^(d − 1 − pole), so that it is infinite for d − pole ≤ 2 unless β = pole."""
    if beta != prior.pole and prior.dimension - prior.pole <= 2:
        return math.inf
    grid = Grid.of(prior, t, sigma)
    square = _gap(prior, sigma, beta, grid) ** 2
    return float((posterior(prior, t, sigma, grid) * square).sum())


@lru_cache(maxsize=8192)
def closest_exponent(prior: Prior, t: float, sigma: float) -> float:
    """β of the power law closest to p₁: argmin κ = −E[(d log p₁/du)/u] / E[1/u²] (the argmin of
    the proof, over all powers); the pole where any other is infinitely far."""
    if prior.dimension - prior.pole <= 2:
        return prior.pole
    grid = Grid.of(prior, t, sigma)
    f, u = posterior(prior, t, sigma, grid), nodes(grid)[0]
    return -float((f * _gap(prior, sigma, 0.0, grid) / u).sum() / (f / u**2).sum())


def fisher_bound(
    case: Case,
    *,
    root: bool = True,
    added: bool = True,
    shifted: bool = True,
    beta: float = 0.0,
) -> float:
    """ε of the theorem with the reference ‖x‖^(−β); all three switches off: as printed.

    ``root``: √κ, not κ. ``added``: a sum, not the root of a sum of squares. ``shifted``: κ_σ at
    σy/σ', not at y. For β = 0, ψ = 1/K = σ²; else ψ = sup τ, and ∞ where p̃ does not exist.
    """
    prior, sigma, sigma_prime = case.prior, case.sigma, case.sigma_prime
    here = fisher(prior, case.t, sigma_prime, beta)
    there = fisher(prior, case.t if shifted else case.y / sigma, sigma, beta)
    psi = stein_constant(prior.dimension, beta, case.t)
    if root:  # ψ_σ'√κ_σ' and (σ'/σ) ψ_σ √κ_σ, with ψ in units of σ² and κ of 1/σ²
        first, second = sigma_prime * psi * math.sqrt(here), sigma_prime * psi * math.sqrt(there)
    else:  # ψκ has no unit
        first, second = psi * here, sigma_prime / sigma * psi * there
    return first + second if added else math.hypot(first, second)


PRINTED = {"root": False, "added": False, "shifted": False}


@lru_cache(maxsize=1)
def _cumulative() -> Array:
    """C with (C @ h)_i = ∫_0^(x_i) of the polynomial through h at the nodes x on [0, 1]."""
    from numpy.polynomial import legendre

    x, _ = legendre.leggauss(NODES)
    to_coefficients = np.linalg.inv(legendre.legvander(x, NODES - 1))
    integrals = [legendre.legval(x, legendre.legint(row, lbnd=-1)) for row in np.eye(NODES)]
    return np.asarray(np.stack(integrals, 1) @ to_coefficients / 2)


def _running(log_f: Array, h: Array, size: Array, seed: float) -> Array:
    """∫ h f from the left end to each node, divided by f there.

    Panel by panel, each relative to its own largest f, so that tails which underflow keep their
    ratio. ``seed`` is the ratio at the left end: what lies beyond it.
    """
    cumulative, (_, w) = _cumulative(), rule()
    out = np.empty_like(h)
    before, scale = seed, float(log_f[0, 0])
    for k in range(len(h)):
        top = float(log_f[k].max())
        f = np.exp(log_f[k] - top)
        before *= math.exp(scale - top)
        out[k] = (before + size[k] * (cumulative @ (h[k] * f))) / f
        before, scale = before + size[k] * float(w @ (h[k] * f)), top
    return out


@lru_cache(maxsize=4096)
def stein_kernel(dimension: int, beta: float, t: float, grid: Grid) -> Array:
    """τ at the nodes of ``grid``, in units of σ²; the posterior of r^(−β) needs β < d.

    Below the mean of g it is integrated from 0, above it from ∞, so that neither tail is a
    difference of large numbers. Beyond the ends, τ ~ u E[g]/(d − β) and (g − E[g])/(−log f̃)'.
    """
    reference = PowerLaw(dimension, beta)
    log_f, g = log_posterior(reference, t, 1.0, grid), length(t, dimension, grid)
    mean = float((posterior(reference, t, 1.0, grid) * g).sum())
    u, w = nodes(grid)
    size = w.sum(1)
    near, far = float(u[0, 0]), float(u[-1, -1])
    at_zero = mean * near / (dimension - beta)
    slope = far - t * float(g[-1, -1]) / far - (dimension - 1 - beta) / far  # −(log f̃)'
    at_end = float(g[-1, -1] - mean) / slope
    k = int((g[:, 0] < mean).sum())  # panel k − 1 has the mean of g in it, or just after it
    left = _running(log_f[:k], mean - g[:k], size[:k], at_zero)
    flipped = np.s_[: k - 2 if k > 1 else None : -1, ::-1]
    right = _running(log_f[flipped], (g - mean)[flipped], size[flipped[0]], at_end)[::-1, ::-1]
    middle = np.where(g[k - 1] < mean, left[-1], right[0])
    return np.concatenate([left[:-1], middle[None], right[1:]])


@lru_cache(maxsize=8192)
def stein_constant(dimension: int, beta: float, t: float) -> float:
    """ψ/σ² = sup τ: 1 for β = 0; ∞ for β ≥ d, where the reference has no posterior."""
    if beta == 0:
        return 1.0
    if beta >= dimension:
        return math.inf
    grid = Grid.of(PowerLaw(dimension, beta), t, 1.0, beta)
    within = nodes(grid)[0] < grid.end - 3  # the value assumed at the end is forgotten by then
    return max(1.0, float(stein_kernel(dimension, beta, t, grid)[within].max()))


@lru_cache(maxsize=65536)
def stein_distance(prior: Prior, t: float, sigma: float, beta: float) -> float:
    """√E_f[τ²Δ²] in units of σ, for β < d: it bounds |‖D(y, σ)‖ − ‖D̃(y, σ)‖|, ‖y‖ = tσ."""
    grid = Grid.of(prior, t, sigma, beta)
    tau = stein_kernel(prior.dimension, beta, t, grid)
    moved = tau * _gap(prior, sigma, beta, grid)
    return math.sqrt(float((posterior(prior, t, sigma, grid) * moved**2).sum()))


def stein_bound(case: Case, beta: float) -> float:
    """ε = σ' (√E_f'[τ²Δ²] + √E_f[τ²Δ²]): true for any β < d, in any dimension."""
    here = stein_distance(case.prior, case.t, case.sigma_prime, beta)
    return case.sigma_prime * (here + stein_distance(case.prior, case.t, case.sigma, beta))


def best_stein_bound(case: Case, betas: Sequence[float]) -> tuple[float, float]:
    """The smallest of the bounds over references r^(−β), all of them true, and its β."""
    return min((stein_bound(case, beta), beta) for beta in betas)
