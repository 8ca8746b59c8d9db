"""The pictures of a result for the browser, as PNG files of one scale of brightness."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nediff.app.opening import Opened
from nediff.app.restoring import Result
from nediff.report.pictures import heat, to_picture

Values = NDArray[np.floating]
STRETCHED_BELOW = 0.5
"""Images that use less of their intensity range are shown brighter."""


@dataclass(frozen=True)
class Shown:
    """Which values are black and white on the page, in the data's units."""

    black: float
    white: float

    def unit(self, image: Values) -> Values:
        """0 for black, 1 for white."""
        return (image - self.black) / (self.white - self.black)


def shown_range(image: Values, low: float, high: float) -> Shown:
    """All of the range or, where an image uses little of it, its 0.1 and 99.9 percentiles."""
    bottom, top = (float(v) for v in np.percentile(image, (0.1, 99.9)))
    if 0 < top - bottom < STRETCHED_BELOW * (high - low):
        return Shown(bottom, top)
    return Shown(low, high)


def save_noisy(opened: Opened, folder: Path) -> Path:
    """The picture of an image that was just opened."""
    values = opened.values.astype(np.float32)
    shown = shown_range(values, opened.range.low, opened.range.high)
    return _save(shown.unit(values), folder / "noisy.png")


@dataclass(frozen=True)
class Pictures:
    """Where they are; ``top`` is the standard deviation shown brightest, in the data's units."""

    noisy: Path
    restored: Path
    samples: tuple[Path, ...]
    sd: Path | None
    top: float
    shown: Shown


def save_pictures(result: Result, folder: Path) -> Pictures:
    """All of them, in a folder of their own."""
    limits = result.opened.range
    shown = shown_range(result.noisy, limits.low, limits.high)
    noisy = _save(shown.unit(result.noisy), folder / "noisy.png")
    restored = _save(shown.unit(result.restored), folder / "restored.png")
    samples = tuple(
        _save(shown.unit(sample), folder / f"sample-{k}.png")
        for k, sample in enumerate(result.samples)
    )
    sd, top = result.sd, 0.0
    place = None
    if sd is not None:
        place = folder / "sd.png"
        top = float(np.percentile(sd, 99.5)) or 1.0
        heat(sd, top).save(place, compress_level=3)
    return Pictures(noisy, restored, samples, place, top, shown)


def _save(image: Values, path: Path) -> Path:
    to_picture(image).save(path, compress_level=3)
    return path
