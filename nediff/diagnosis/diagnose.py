"""Everything that can be said of noisy images before training on them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nediff.data import IntensityRange, Measurements
from nediff.data.stabilise import TOO_DARK
from nediff.diagnosis.advice import Advice, Facts, warnings_of
from nediff.diagnosis.contrast import Contrast, contrast_of
from nediff.diagnosis.expectation import Expectation, expectation_of
from nediff.diagnosis.flaws import (
    blockiness_of,
    blocky,
    clipping_of,
    copies_of,
    equal_channels,
    rounding_of,
)
from nediff.diagnosis.scales import FACTORS, ScaleInvariance, Spectrum, compare, spectrum_of
from nediff.noise.blocks import Blocks, Floats, choose_images, gather_blocks
from nediff.noise.floor import Estimate
from nediff.noise.signal import PoissonGaussian
from nediff.noise.typical import even_out
from nediff.noise.variation import ByImage, Variation, by_channel, by_image, by_position
from nediff.noise.whiteness import Whiteness

SAMPLED = 64
"""Images whose pixels are looked at as a whole; of large ones a window of WINDOW pixels a side."""
WINDOW = 512


@dataclass(frozen=True)
class Summary:
    """What the data are."""

    images: int
    sizes: tuple[tuple[int, int], tuple[int, int]]
    """The smallest and the largest height and width."""
    channels: int
    dtype: str
    formats: tuple[str, ...]
    range: tuple[float, float]
    range_chosen: str
    mean: float


@dataclass(frozen=True)
class Noise:
    """What was found of the noise; σ in unit range, the dependence on the signal in data units.

    ``sigma`` is that of correlated noise too, and of signal-dependent noise the root of its mean
    variance. ``clipped``: the share of blocks that could not be used.
    """

    sigma: Estimate
    channels: Variation
    positions: Variation
    images: ByImage
    signal: PoissonGaussian
    whiteness: Whiteness
    clipped: float
    too_dark: float
    """The share of pixels darker than photon noise with this dependence could make them."""

    @property
    def of_photons(self) -> bool:
        """Whether all of it may be the noise of photons, counted by one instrument."""
        return self.signal.grows and self.too_dark <= TOO_DARK


@dataclass(frozen=True)
class Diagnosis:
    """All findings; `to_dict` for JSON."""

    summary: Summary
    noise: Noise
    contrast: Contrast
    spectra: tuple[Spectrum, ...]
    scales: tuple[ScaleInvariance, ...]
    expectation: Expectation | None
    warnings: tuple[Advice, ...]
    command: str
    examples: tuple[tuple[str, NDArray[np.float32]], ...]
    """(name, image) of a few, for the report."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values; numbers that are not finite become None, the examples are left out."""
        found = asdict(self)
        found["noise"]["signal"]["dependent"] = self.noise.signal.dependent
        found["noise"]["whiteness"]["white"] = self.noise.whiteness.white
        found["noise"]["whiteness"]["known"] = self.noise.whiteness.known
        found["noise"]["whiteness"]["kernel"] = self.noise.whiteness.kernel
        for key in ("channels", "positions", "images"):
            found["noise"][key]["varies"] = getattr(self.noise, key).varies
        found["contrast"]["plausible"] = self.contrast.plausible
        for row, scale in zip(found["scales"], self.scales, strict=True):
            row["safe"] = scale.safe
        del found["examples"]
        plain: dict[str, Any] = _plain(found)
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (np.floating, float)):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def diagnose(
    measurements: Measurements, source: str = "DATA", axes: str | None = None, seed: int = 0
) -> Diagnosis:
    """Look at noisy images; ``source`` and ``axes`` are what the recommended command will name.

    The seed chooses the images of a big set that are looked at.
    """
    blocks = gather_blocks(measurements, seed)
    images = _sample(measurements, seed)
    noise, variance = _noise(blocks, measurements, images)
    sigma = noise.sigma.value
    spectra = {f: spectrum_of(images, f, sigma**2) for f in (1, *FACTORS)}
    white = noise.whiteness.white
    # averages of correlated noise have another level than is subtracted there
    scales = tuple(compare(spectra[1], spectra[f], f) for f in FACTORS) if white else ()
    contrast = contrast_of(blocks, variance)
    pixels = sum(math.prod(measurements.size(i)) for i in range(len(measurements)))
    # of correlated noise σ is that of the flattest places, which a camera has smoothed most; and
    # where no image is seen under the noise, there is nothing to expect
    told = white and contrast.score is not None
    expectation = expectation_of(images, sigma, pixels) if told else None
    summary = _summary(measurements, blocks)
    facts = _facts(measurements, images, sigma, seed)
    return Diagnosis(
        summary,
        noise,
        contrast,
        tuple(s for s in spectra.values() if s is not None) if white else (),
        scales,
        expectation,
        warnings_of(noise, contrast, scales, expectation, facts, measurements.range),
        _command(source, axes, noise, measurements),
        _examples(measurements, seed),
    )


def _noise(
    blocks: Blocks, measurements: Measurements, images: Sequence[NDArray[np.float32]]
) -> tuple[Noise, Floats]:
    """The findings, and the variance of the noise of each block (unit range)."""
    even = even_out(blocks, measurements.range)
    channels = by_channel(even.blocks, even.measure)
    positions = by_position(even.blocks, even.measure)
    found = Noise(
        even.sigma,
        channels,
        positions,
        by_image(even.blocks, even.measure),
        even.signal,
        even.whiteness,
        blocks.clipped,
        _too_dark(even.signal, measurements.range, images),
    )
    return found, even.variance


def _too_dark(
    signal: PoissonGaussian, range: IntensityRange, images: Sequence[NDArray[np.float32]]
) -> float:
    """The share of pixels darker than photons with this line can make them; 0 without a line."""
    if not signal.grows:
        return 0.0
    darkest = signal.photons().darkest
    below = sum(int((range.from_unit(image) < darkest).sum()) for image in images)
    return below / sum(image.size for image in images)


def _sample(measurements: Measurements, seed: int) -> list[NDArray[np.float32]]:
    """Some images, or windows out of the middle of large ones."""
    images = []
    for i in choose_images(measurements, seed, SAMPLED):
        height, width = measurements.size(i)
        high, wide = min(height, WINDOW), min(width, WINDOW)
        # at a multiple of eight, so that the grid of JPEG stays where it was
        top, left = ((n - m) // 16 * 8 for n, m in ((height, high), (width, wide)))
        images.append(measurements.crop(i, top, left, high, wide))
    return images


def _summary(measurements: Measurements, blocks: Blocks) -> Summary:
    sizes = [measurements.size(i) for i in range(len(measurements))]
    heights, widths = zip(*sizes, strict=True)
    files, limits = measurements.files, measurements.range
    return Summary(
        len(measurements),
        ((min(heights), min(widths)), (max(heights), max(widths))),
        measurements.channels,
        str(files[0].dtype),
        tuple(sorted({file.format for file in files})),
        (limits.low, limits.high),
        measurements.range_chosen,
        float(blocks.mean.mean()),
    )


def _facts(
    measurements: Measurements, images: Sequence[NDArray[np.float32]], sigma: float, seed: int
) -> Facts:
    rounding = rounding_of(images, seed)
    return Facts(
        len(measurements),
        rounding,
        clipping_of(images, rounding),
        blocky(*blockiness_of(images)),
        any(file.format == "JPEG" for file in measurements.files),
        equal_channels(images),
        copies_of(measurements, sigma, seed),
    )


def _command(source: str, axes: str | None, noise: Noise, measurements: Measurements) -> str:
    """What to type next."""
    limits = measurements.range
    words = f"nediff train {shlex.quote(source)} {_as_options(noise, limits)}"
    if measurements.range_chosen.endswith("as given"):
        words += f" --range {limits.low:g} {limits.high:g}"
    return words + (f" --axes {axes}" if axes else "") + " --out runs/restorer"


def _as_options(noise: Noise, limits: IntensityRange) -> str:
    """The noise as `train` is told of it; σ in data units unless these are the unit range."""
    if not noise.whiteness.white or not noise.sigma.value > 0:
        return "--sigma correlated"
    if noise.of_photons:
        told = noise.signal.photons()
        options = f"--gain {told.gain:.3g} --read-noise {told.read_noise:.3g}"
        return options + (f" --offset {told.offset:.4g}" if told.offset else "")
    if (limits.low, limits.high) == (0, 1):
        return f"--sigma {noise.sigma.value:.3g}"
    return f"--sigma {noise.sigma.value * limits.scale:.3g} --units data"


def _examples(measurements: Measurements, seed: int) -> tuple[tuple[str, NDArray[np.float32]], ...]:
    """Four images, or windows of 256 pixels out of their middle."""
    out = []
    for i in choose_images(measurements, seed + 1, 4):
        height, width = measurements.size(i)
        high, wide = min(height, 256), min(width, 256)
        crop = measurements.crop(i, (height - high) // 2, (width - wide) // 2, high, wide)
        out.append((measurements.name(i), crop))
    return tuple(out)
