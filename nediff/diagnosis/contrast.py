"""Do the images come at all contrasts? What lets a network learn the noise levels below σ_n.

The assumption is p(αx + μ) ≈ p(x). Then the contrast of patches, S = ‖patch − its mean‖²/n, is
spread over orders of magnitude. How far is told by a ratio of moments that noise does not bias:

    R = E[S²] / E[S]²,    score = 1 − 1/R = Var(S) / E[S²]

0 if all patches have the same contrast; 0.57 if contrasts (square roots of S) are spread evenly
over one decade, 0.78 over two, 0.86 over three; 1 in the limit of a heavy tail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from nediff.noise.blocks import GROUPS, SIDE, Blocks, Floats
from nediff.noise.floor import jackknife

PLAUSIBLE = 0.55
"""A score from here: contrasts over about a decade."""
EDGES: Floats = np.linspace(-4, 0, 41)
"""Of log₁₀ of the contrast, for the histogram."""
_COUNT = SIDE**2 - 1  # values of a patch without its mean
_DETECTED = 3.0  # standard deviations of the noise's own energy
_KNOWN = 0.05  # of the noise's variance, which is known no better: less signal may be none
_MOST_DECADES = 6.0


@dataclass(frozen=True)
class Contrast:
    """The spread of patch contrasts; ``score`` in [0, 1] is None where noise drowns all.

    ``decades``: of contrasts spread evenly that would have the same score. ``histogram``: shares
    of patches by log₁₀ √S in bins EDGES; ``below``: the share whose contrast is lost in the noise,
    that is below ``limit``. ``rms``: √E[S], the contrast of the images without noise.
    """

    score: float | None
    error: float
    decades: float | None
    rms: float
    histogram: tuple[float, ...]
    below: float
    limit: float

    @property
    def plausible(self) -> bool:
        """Whether the images may be taken to come at all contrasts."""
        return self.score is not None and self.score >= PLAUSIBLE


def contrast_of(blocks: Blocks, variance: Floats) -> Contrast:
    """``variance`` (n,): of the noise of each block."""
    energy = blocks.energy[:, 1:].mean(axis=1, dtype=np.float64)
    first, second = _moments(energy, variance)
    sums = np.stack([_by_group(blocks, values) for values in (first, second, np.ones(len(first)))])
    total, left_out = sums.sum(axis=1), (sums.sum(axis=1)[:, None] - sums)[:, sums[2] > 0]
    rms = math.sqrt(max(total[0] / total[2], 0))
    spread = float(jackknife(left_out[0] / np.maximum(left_out[2], 1)))
    least = max(3 * spread, _KNOWN * float(np.mean(variance)))
    drowned = not total[0] / total[2] > least
    score = None if drowned else _score(*total)
    error = float(jackknife(np.array([_score(*column) for column in left_out.T])))
    limit = float(np.mean(variance)) * _DETECTED * math.sqrt(2 / _COUNT)
    shares, below = _histogram(first, limit)
    decades = None if score is None else _decades(score)
    return Contrast(score, error, decades, rms, shares, below, math.sqrt(limit))


def _moments(energy: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Unbiased S and S² of each block from the mean of its n squared noisy coefficients.

    For energy E = mean (s + noise)²: E[E] = S + σ², E[E²] = (S + σ²)² + (2σ⁴ + 4Sσ²)/n.
    """
    first = energy - variance
    second = (
        np.square(energy)
        - (2 + 4 / _COUNT) * variance * first
        - (1 + 2 / _COUNT) * np.square(variance)
    )
    return first, second


def _by_group(blocks: Blocks, values: Floats) -> Floats:
    return np.bincount(blocks.group, values, minlength=GROUPS).astype(np.float64)


def _score(first: float, second: float, count: float) -> float:
    if first <= 0 or second <= 0:
        return 0.0
    return float(np.clip(1 - first**2 / (second * count), 0, 1))


def _decades(score: float) -> float:
    """d, for which energies spread evenly in logarithm over 2d decades have this score."""

    def excess(decades: float) -> float:
        span = 2 * decades * math.log(10)
        ratio = span / 2 / math.tanh(span / 2)  # E[S²]/E[S]² of a log-uniform S
        return 1 - 1 / ratio - score

    if excess(1e-3) >= 0:
        return 0.0
    return (
        _MOST_DECADES if excess(_MOST_DECADES) <= 0 else float(brentq(excess, 1e-3, _MOST_DECADES))
    )


def _histogram(energies: Floats, limit: float) -> tuple[tuple[float, ...], float]:
    seen = energies > limit
    logs = 0.5 * np.log10(energies[seen])
    counts, _ = np.histogram(np.clip(logs, EDGES[0], EDGES[-1]), EDGES)
    return tuple(float(c) for c in counts / len(energies)), float(1 - seen.mean())
