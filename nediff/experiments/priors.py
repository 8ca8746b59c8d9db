"""Isotropic priors whose MMSE denoisers are known by one quadrature in the radius.

For an isotropic prior, p(x) = p₁(‖x‖) on ℝᵈ, and y = x + σ η, the direction of x given its
radius r is von Mises-Fisher around y with concentration c = r ‖y‖/σ², whatever p₁ is. Hence
the posterior of the radius and the MMSE denoiser (of which only the length is unknown)

    f(r | y, σ) ∝ p₁(r) r^(d−1) exp(−r²/2σ²) c^(−ν) I_ν(c),     ν = d/2 − 1
    ‖D(y, σ)‖ = E_f[r A(c)],                                    A = I_(ν+1)/I_ν

(d = 1: the even priors, A = tanh). In the units of the noise, u = r/σ and t = ‖y‖/σ, the
likelihood depends on t alone: rescaling y and σ together changes only p₁(σu).

The integrals are composite Gauss-Legendre sums over panels that shrink geometrically towards
the origin, where priors may have a core much smaller than σ, or an integrable pole. Their
error is below ACCURACY × max(‖y‖, σ) for every prior here: tests/test_theorem.py.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ACCURACY = 1e-8
NODES = 24  # Gauss-Legendre nodes of a panel
TAIL = 13.0  # the integrals end this many σ beyond y: exp(−TAIL²/2) = 2e-37


@dataclass(frozen=True)
class Prior(ABC):
    """p(x) ∝ p₁(‖x‖) on ℝᵈ, d = ``dimension``; p₁ need not be normalised, nor normalisable."""

    dimension: int

    @property
    @abstractmethod
    def name(self) -> str:
        """A few words for tables."""

    @abstractmethod
    def log_density(self, r: Array) -> Array:
        """log p₁(r), up to a constant."""

    @abstractmethod
    def regular_score(self, r: Array) -> Array:
        """d log(p₁ r^b) / dr: the score without the pole, which may cancel against another."""

    def score(self, r: Array) -> Array:
        """d log p₁ / dr."""
        return np.asarray(self.regular_score(r) - self.pole / r)

    @property
    def pole(self) -> float:
        """b where p₁ ~ r^(−b) at the origin; 0 for a prior that is smooth there."""
        return 0.0

    @property
    def reach(self) -> float:
        """The radius of the outermost mode: the integrals must get there."""
        return 0.0

    @property
    def width(self) -> float:
        """The width of the narrowest mode away from the origin: panels must not be wider."""
        return math.inf


@dataclass(frozen=True)
class PowerLaw(Prior):
    """p₁(r) = (s² + r²)^(−β/2) exp(−r²/2R²): a power law with core s and outer scale R.

    s > 0, R = ∞, β > d: Student's heavy tail, a proper prior. s > 0, R < ∞: proper for any β.
    s = 0, R = ∞: the exact power law r^(−β), positively homogeneous and improper; its posterior
    exists for β < d. It is the paper's q(x) = ‖x‖^(−β).
    """

    exponent: float
    core: float = 0.0
    cutoff: float = math.inf

    @property
    def name(self) -> str:
        end = "" if math.isinf(self.cutoff) else f", cutoff {self.cutoff:g}"
        return f"power law, β = {self.exponent:g}, core {self.core:g}{end}"

    def log_density(self, r: Array) -> Array:
        if self.core == 0:
            law = -self.exponent * np.log(r)
        else:
            law = -0.5 * self.exponent * np.log(self.core**2 + r**2)
        return np.asarray(law - 0.5 * (r / self.cutoff) ** 2)

    def regular_score(self, r: Array) -> Array:
        law = 0.0 if self.core == 0 else -self.exponent * r / (self.core**2 + r**2)
        return np.asarray(law - r / self.cutoff**2)

    @property
    def pole(self) -> float:
        return self.exponent if self.core == 0 else 0.0


@dataclass(frozen=True)
class ScaleMixture(Prior):
    """p(x) = Σ_k w_k N(x; 0, v_k I); one component is the Gaussian."""

    variances: tuple[float, ...]
    weights: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.variances) != len(self.weights):
            raise ValueError("one weight for each variance")

    @property
    def name(self) -> str:
        if len(self.variances) == 1:
            return f"Gaussian, v = {self.variances[0]:g}"
        return f"scale mixture, v = {', '.join(f'{v:g}' for v in self.variances)}"

    def _components(self, r2: Array, added: float = 0.0) -> tuple[Array, Array]:
        """log of the sum of components with variances v_k + added, and their shares (…, k)."""
        v = np.asarray(self.variances) + added
        terms = np.log(self.weights) - 0.5 * self.dimension * np.log(v) - r2[..., None] / (2 * v)
        total = np.logaddexp.reduce(terms, axis=-1)
        return total, np.exp(terms - total[..., None])

    def log_density(self, r: Array) -> Array:
        return self._components(r**2)[0]

    def regular_score(self, r: Array) -> Array:
        return np.asarray(-r * (self._components(r**2)[1] / self.variances).sum(-1))

    def closed_form(self, y: float, sigma: float) -> float:
        """‖D(y, σ)‖ = ‖y‖ Σ_k P(k | y) v_k/(v_k + σ²)."""
        share = self._components(np.asarray(y * y), sigma**2)[1]
        v = np.asarray(self.variances)
        return float(y * (share * v / (v + sigma**2)).sum())


@dataclass(frozen=True)
class TwoModes(Prior):
    """p(x) = ½ N(x; c, v) + ½ N(x; −c, v) on the line: even, smooth, far from log-concave."""

    centre: float
    variance: float

    def __post_init__(self) -> None:
        if self.dimension != 1:
            raise ValueError("TwoModes is a prior on the line: dimension 1")

    @property
    def name(self) -> str:
        return f"two modes, ±{self.centre:g}, v = {self.variance:g}"

    def log_density(self, r: Array) -> Array:
        to_right, to_left = (r - self.centre) ** 2, (r + self.centre) ** 2
        return np.logaddexp(-to_right / (2 * self.variance), -to_left / (2 * self.variance))

    def regular_score(self, r: Array) -> Array:
        pull = np.tanh(r * self.centre / self.variance)
        return np.asarray((self.centre * pull - r) / self.variance)

    def closed_form(self, y: float, sigma: float) -> float:
        """D(y, σ) = (v y + σ² c tanh(c y/(v + σ²))) / (v + σ²)."""
        total = self.variance + sigma**2
        pull = self.centre * math.tanh(self.centre * y / total)
        return (self.variance * y + sigma**2 * pull) / total

    @property
    def reach(self) -> float:
        return self.centre

    @property
    def width(self) -> float:
        return math.sqrt(self.variance)


@lru_cache(maxsize=1)
def rule() -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(NODES)
    return (x + 1) / 2, w / 2


@dataclass(frozen=True)
class Grid:
    """Panels of width ``step`` up to ``end``; near 0, ``octave`` of them from each u to 2u.

    ``order`` > 0: the integrand grows like u^(order − 1) from the origin, so what lies below
    the first panel, at 10^(−14/order), is 1e-14 of the whole.
    """

    step: float
    end: float
    order: float
    octave: int

    @classmethod
    def of(cls, prior: Prior, t: float, sigma: float, beta: float = 0.0) -> Grid:
        """For the posterior at ‖y‖ = tσ, and for that of the reference prior r^(−β).

        Within a panel the likelihood, ~ u^(d−1) exp(−(u − t)²/2), changes by e¹² or so at most.
        """
        order = prior.dimension - max(prior.pole, beta, 0.0)
        if order <= 0:
            raise ValueError("no posterior exists: the pole at the origin has infinite mass")
        end = max(math.hypot(t, math.sqrt(prior.dimension)), prior.reach / sigma) + TAIL
        step = min(1.0, 12 / max(t, end - t), prior.width / sigma)
        return cls(step, end, min(order, 1.0), math.ceil((prior.dimension + abs(beta)) / 12))


@lru_cache(maxsize=512)
def nodes(grid: Grid) -> tuple[Array, Array]:
    """Nodes u and weights w, both (panels, NODES)."""
    ratio = 2.0 ** (1 / grid.octave)
    turn = min(grid.step / (ratio - 1), grid.end / 2)  # from here on, the panels are uniform
    graded = math.ceil(14 / grid.order / math.log10(ratio))
    uniform = np.linspace(turn, grid.end, math.ceil((grid.end - turn) / grid.step) + 1)
    edges = np.concatenate([turn * ratio ** np.arange(-graded, 0.0), uniform])
    x, w = rule()
    size = np.diff(edges)[:, None]
    return edges[:-1, None] + size * x, size * w


def alignment(c: Array, dimension: int) -> Array:
    """A(c) = I_(d/2)(c)/I_(d/2−1)(c): the mean cosine between x and y, at c = r‖y‖/σ²."""
    from scipy.special import ive

    nu = dimension / 2 - 1
    small = c < 1e-3
    safe = np.where(small, 1.0, c)
    series = c / dimension * (1 - c**2 / (dimension * (dimension + 2)))
    return np.where(small, series, ive(nu + 1, safe) / ive(nu, safe))


def log_likelihood(u: Array, t: float, dimension: int) -> Array:
    """log of u^(d−1) ∫ exp(−‖uθ − t e‖²/2) dθ over directions θ, up to a constant."""
    from scipy.special import gammaln, ive

    nu = dimension / 2 - 1
    c = u * t
    small = c < 1e-3
    safe = np.where(small, 1.0, c)
    large = np.log(ive(nu, safe)) - nu * np.log(safe)
    series = -nu * math.log(2) - gammaln(nu + 1) + c**2 / (2 * dimension) - c
    return np.asarray(
        (dimension - 1) * np.log(u) - 0.5 * (u - t) ** 2 + np.where(small, series, large)
    )


def log_posterior(prior: Prior, t: float, sigma: float, grid: Grid) -> Array:
    """log f(u | t, σ) up to a constant, u = r/σ, t = ‖y‖/σ (the module's first equation)."""
    u, _ = nodes(grid)
    return prior.log_density(sigma * u) + _log_likelihood_at(t, prior.dimension, grid)


@lru_cache(maxsize=512)
def _log_likelihood_at(t: float, dimension: int, grid: Grid) -> Array:
    return log_likelihood(nodes(grid)[0], t, dimension)


def posterior(prior: Prior, t: float, sigma: float, grid: Grid) -> Array:
    """Probabilities of the nodes of ``grid``: they sum to one."""
    log_f = log_posterior(prior, t, sigma, grid)
    mass = np.exp(log_f - log_f.max()) * nodes(grid)[1]
    return np.asarray(mass / mass.sum())


def length(t: float, dimension: int, grid: Grid) -> Array:
    """g(u) = u A(ut) at the nodes: the mean of x along y, given the radius."""
    u, _ = nodes(grid)
    return u * alignment(u * t, dimension)


def denoise(prior: Prior, y: float, sigma: float) -> float:
    """‖D(y, σ)‖ for ‖y‖ = y ≥ 0: the module's second equation."""
    t = y / sigma
    grid = Grid.of(prior, t, sigma)
    f = posterior(prior, t, sigma, grid)
    return float(sigma * (f * length(t, prior.dimension, grid)).sum())
