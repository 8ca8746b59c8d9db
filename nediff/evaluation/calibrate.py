"""Find out how far the spread of samples is off, from noisy images alone, and put it right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from nediff.correction import Conformal, Correction
from nediff.data import Measurements
from nediff.errors import NediffError
from nediff.evaluation.revealed import (
    Pair,
    Revealed,
    draw_pair,
    fit_correction,
    summarise_pairs,
)
from nediff.randomness import derive_key
from nediff.restorer import Restorer

Progress = Callable[[int, int], None]
Values = NDArray[np.float64]

SAMPLES = 6
"""Of each image: the chance in an error estimate is that of the noise, not of few samples."""
MOST_IMAGES = 256
"""Half of them to fit, half to report on …"""
MOST_PIXELS = 96
"""… and cut to this side where an image can be cut."""
FEWEST_IMAGES = 4
CONFORMAL_SAMPLES = 16
"""As `Restorer.summarise` draws unless told otherwise."""


@dataclass(frozen=True)
class Calibrated:
    """A correction, fitted on one half of the images, and figures from the other half."""

    correction: Correction
    before: Revealed
    after: Revealed


def uncorrected(restorer: Restorer) -> Restorer:
    """The same without a correction."""
    bare = Restorer(restorer.problem, restorer.denoiser, restorer.config, restorer.unmeasured)
    bare.sampler = restorer.sampler
    return bare


def corrected(restorer: Restorer, correction: Correction) -> Restorer:
    """The same with this correction."""
    right = uncorrected(restorer)
    right.correction = correction
    return right


def calibrate(
    restorer: Restorer, noisy: Measurements, seed: int = 0, progress: Progress | None = None
) -> Calibrated:
    """error² ≈ factor · variance + floor σ² for samples of ``noisy``, by recorrupted pairs.

    Every other image is fitted, the others judge. Needs no truth, and says nothing of what was
    not measured.
    """
    views = _views(noisy, restorer, seed)
    if len(views) < FEWEST_IMAGES:
        raise NediffError(
            f"Calibration needs at least {FEWEST_IMAGES} images (or parts of "
            f"{MOST_PIXELS} × {MOST_PIXELS} pixels), not {len(views)}."
        )
    fitting, judging = range(0, len(views), 2), range(1, len(views), 2)
    total, bare = len(fitting) + 2 * len(judging), uncorrected(restorer)
    sigma = restorer.problem.sigma

    def pairs(of: Restorer, which: Sequence[int], done: int) -> list[Pair]:
        found = []
        for k, i in enumerate(which):
            y, level = torch.from_numpy(views.image(i)), views.sigma_of(i, sigma)
            found.append(draw_pair(of, y, level, SAMPLES, views.name(i), seed))
            if progress is not None:
                progress(done + k + 1, total)
        return found

    factor, floor = fit_correction(pairs(bare, fitting, 0), sigma)
    correction = Correction(factor, floor, restorer.sampler)
    before = pairs(bare, judging, len(fitting))
    after = pairs(corrected(restorer, correction), judging, len(fitting) + len(judging))
    reports = [summarise_pairs(part, SAMPLES, sigma) for part in (before, after)]
    figures = {"fitted_images": len(fitting), "before": asdict(reports[0])}
    correction = replace(correction, found=figures | {"after": asdict(reports[1])})
    return Calibrated(correction, *reports)


def _views(noisy: Measurements, restorer: Restorer, seed: int) -> Measurements:
    """Some images, or some of their parts where any part is a measurement of its own."""
    rng = np.random.default_rng(derive_key("calibrate", seed))
    windows = list(noisy.windows)
    if restorer.problem.kind == "denoising":
        windows = [
            replace(w, top=w.top + top, left=w.left + left, height=h, width=x)
            for w in windows
            for top, h in _parts(w.height)
            for left, x in _parts(w.width)
        ]
    chosen = rng.permutation(len(windows))[:MOST_IMAGES]
    return noisy.with_windows([windows[i] for i in chosen])


def _parts(size: int) -> list[tuple[int, int]]:
    """(start, length) of parts of equal length, none over `MOST_PIXELS`."""
    count = -(-size // MOST_PIXELS)
    length = size // count
    return [(k * length, length) for k in range(count)]


def conformalise(
    restorer: Restorer,
    noisy: Measurements,
    clean: Measurements,
    seed: int = 0,
    progress: Progress | None = None,
) -> Conformal:
    """By how much intervals must be stretched to hold the share of true values they promise.

    Conformal risk control (Angelopoulos et al. 2022): with L_i(λ) the share of the pixels of
    image i outside its interval stretched by λ, the least λ with (Σ L_i(λ) + 1)/(N + 1) ≤ 1 − c
    keeps the expected share of a new image, exchangeable with these N, at c or more: whatever N.
    """
    needed, n = [], CONFORMAL_SAMPLES
    for i in range(len(noisy)):
        level = noisy.sigma_of(i, restorer.problem.sigma)
        posterior = restorer.summarise(noisy.image(i), n, derive_key("conformal", seed, i), level)
        needed.append(
            needed_stretch(clean.image(i), posterior.mean, posterior.lower, posterior.upper)
        )
        if progress is not None:
            progress(i + 1, len(noisy))
    promised = posterior.coverage
    stretch = risk_controlling(needed, 1 - promised)
    return Conformal(n, promised, stretch, len(noisy))


def needed_stretch(
    truth: NDArray[np.float32],
    mean: NDArray[np.float32],
    lower: NDArray[np.float32],
    upper: NDArray[np.float32],
) -> Values:
    """For each pixel, the factor by which its interval must grow about the mean to hold x."""
    off = truth.astype(np.float64) - mean
    side = np.where(off > 0, upper - mean, mean - lower)
    return np.sort((np.abs(off) / np.maximum(side, 1e-12)).ravel())


def risk_controlling(needed: Sequence[Values], risk: float) -> float:
    """The least λ with (Σ L_i(λ) + 1)/(N + 1) ≤ risk, L_i the share of needed_i above λ."""
    count = len(needed)
    if 1 / (count + 1) > risk:
        raise NediffError(
            f"Intervals for {1 - risk:.0%} of the true values need at least "
            f"{int(np.ceil(1 / risk)) - 1} pairs of noisy and clean images, not {count}."
        )

    def allowed(stretch: float) -> bool:
        outside = sum(1 - np.searchsorted(v, stretch, "right") / len(v) for v in needed)
        return bool((outside + 1) / (count + 1) <= risk)

    low, high = 0.0, max(float(values[-1]) for values in needed)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if allowed(middle) else (middle, high)
    return high
