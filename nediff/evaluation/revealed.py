"""Calibration without the truth: what noisy measurements reveal of the error of samples.

A recorrupted pair (METHOD.md §5, law 3) splits one measurement y = Ax + σ η in two,

    y₁ = α (y + τσ b),   y₂ = α (y − σ b/τ),   b ~ N(0, I),   α = 1/√(1 + τ²),

whose noises are independent. y₁ is a measurement of αx with noise σ exactly, so samples can be
drawn from it; y₂ is an unbiased judge of them, (A x̄ − y₂)² − α²σ²(1 + 1/τ²) being on average
the squared error of their mean x̄, even in classes chosen by looking at y₁. (SURE is not: with it,
pixels are judged by the same noise that they were chosen by.) Where noise is coloured, b is too,
and the variance that is subtracted is that of its channel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nediff.errors import NediffError
from nediff.problem import Problem
from nediff.randomness import Draws, derive_key
from nediff.restorer import Restorer

TAU = 1.0
"""The noise of y₂ is that of the error estimate, √(1 + 1/τ²) σ; the contrast of y₁ is α. With
τ = 1 they are 1.4 σ and 0.71."""
MOST_VALUES = 2**15
"""Of an image, chosen at random."""
CLASSES = 10
SURELY, SURELY_IN_ALL = 5.0, 3.0
"""Standard errors, which are themselves estimated from few images: of the worst of the classes, and
of all values together."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """Some measured values of one image, (m,) each, in units of its noise σ before α.

    So images of different noise count alike, and a floor of σ² is one number for all of them.
    """

    sorting: Values
    """Variance of one half of the samples, to sort by …"""
    variance: Values
    """… and of the other half, to judge."""
    error: Values
    """The squared error of what the samples are spread about: right on average, it may be < 0."""
    true_error: Values | None = None
    """The same by the truth, where it is known."""


def together(pairs: Sequence[Pair]) -> Pair:
    """The values of several parts as those of one image."""
    truths = [pair.true_error for pair in pairs if pair.true_error is not None]
    return Pair(
        np.concatenate([pair.sorting for pair in pairs]),
        np.concatenate([pair.variance for pair in pairs]),
        np.concatenate([pair.error for pair in pairs]),
        np.concatenate(truths) if truths else None,
    )


@dataclass(frozen=True)
class SpreadClass:
    """Values of about the same predicted variance."""

    variance: float
    """Predicted: mean over samples, in units of σ²."""
    ratio: float
    """error²/variance, by noisy measurements: 1 is right, above it error bars are too narrow."""
    ratio_error: float
    """Standard error of that, from image to image."""
    true_ratio: float | None = None
    """By the truth, where it is known."""


@dataclass(frozen=True)
class Revealed:
    """Samples judged by noisy measurements."""

    images: int
    samples: int
    ratio: float
    ratio_error: float
    true_ratio: float | None
    classes: list[SpreadClass]
    """By predicted variance, the smallest first."""

    @property
    def off(self) -> float:
        """How far error²/variance is from 1, to either side alike; a negative one is far off."""
        return abs(math.log(max(self.ratio, 1e-3)))

    @property
    def impossible(self) -> bool:
        """Whether errors are surely negative somewhere, as they are if σ is said too large."""
        in_all = self.ratio + SURELY_IN_ALL * self.ratio_error < 0
        return in_all or any(c.ratio + SURELY * c.ratio_error < 0 for c in self.classes)


def draw_pair(
    restorer: Restorer,
    y: Tensor,
    sigma: float,
    n: int,
    name: str,
    seed: int,
    truth: Tensor | None = None,
) -> Pair:
    """Split the measurement y (C, h, w) of one image in two, sample from one, judge by the other.

    ``sigma`` is its noise, ``truth`` A x, shaped like the measurement as the operator sees it.
    """
    alpha = 1 / math.sqrt(1 + TAU**2)
    whole, problem = restorer.measured(y)
    noise = Draws(seed, f"pair {name}", 1, y.device).normal_like(y[None])[0]
    b = problem.noise(problem.lift(noise[None].to(whole.device)))
    first = alpha * (y + TAU * sigma * _stored(b, problem).to(y.device))
    second = alpha * (whole - sigma / TAU * b)
    sampler = _of_contrast(restorer, alpha)
    samples = sampler.sample(first, n, derive_key("pair", seed, name), sigma).to(whole.device)
    drawn = torch.stack([problem.A(sample[None])[0] for sample in samples])
    chosen = _some_values(problem, whole, seed, name)

    def values(image: Tensor) -> Values:
        """(..., C, h, w) → (..., m)"""
        found: Values = image.flatten(-3)[..., chosen.to(image.device)].double().cpu().numpy()
        return found

    of_noise = problem.operator.noise_variance(whole)
    return judge(
        values(drawn) / (alpha * sigma),
        values(second[0]) / (alpha * sigma),
        values(of_noise[0]) * (1 + 1 / TAU**2),
        None if truth is None else values(truth) / sigma,
    )


def _of_contrast(restorer: Restorer, alpha: float) -> Restorer:
    """Its correction as it is for images of α times the contrast, whose errors are α as large.

    The floor of a correction is one of full contrast; the factor does not depend on it.
    """
    found = restorer.correction
    if found is None:
        return restorer
    lower = tuple(replace(level, floor=alpha**2 * level.floor) for level in found.lower)
    there = copy(restorer)
    there.correction = replace(found, floor=alpha**2 * found.floor, lower=lower)
    return there


def _stored(b: Tensor, problem: Problem) -> Tensor:
    """Noise (1, C, h, w) as the instrument stores it: a raw mosaic has one channel."""
    return b[0].sum(0, keepdim=True) if problem.raw else b[0]


def _some_values(problem: Problem, y: Tensor, seed: int, name: str) -> Tensor:
    """Numbers of measured values, at most `MOST_VALUES`."""
    there = problem.mask_noise(torch.ones_like(y)).flatten().nonzero().flatten()
    if len(there) <= MOST_VALUES:
        return there
    generator = torch.Generator().manual_seed(derive_key("values", seed, name) % 2**63)
    return there[torch.randperm(len(there), generator=generator)[:MOST_VALUES].to(there.device)]


def judge(samples: Values, target: Values, noise: Values | float, truth: Values | None) -> Pair:
    """Samples (n, m) against an unbiased target (m,) that has noise of variance ``noise``.

    The mean of k samples errs by their variance/k more than the mean of all there could be,
    which is the one that is judged.
    """
    half = len(samples) // 2
    sorting, judging = samples[:half], samples[half:]
    mean, variance = judging.mean(0), judging.var(0, ddof=1)
    more = variance / len(judging)
    return Pair(
        sorting.var(0, ddof=1),
        variance,
        np.square(target - mean) - noise - more,
        None if truth is None else np.square(truth - mean) - more,
    )


def summarise_pairs(pairs: Sequence[Pair], n: int) -> Revealed:
    """error²/variance over all values, and by class of predicted variance."""
    edges = _edges(pairs, CLASSES)
    found = [_sums(pair, edges) for pair in pairs]
    classes = []
    for k in range(CLASSES):
        sums = np.stack([each[:, k] for each in found])  # (images, 4)
        if sums[:, 1].sum() == 0:
            continue
        variance = sums[:, 1].sum() / sums[:, 0].sum()
        classes.append(SpreadClass(float(variance), *_ratio(sums, pairs[0])))
    overall = np.stack([each.sum(1) for each in found])
    return Revealed(len(pairs), n, *_ratio(overall, pairs[0]), classes)


def _edges(pairs: Sequence[Pair], classes: int) -> Values:
    """Between classes of equally many values."""
    spread = np.concatenate([pair.sorting for pair in pairs])
    edges: Values = np.quantile(spread, np.arange(1, classes) / classes)
    return edges


def _sums(pair: Pair, edges: Values) -> Values:
    """(number, Σ variance, Σ error, Σ true error) for each class, (4, classes)."""
    which = np.searchsorted(edges, pair.sorting)
    true = np.zeros_like(pair.error) if pair.true_error is None else pair.true_error
    weights = (np.ones_like(pair.error), pair.variance, pair.error, true)
    return np.stack([np.bincount(which, w, minlength=len(edges) + 1) for w in weights])


def _ratio(sums: Values, pair: Pair) -> tuple[float, float, float | None]:
    """Σ error / Σ variance of sums (images, 4), its standard error, and that by the truth."""
    _, variance, error, true = sums.T
    ratio = error.sum() / variance.sum()
    off = error - ratio * variance  # of each image; images are independent
    count = len(sums)
    spread = math.sqrt(count / (count - 1) * np.square(off).sum()) if count > 1 else math.inf
    known = None if pair.true_error is None else float(true.sum() / variance.sum())
    return float(ratio), float(spread / variance.sum()), known


def fit_correction(pairs: Sequence[Pair]) -> tuple[float, float]:
    """(factor, floor) of error² ≈ factor · variance + floor σ², from uncorrected samples.

    Least squares over classes of predicted variance, by their standard errors. Within a class
    the variances are means over many values, so that the chance in single ones (a variance of
    few samples is itself uncertain) does not flatten the slope. What chance could explain is
    left as it is: θ = (factor − 1, floor) with covariance C (jackknife over images) is
    multiplied by max(0, 1 − 2/θᵀC⁻¹θ), its length in standard errors being √2 by chance alone.
    """
    edges = _edges(pairs, 2 * CLASSES)
    sums = np.stack([_sums(pair, edges) for pair in pairs])  # (images, 4, classes)
    found = _fitted(sums)
    groups = np.arange(len(sums)) % min(len(sums), JACKKNIFE)
    if groups.max() == 0:
        raise NediffError("A correction needs at least two images (or parts) to be fitted.")
    others = np.stack([_fitted(sums[groups != k]) for k in range(groups.max() + 1)])
    off = others - others.mean(0)
    covariance = (len(others) - 1) / len(others) * off.T @ off + 1e-12 * np.eye(2)
    needed = found - (1.0, 0.0)
    surprise = float(needed @ np.linalg.solve(covariance, needed))
    factor, floor = (1.0, 0.0) + max(0.0, 1 - 2 / max(surprise, 1e-12)) * needed
    return float(factor), float(floor)


def _fitted(sums: Values) -> Values:
    """The same from sums (images, 4, classes), chance or not."""
    count, variance, error, _ = sums.sum(0)
    off = sums[:, 2] - error / variance * sums[:, 1]
    chance = np.sqrt(np.square(off).sum(0)) / count
    v, e = variance / count, error / count
    weight = 1 / np.square(np.hypot(chance, RELATIVE * v))
    factor, floor = _line(v, e, weight)
    if floor < 0:
        factor, floor = (weight * v * e).sum() / (weight * v * v).sum(), 0.0
    return np.array([np.clip(factor, *FACTORS), floor])


JACKKNIFE = 20
"""Groups of images, at most."""
RELATIVE = 0.03
"""No class is trusted to be described better than this."""
FACTORS = (0.05, 20.0)
"""A spread that is off by more than this is not for a correction to mend."""


def _line(x: Values, y: Values, weight: Values) -> tuple[float, float]:
    """Slope and height at zero of the weighted least-squares line."""
    total = weight.sum()
    mx, my = (weight * x).sum() / total, (weight * y).sum() / total
    slope = (weight * (x - mx) * (y - my)).sum() / (weight * np.square(x - mx)).sum()
    return float(slope), float(my - slope * mx)
