"""Find out how far the spread of samples is off, from noisy images alone, and put it right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from nediff.correction import Conformal, Correction
from nediff.data import Measurements, Window
from nediff.errors import NediffError
from nediff.evaluation.revealed import (
    Pair,
    Revealed,
    draw_pair,
    fit_correction,
    summarise_pairs,
    together,
)
from nediff.randomness import derive_key
from nediff.restorer import Restorer, promised_coverage

Progress = Callable[[int, int], None]
Values = NDArray[np.float64]

SAMPLES = 6
"""Of each image: the chance in an error estimate is that of the noise, not of few samples."""
MOST_PARTS = 256
"""Half of them to fit, half to report on; a part is an image or …"""
MOST_PIXELS = 96
"""… where it can be cut, a piece of it, of at most this side."""
FEWEST_PARTS = 4
FEWEST_IMAGES = 4
"""In each half; with fewer, standard errors are from part to part."""
SURELY_WORSE = 3.0
"""Standard errors."""
CONFORMAL_SAMPLES = 16
"""As `Restorer.summarise` draws unless told otherwise."""


@dataclass(frozen=True)
class Calibrated:
    """A correction, fitted on one half of the images, and figures from the other half."""

    correction: Correction
    before: Revealed
    after: Revealed
    fitted: frozenset[str]
    """Names of the images that were fitted, none of which was judged (unless there is but one)."""

    @property
    def worse(self) -> bool:
        """Whether what was found with one half is surely no good for the other."""
        chance = SURELY_WORSE * self.after.ratio_error / max(self.after.ratio, 1e-3)
        return self.after.off > self.before.off + chance


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
    fitting, judging = split_in_half(_parts_of(noisy, restorer), seed)
    if len(fitting) + len(judging) < FEWEST_PARTS:
        raise NediffError(
            f"Calibration needs at least {FEWEST_PARTS} images (or parts of "
            f"{MOST_PIXELS} × {MOST_PIXELS} pixels), not {len(fitting) + len(judging)}."
        )
    total, bare = len(fitting) + 2 * len(judging), uncorrected(restorer)
    sigma = restorer.problem.sigma

    def pairs(of: Restorer, windows: Sequence[Window], done: int) -> list[Pair]:
        parts, found = noisy.with_windows(windows), []
        for i in range(len(parts)):
            y, level = torch.from_numpy(parts.image(i)), parts.sigma_of(i, sigma)
            found.append(draw_pair(of, y, level, SAMPLES, parts.name(i), seed))
            if progress is not None:
                progress(done + i + 1, total)
        return _by_image(found, windows)

    factor, floor = fit_correction(pairs(bare, fitting, 0))
    correction = Correction(factor, floor, restorer.sampler)
    judged = pairs(bare, judging, len(fitting))
    before = summarise_pairs(judged, SAMPLES)
    if before.impossible:
        raise NediffError(
            "These images differ from what is restored by less than their noise is said to be, so "
            "σ must be too large, or many pixels are cut off, and there is no telling what the "
            "error bars are off by. Give the right level with --sigma, or train with it. Nothing "
            "was changed."
        )
    judged_again = pairs(corrected(restorer, correction), judging, len(fitting) + len(judging))
    after = summarise_pairs(judged_again, SAMPLES)
    fitted = frozenset(window.source_name for window in fitting)
    figures = {"fitted_images": len(fitted), "before": asdict(before)}
    correction = replace(correction, found=figures | {"after": asdict(after)})
    return Calibrated(correction, before, after, fitted)


def split_in_half(parts: Sequence[Window], seed: int) -> tuple[list[Window], list[Window]]:
    """Some parts to fit and some to judge, at most `MOST_PARTS` in all, of different images.

    Parts of one image are alike, so no image is in both halves. Of a single image, the upper
    half is fitted and the lower one judges.
    """
    rng = np.random.default_rng(derive_key("calibrate", seed))
    images = sorted({part.source_name for part in parts})
    halves: tuple[list[Window], list[Window]] = ([], [])
    if len(images) == 1:
        in_order = sorted(parts, key=lambda part: (part.top, part.left))
        middle = len(in_order) // 2
        halves = in_order[:middle], in_order[middle:]
    else:
        half_of = {images[i]: k % 2 for k, i in enumerate(rng.permutation(len(images)))}
        for part in parts:
            halves[half_of[part.source_name]].append(part)
    fitting, judging = ([h[i] for i in rng.permutation(len(h))[: MOST_PARTS // 2]] for h in halves)
    return fitting, judging


def _by_image(pairs: Sequence[Pair], windows: Sequence[Window]) -> list[Pair]:
    """The values of all parts of an image together, so that chance is that from image to image.

    Of few images one could not tell; there parts are taken for independent.
    """
    of: dict[str, list[Pair]] = {}
    for pair, window in zip(pairs, windows, strict=True):
        of.setdefault(window.source_name, []).append(pair)
    if len(of) < FEWEST_IMAGES:
        return list(pairs)
    return [together(parts) for parts in of.values()]


def _parts_of(noisy: Measurements, restorer: Restorer) -> list[Window]:
    """The images, or their parts where any part is a measurement of its own."""
    if restorer.problem.kind != "denoising":
        return list(noisy.windows)
    return [
        replace(w, top=w.top + top, left=w.left + left, height=h, width=x)
        for w in noisy.windows
        for top, h in _parts(w.height)
        for left, x in _parts(w.width)
    ]


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
    ``restorer`` must know nothing of these images: neither trained nor corrected by them. Only
    images of its own noise level count, since only there are intervals stretched.
    """
    needed, n, problem = [], CONFORMAL_SAMPLES, restorer.problem
    alike = _of_own_level(problem.sigma, noisy)
    for done, i in enumerate(alike, 1):
        key = derive_key("conformal", seed, i)
        posterior = restorer.summarise(noisy.image(i), n, key, problem.sigma)
        truth = problem.operator.as_image(torch.from_numpy(clean.image(i))[None])[0].numpy()
        needed.append(needed_stretch(truth, posterior.mean, posterior.lower, posterior.upper))
        if progress is not None:
            progress(done, len(alike))
    promised = promised_coverage(n)
    stretch = risk_controlling(needed, 1 - promised)
    return Conformal(n, promised, stretch, len(alike))


def _of_own_level(sigma: float, noisy: Measurements) -> list[int]:
    """The images that are as noisy as those of the training; refused if they are too few."""
    alike = [i for i in range(len(noisy)) if math.isclose(noisy.sigma_of(i, sigma), sigma)]
    if len(noisy) >= fewest_pairs() > len(alike):
        raise NediffError(
            f"Intervals can be checked by clean images at the noise level of the training, "
            f"σ = {sigma:.6g}, and {len(alike)} of {len(noisy)} images have it; "
            f"{fewest_pairs()} are needed."
        )
    return alike


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


def fewest_pairs(risk: float = 1 - promised_coverage(CONFORMAL_SAMPLES)) -> int:
    """The least N with 1/(N + 1) ≤ risk: fewer images can promise nothing."""
    return math.ceil(1 / risk - 1e-9) - 1


def risk_controlling(needed: Sequence[Values], risk: float) -> float:
    """The least λ with (Σ L_i(λ) + 1)/(N + 1) ≤ risk, L_i the share of needed_i above λ."""
    count = len(needed)
    if count < fewest_pairs(risk):
        raise NediffError(
            f"Intervals for {1 - risk:.0%} of the true values need at least "
            f"{fewest_pairs(risk)} pairs of noisy and clean images, not {count}."
        )

    def allowed(stretch: float) -> bool:
        outside = sum(1 - np.searchsorted(v, stretch, "right") / len(v) for v in needed)
        return bool((outside + 1) / (count + 1) <= risk)

    low, high = 0.0, max(float(values[-1]) for values in needed)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if allowed(middle) else (middle, high)
    return high
