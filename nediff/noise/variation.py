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


def compare(sigmas: Sequence[Estimate]) -> Variation:
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
    odd = np.flatnonzero((chances < SIGNIFICANCE) & (np.abs(values - mean) > MATERIAL * mean))
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
