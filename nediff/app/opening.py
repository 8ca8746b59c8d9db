"""An uploaded file becomes one image in its range, or a sentence that says why not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nediff.data import ImageFile, IntensityRange, choose_range, list_files, open_measurements
from nediff.errors import NediffError
from nediff.levels import estimated_levels
from nediff.noise import typical_level
from nediff.operators import Coloured
from nediff.restorer import Restorer

MOST_PIXELS = 2**24
"""Of an image on the page: samples of it are kept in memory. The command line has no bound."""
LEAST_SIDE = 16
COLOURED_ERROR = 1 / 3
"""How far off the level of correlated noise may be: coarse noise looks like fine texture."""


@dataclass(frozen=True)
class Opened:
    """One page of a file: ``values`` (C, H, W) in the data's units and type.

    ``page`` counts from 0; whoever reads of it, in words, names or files, counts from 1.
    """

    name: str
    page: int
    pages: int
    values: NDArray[Any]
    range: IntensityRange
    range_chosen: str

    @property
    def unit(self) -> NDArray[np.float32]:
        """The image in unit intensities."""
        return self.range.to_unit(self.values)

    @property
    def page_ending(self) -> str:
        """For the names of its files: -page07 of a stack, nothing of a single image."""
        digits = len(str(self.pages))
        return f"-page{self.page + 1:0{digits}d}" if self.pages > 1 else ""

    @property
    def words(self) -> str:
        """What was opened, in a line."""
        channels, height, width = self.values.shape
        which = f", page {self.page + 1} of {self.pages}" if self.pages > 1 else ""
        colour = {1: "grey", 3: "colour"}.get(channels, f"{channels} channels")
        return f"{self.name}{which}: {width} × {height} pixels, {colour}, {self.values.dtype}"


def open_image(path: Path, page: int = 0, range: IntensityRange | None = None) -> Opened:
    """Read a page of a file; in the given range, or else in the one that fits it."""
    try:
        return _opened(list_files([path])[0], path.name, page, range)
    except NediffError as error:
        # the place of an upload means nothing to who uploaded it
        raise NediffError(str(error).replace(str(path), path.name)) from error


def _opened(file: ImageFile, name: str, page: int, range: IntensityRange | None) -> Opened:
    height, width = file.size()
    if height * width > MOST_PIXELS:
        raise NediffError(
            f"{name} has {width} × {height} pixels, more than this page can hold; cut it, or use "
            "`nediff restore`, which takes images of any size."
        )
    if min(height, width) < LEAST_SIDE:
        raise NediffError(f"{name} has {width} × {height} pixels; that is too small to restore.")
    page = min(max(page, 0), file.n_images - 1)
    values = file.read(page)
    if not np.isfinite(values).all():
        raise NediffError(f"{name} has values that are not finite (NaN or infinite).")
    if values.min() == values.max():
        raise NediffError(f"All pixels of {name} have the same value; there is nothing to restore.")
    chosen, how = choose_range(values, file.dtype, range)
    how = "that of the training" if range is not None else how
    return Opened(name, page, file.n_images, values, chosen, how)


@dataclass(frozen=True)
class Level:
    """σ in unit range, and whether the noise is white, as the restorers expect it."""

    value: float
    error: float
    white: bool


def estimated_sigma(opened: Opened, restorer: Restorer | None = None) -> Level | None:
    """How strong the noise is, told from the image itself; None where there is no telling.

    An image too small or too full of texture has no place to tell it from. Compressed, resized or
    filtered ones have correlated noise, of which all is counted; where the run of the
    ``restorer`` had such noise, as that tells it.
    """
    images = open_measurements(opened.values[None], axes="NCHW", range=opened.range)
    try:
        if restorer is not None and isinstance(restorer.problem.operator, Coloured):
            (value,) = estimated_levels(restorer, images)
            return Level(value, COLOURED_ERROR * value, white=False)
        noise = typical_level(images)
    except NediffError:
        return None
    found = noise.sigma
    if not (np.isfinite(found.value) and found.value > 0):
        return None
    return Level(found.value, found.total_error, noise.whiteness.white)


def plus_minus(value: float, error: float) -> str:
    """Both with as many decimals as the error has a use for, four at least."""
    digits = 4 if error <= 0 else min(max(4, 1 - math.floor(math.log10(error))), 7)
    return f"{value:.{digits}f} ± {error:.{digits}f}"
