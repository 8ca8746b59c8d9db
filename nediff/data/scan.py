"""One pass over all pixels before training: is everything there, and what is its range?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nediff.data.files import ImageFile
from nediff.data.layout import Array
from nediff.errors import NediffError

Progress = Callable[[int, int], None]
Transform = Callable[[Array], Array]

_SAMPLE = 2**20  # values kept for the percentiles, over all images
_BLOCK = 2**21  # values looked at in one go


@dataclass(frozen=True)
class Scan:
    """What one pass over the data found, in data units.

    ``sample``: (n,) values, equally many of every image. ``within_variance``: the variance
    of the pixels of one channel of one image, averaged over channels and images.
    """

    sample: NDArray[np.float64]
    minimum: float
    maximum: float
    within_variance: float


class _Moments:
    """The variance per channel of an image that arrives in blocks."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: NDArray[np.float64] | float = 0.0
        self.squares: NDArray[np.float64] | float = 0.0

    def add(self, block: NDArray[np.float64]) -> None:
        """Join a block (C, h, W) to those before it, without loss of precision."""
        n, m = self.count, block[0].size
        mean = block.mean(axis=(1, 2))
        squares = np.square(block - mean[:, None, None]).sum(axis=(1, 2))
        self.squares = self.squares + squares + np.square(mean - self.mean) * (n * m / (n + m))
        self.mean = self.mean + (mean - self.mean) * (m / (n + m))
        self.count = n + m

    def variance(self) -> float:
        """Averaged over channels."""
        return float(np.mean(self.squares)) / self.count


def check_channels(files: Sequence[ImageFile]) -> int:
    """The number of channels that all files share."""
    first = files[0]
    for file in files:
        if file.channels != first.channels:
            raise NediffError(
                f"{first.name} has {first.channels} channel(s) but {file.name} has "
                f"{file.channels}; train on images with equally many channels."
            )
    return first.channels


def scan(
    files: Sequence[ImageFile],
    progress: Progress | None = None,
    transform: Transform | None = None,
) -> Scan:
    """Read every image once, block by block, and refuse damaged ones by name.

    With ``transform`` of data units, everything found is of transformed values.
    """
    check_channels(files)
    pages = [(file, page) for file in files for page in range(file.n_images)]
    quota = max(1, _SAMPLE // len(pages))
    sample: list[Array] = []
    minimum, maximum, variance = math.inf, -math.inf, 0.0
    for done, (file, page) in enumerate(pages):
        random = np.random.default_rng([0x5CA7, done])
        moments, bad = _Moments(), _BadPixels()
        for top, stored in _blocks(file, page):
            block = stored.astype(np.float64)
            if bad.look(block, top):
                continue
            block = block if transform is None else transform(block)
            share = math.ceil(quota * stored.size / _values(file))
            sample.append(_some(block, share, random))
            moments.add(block)
            minimum, maximum = min(minimum, block.min()), max(maximum, block.max())
        bad.refuse(file, page)
        variance += moments.variance() / len(pages)
        if progress is not None:
            progress(done + 1, len(pages))
    return Scan(np.concatenate(sample), float(minimum), float(maximum), variance)


def _values(file: ImageFile) -> int:
    height, width = file.size()
    return file.channels * height * width


def _blocks(file: ImageFile, page: int) -> Iterator[tuple[int, Array]]:
    """The image as bands of whole rows: (first row, (C, h, W))."""
    height, width = file.size(page)
    rows = max(1, _BLOCK // (file.channels * width))
    for top in range(0, height, rows):
        yield top, file.read_crop(page, top, 0, min(rows, height - top), width)


def _some(block: NDArray[np.float64], share: int, random: np.random.Generator) -> Array:
    values = block.reshape(-1)
    if values.size <= share:
        return values
    return values[random.integers(0, values.size, share)]


class _BadPixels:
    """Counts NaN and infinite values of one image, and remembers where the first one is."""

    def __init__(self) -> None:
        self.count = 0
        self.first = (0, 0)

    def look(self, block: NDArray[np.float64], top: int) -> bool:
        """Whether the block (C, h, W) that begins at row ``top`` has any."""
        bad = ~np.isfinite(block).all(axis=0)
        if not bad.any():
            return False
        if self.count == 0:
            row, column = np.argwhere(bad)[0]
            self.first = (top + int(row), int(column))
        self.count += int(bad.sum())
        return True

    def refuse(self, file: ImageFile, page: int) -> None:
        """Raise if there were any."""
        if self.count:
            row, column = self.first
            raise NediffError(
                f"{file.page_name(page)} has {self.count} pixel(s) that are NaN or infinite, the "
                f"first at row {row}, column {column}; replace them or remove the image."
            )
