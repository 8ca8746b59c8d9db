"""Warnings in plain words, each with what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nediff.data import IntensityRange
from nediff.diagnosis.contrast import Contrast
from nediff.diagnosis.expectation import SQUARE, Expectation
from nediff.diagnosis.flaws import Clipping, Copies, Rounding
from nediff.diagnosis.scales import ScaleInvariance
from nediff.noise.variation import ByImage

if TYPE_CHECKING:
    from nediff.diagnosis.diagnose import Noise

NOTHING_TO_DO = 0.003
"""σ below this (three quarters of a step of 8-bit images) is hardly seen."""
FEW_VALUES = 32
COARSE = 0.6
"""Steps; below, rounding is no longer like noise (it adds 1/12 of a step² to the variance)."""
DOUBTFUL = 0.1
"""σ known to no better than this share."""
_NAMED = 3  # names in a sentence


@dataclass(frozen=True)
class Advice:
    """``code``: one word for programs; ``what`` is the matter; what to ``do``."""

    code: str
    what: str
    do: str


@dataclass(frozen=True)
class Facts:
    """What was found out about the files."""

    images: int
    rounding: Rounding
    clipping: Clipping
    blocky: bool
    jpeg_files: bool
    equal_channels: bool
    copies: Copies


def warnings_of(
    noise: Noise,
    contrast: Contrast,
    scales: Sequence[ScaleInvariance],
    expectation: Expectation | None,
    facts: Facts,
    range: IntensityRange,
) -> tuple[Advice, ...]:
    """All that apply: to the files, the noise, and the images."""
    found = [
        *_about_files(facts, noise.sigma.value, range),
        *_about_noise(noise),
        *_about_evenness(noise, range),
        *_about_images(contrast, scales, expectation, facts),
    ]
    return tuple(found)


def _about_files(facts: Facts, sigma: float, range: IntensityRange) -> Iterator[Advice]:
    step, clipping = facts.rounding.step, facts.clipping
    if facts.jpeg_files or facts.blocky:
        seen = "The files are JPEG" if facts.jpeg_files else "Every eighth pixel has a jump"
        yield Advice(
            "jpeg",
            f"{seen}: JPEG removes noise in some places and makes blocks in others.",
            "Use the images as the instrument wrote them, before any lossy compression.",
        )
    if facts.rounding.distinct < FEW_VALUES or (step is not None and sigma < COARSE * step):
        yield Advice(
            "quantised",
            f"The images have {facts.rounding.distinct} distinct values"
            + ("." if step is None else f", {step * range.scale:.3g} apart, σ is no larger."),
            "Store them with more bits: noise that is rounded away cannot be told from the image.",
        )
    if clipping.low or clipping.high:
        ends = [(clipping.low, "lowest"), (clipping.high, "highest")]
        words = " and ".join(f"{share:.1%} at the {end} value" for share, end in ends if share)
        yield Advice(
            "clipped",
            f"Pixels are cut off: {words}. Their noise is not Gaussian.",
            "Lower the exposure or the gain, or keep negative values after subtracting an offset.",
        )
    if facts.equal_channels:
        yield Advice(
            "equal_channels",
            "All channels are equal: grey images stored as colours.",
            "Store one channel; the noise of the three is the same and cannot be averaged.",
        )
    if facts.copies.constant:
        yield Advice(
            "constant",
            f"{_names(facts.copies.constant)}: all pixels have one value.",
            "Remove them.",
        )
    yield from _about_copies(facts.copies)


def _about_copies(copies: Copies) -> Iterator[Advice]:
    do = "Keep one of each: they count as one image, and make held-out images seem known."
    if copies.exact:
        sets = "; ".join(_names(names) for names in copies.exact[:_NAMED])
        count = sum(len(names) - 1 for names in copies.exact)
        yield Advice("duplicates", f"{count} image(s) are there more than once: {sets}.", do)
    if copies.near:
        sets = "; ".join(" and ".join(pair) for pair in copies.near[:_NAMED])
        yield Advice(
            "near_duplicates",
            f"{len(copies.near)} pair(s) show the same but for the noise: {sets}.",
            "For their own sake average them; for training keep them in one part of the data.",
        )


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _about_noise(noise: Noise) -> Iterator[Advice]:
    sigma = noise.sigma
    if sigma.value < NOTHING_TO_DO and not noise.whiteness.known:
        yield Advice(
            "little_noise",
            "No noise can be told from these images: there is hardly any, or it was smoothed, as "
            "cameras do, and goes on from pixel to pixel like texture.",
            "If you see noise in them, train with --sigma correlated; the camera's raw data are "
            "better.",
        )
    elif sigma.value < NOTHING_TO_DO:
        yield Advice(
            "little_noise",
            f"The noise is very small: {sigma.value:.2g} of the range.",
            "There is hardly anything to remove; check that these are the raw measurements.",
        )
    if sigma.total_error > DOUBTFUL * sigma.value > 0:
        yield Advice(
            "doubtful",
            f"σ is known to ± {sigma.total_error / sigma.value:.0%} only: there are too few "
            "images, or no flat places in them.",
            "Measure σ with the instrument: an image of an even surface, or two of the same scene.",
        )
    if not noise.whiteness.white:
        across, down = noise.whiteness.neighbours
        yield Advice(
            "correlated",
            f"The noise of neighbouring pixels is correlated ({across:+.2f} across, {down:+.2f} "
            "down): it was interpolated, filtered or compressed. Taken for white, it would stay.",
            "Train with --sigma correlated; better still, use the data before demosaicing, "
            "resizing or compression.",
        )
    if noise.signal.dependent:
        yield _signal(noise)


def _about_evenness(noise: Noise, range: IntensityRange) -> Iterator[Advice]:
    if noise.channels.varies:
        values = ", ".join(f"{s.value * range.scale:.3g}" for s in noise.channels.sigmas)
        yield Advice(
            "channels",
            f"The channels differ in their noise: σ = {values} in data units.",
            "Divide each channel by its σ before training, or train on them one by one.",
        )
    if noise.images.varies:
        yield Advice("images", *images_in_words(noise.images, range))
    if noise.positions.varies:
        places = [s.value * range.scale for s in noise.positions.sigmas]
        yield Advice(
            "positions",
            f"The noise depends on the place in the image: σ from {min(places):.3g} to "
            f"{max(places):.3g} in data units.",
            "Divide by a map of σ before training, or crop to where it is even.",
        )


def images_in_words(images: ByImage, range: IntensityRange) -> tuple[str, str]:
    """What is the matter where images differ in their noise, and what to do."""
    levels = [s.value * range.scale for s in images.sigmas]
    return (
        f"The images differ in their noise: σ from {min(levels):.3g} to {max(levels):.3g} in data "
        f"units, {len(images.odd)} of {len(images.images)} far off the others. A single σ would be "
        "that of the least noisy.",
        "Train on images of one instrument and setting at a time, or give the level of each image "
        "in a CSV file (--sigma levels.csv).",
    )


def _signal(noise: Noise) -> Advice:
    signal = noise.signal
    sense = "grows" if signal.gain > 0 else "falls"
    do = "Train with --gain, --read-noise and --offset, as below."
    if signal.gain < 0:
        do = "Undo the tone curve of the camera, or use its raw data."
    elif not noise.whiteness.white:
        do = "Correlated noise can only be taken as even; use the camera's raw data if you can."
    elif not noise.of_photons:
        do = (
            f"No instrument has such noise: {noise.too_dark:.0%} of the pixels are darker than it "
            "allows. Images of several instruments or settings? Diagnose and train on those of one "
            "at a time."
        )
    return Advice(
        "signal_dependent",
        f"The noise {sense} with the signal: variance = {signal.gain:.3g} × value "
        f"{signal.constant:+.3g} in data units (± {signal.gain_error:.1g} and "
        f"{signal.constant_error:.1g}).",
        do,
    )


def _about_images(
    contrast: Contrast,
    scales: Sequence[ScaleInvariance],
    expectation: Expectation | None,
    facts: Facts,
) -> Iterator[Advice]:
    if contrast.score is None:
        yield Advice(
            "only_noise",
            "No image is seen under the noise.",
            "Check the data; average more exposures.",
        )
    elif not contrast.plausible:
        yield Advice(
            "one_contrast",
            f"The images come at nearly one contrast (score {contrast.score:.2f}): little teaches "
            "the network noise levels below yours.",
            "Restored images stay right; check samples and error bars with `nediff evaluate`.",
        )
    unsafe = [s for s in scales if s.score is not None and not s.safe]
    if unsafe:
        factors = " and ".join(f"{s.factor} × {s.factor}" for s in unsafe)
        yield Advice(
            "one_scale",
            f"Averaged over {factors} pixels the images look different: pooled measurements may "
            "teach the wrong detail.",
            "Compare with `--recipe paper`, which does not pool, by `nediff evaluate`.",
        )
    if expectation is not None and expectation.squares < expectation.enough:
        yield Advice(
            "few_images",
            f"The {facts.images} image(s) make {expectation.squares} squares of "
            f"{SQUARE} × {SQUARE} pixels; about {expectation.enough} are likely enough.",
            "Add images of the same kind and noise, or expect a little less.",
        )
