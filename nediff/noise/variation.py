"""Is the noise as strong in every channel and everywhere in the image?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from nediff.data import Measurements
from nediff.noise.blocks import Blocks, gather_blocks
from nediff.noise.floor import Estimate, Measure, as_sigma, white_variance

CELLS = 4
"""Rows and columns of the grid of positions; 2 or 1 where there are too few blocks."""
LEAST_BLOCKS = 800
"""In a cell."""
SIGNIFICANCE = 1e-3
MATERIAL = 0.1
"""σ that differs by less than this share from the mean may as well be the same."""
MOST_IMAGES = 64
LEAST_IN_IMAGE = 200
"""Blocks of an image that is compared with others; one with fewer says too little by itself."""
MATERIAL_BY_IMAGE = 0.25
"""Between images: what texture an estimate of a single one lets through is no other noise."""
LEAST_ODD = 0.1
"""The share of images with another noise that matters."""
_FREEDOM = 8  # of the errors: in few images the flat blocks are in few of their parts


@dataclass(frozen=True)
class Variation:
    """σ in several places (or channels), and whether it is the same in all.

    ``p_value``: that any of them would be so far off the mean by chance (Bonferroni). ``odd``:
    those that are, significantly, and by more than MATERIAL.
    """

    sigmas: tuple[Estimate, ...]
    p_value: float
    odd: tuple[int, ...]

    @property
    def varies(self) -> bool:
        """Whether the noise must be taken to differ."""
        return len(self.odd) > 0


def compare(sigmas: Sequence[Estimate], material: float = MATERIAL) -> Variation:
    """t_i = (σ_i − mean) / error_i, with weights 1/error² for the mean.

    The errors are estimates from few parts, so t is compared with Student's law.
    """
    values = np.array([s.value for s in sigmas])
    # none is trusted to better than a percent: its error is an estimate, too
    errors = np.maximum([s.total_error for s in sigmas], 0.01 * values + 1e-12)
    if len(values) < 2 or not np.isfinite(errors).all():
        return Variation(tuple(sigmas), 1.0, ())
    mean = float(np.average(values, weights=errors**-2.0))
    chances = 2 * len(values) * student.sf(np.abs(values - mean) / errors, df=_FREEDOM)
    odd = np.flatnonzero((chances < SIGNIFICANCE) & (np.abs(values - mean) > material * mean))
    return Variation(tuple(sigmas), min(1.0, float(chances.min())), tuple(int(k) for k in odd))


def estimate_by_channel(measurements: Measurements, seed: int = 0) -> Variation:
    """σ of each channel."""
    return by_channel(gather_blocks(measurements, seed))


def by_channel(blocks: Blocks, measure: Measure = white_variance) -> Variation:
    """The same of blocks already gathered, with a ``measure`` of their noise variance."""
    channels = (blocks.select(blocks.channel == c) for c in np.unique(blocks.channel))
    return compare([as_sigma(measure(part)) for part in channels])


def estimate_by_position(measurements: Measurements, seed: int = 0) -> Variation:
    """σ on a grid of positions, row by row, each a fraction of the image's height and width."""
    return by_position(gather_blocks(measurements, seed))


def by_position(blocks: Blocks, measure: Measure = white_variance) -> Variation:
    """The same of blocks already gathered, with a ``measure`` of their noise variance."""
    for cells in (CELLS, CELLS // 2):
        rows, columns = ((place * cells).astype(int) for place in (blocks.row, blocks.column))
        parts = [blocks.select(rows * cells + columns == cell) for cell in range(cells**2)]
        if min(len(part) for part in parts) >= LEAST_BLOCKS:
            return compare([as_sigma(measure(part)) for part in parts])
    return compare([as_sigma(measure(blocks))])


@dataclass(frozen=True)
class ByImage(Variation):
    """σ of some images by themselves; ``images`` are their numbers."""

    images: tuple[int, ...]

    @property
    def varies(self) -> bool:
        """Whether they must be taken to be of several kinds; a stray one among many is not."""
        return len(self.odd) > 0 and len(self.odd) >= LEAST_ODD * len(self.images)


def by_image(blocks: Blocks, measure: Measure = white_variance) -> ByImage:
    """σ of up to MOST_IMAGES images: are they of one instrument at one setting?

    One σ for all would be that of the least noisy, since these have the flattest blocks.
    """
    numbers, counts = np.unique(blocks.image, return_counts=True)
    able = numbers[counts >= LEAST_IN_IMAGE]
    # drawn, not every k-th: kinds of images often take turns
    drawn = np.random.default_rng(0x1A6E).permutation(len(able))[:MOST_IMAGES]
    chosen = tuple(int(image) for image in able[np.sort(drawn)])
    sigmas = [as_sigma(measure(blocks.of_image(image))) for image in chosen]
    found = compare(sigmas, MATERIAL_BY_IMAGE)
    return ByImage(found.sigmas, found.p_value, found.odd, chosen)
