"""The noise under the image, seen through a learned score: UNSURE where it is nearly exact.

UNSURE (unsure.py) bounds σ² by η = m/E‖s‖², too large by MMSE/σ². The same holds along any
direction v, and among blocks chosen by anything but v·y. And for any function g in place of the
score s, since E[∂_v g_v] = −E[g_v s_v] (integration by parts) and by Cauchy and Schwarz,

    σ² ≤ 1/E[s_v²] ≤ E[g_v²] / E[∂_v g_v]²,      excess of the first: the MMSE along v, over σ²

This is small for the finest details of the flattest blocks. Of two functions, what a network
says and the plain −y, the best combination a is taken for each detail: min aᵀQa/(aᵀd)² =
1/(dᵀQ⁻¹d) with Q the second moments and d the mean derivatives; a bad network does no harm then.
What is left falls with frequency and is fitted as in floor.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nediff.noise.blocks import GROUPS, SIDE, Floats, Integers
from nediff.noise.floor import (
    LEAST_FLAT,
    Estimate,
    as_sigma,
    flat_blocks,
    jackknife,
    widest_agreeing,
)
from nediff.noise.variation import Variation, compare

_MOMENTS = 4  # E[y²], E[y g], E[g²], E[∂g]


@dataclass(frozen=True)
class ScoredBlocks:
    """n blocks of 8 × 8 measured pixels of one channel, as cosine coefficients (n, 64).

    ``pixels`` of y, ``residual`` of g = D(y) − y up to a factor, ``slope`` the noisy ∂_v g_v of
    each coefficient by a random probe; ``channel`` and ``group`` (n,).
    """

    pixels: NDArray[np.float32]
    residual: NDArray[np.float32]
    slope: NDArray[np.float32]
    channel: Integers
    group: Integers

    def __len__(self) -> int:
        return len(self.group)

    def select(self, chosen: NDArray[np.bool_]) -> ScoredBlocks:
        """Some of the blocks."""
        columns = ("pixels", "residual", "slope", "channel", "group")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})


@dataclass(frozen=True)
class ScoredSpectrum:
    """The bounds of σ² along each coefficient; ``moments`` (GROUPS, 4, 64) are sums by group."""

    moments: Floats
    count: Floats
    """(GROUPS, 64)."""

    @property
    def mean(self) -> Floats:
        """(64,), zero where nothing was measured."""
        return least_bound(self.moments.sum(axis=0), self.count.sum(axis=0))

    @property
    def left_out(self) -> Floats:
        """(groups, 64): the same without each group in turn; groups without blocks are skipped."""
        there = self.count.sum(axis=1) > 0
        moments, count = self.moments.sum(axis=0), self.count.sum(axis=0)
        pairs = zip(self.moments[there], self.count[there], strict=True)
        return np.stack([least_bound(moments - m, count - n) for m, n in pairs])


def least_bound(sums: Floats, count: Floats) -> Floats:
    """1/(dᵀQ⁻¹d) of the functions −y and g, from the sums of y², y g, g² and ∂g, (4, n) → (n,).

    Where both are the same function, that of y alone.
    """
    yy, yg, gg, slope = sums / np.maximum(count, 1)
    determinant = yy * gg - yg**2
    apart = determinant > 1e-6 * yy * gg
    # the functions are −y and g, with mean derivatives −1 and slope
    form = yy * slope**2 - 2 * yg * slope + gg
    bound: Floats = np.where(apart, determinant / np.where(apart, form, 1), yy)
    return bound


def scored_spectrum(blocks: ScoredBlocks, lowest: float, share: float) -> ScoredSpectrum:
    """Of the flattest ``share`` of the blocks, for frequencies from ``lowest``."""
    moments, count = np.zeros((GROUPS, _MOMENTS, SIDE**2)), np.zeros((GROUPS, SIDE**2))
    for measured, flat in flat_blocks(np.square(blocks.pixels), lowest, share):
        y, g, slope = (
            table[flat][:, measured].astype(np.float64)
            for table in (blocks.pixels, blocks.residual, blocks.slope)
        )
        for group in np.unique(blocks.group[flat]):
            here = blocks.group[flat] == group
            sums = [(a[here] * b[here]).sum(axis=0) for a, b in ((y, y), (y, g), (g, g))]
            moments[group][:, measured] = np.stack([*sums, slope[here].sum(axis=0)])
            count[group, measured] = here.sum()
    return ScoredSpectrum(moments, count)


def scored_sigma(blocks: ScoredBlocks, lowest: float = 4.0) -> Estimate:
    """σ of white noise."""
    return as_sigma(widest_agreeing(lambda share: scored_spectrum(blocks, lowest, share)))


def overall_bound(blocks: ScoredBlocks) -> float:
    """√ of the bound with all details of all blocks alike: σ cannot exceed it, but for chance."""
    y, g = (table.astype(np.float64).ravel() for table in (blocks.pixels, blocks.residual))
    slope = blocks.slope[:, 1:].mean(dtype=np.float64)  # without the means, which are zero
    count = float(blocks.slope[:, 1:].size)
    sums = np.array([y @ y, y @ g, g @ g, slope * count])
    return float(np.sqrt(least_bound(sums[:, None], np.array([count]))[0]))


def scored_channels(blocks: ScoredBlocks) -> Variation:
    """σ of each channel, and whether it is the same in all."""
    present = np.unique(blocks.channel)
    return compare([scored_sigma(blocks.select(blocks.channel == c)) for c in present])


FLAT_PIXELS = 0.05
"""Of the pixels of incomplete images, so many with the flattest surroundings are looked at."""


@dataclass(frozen=True)
class ScoredPixels:
    """n measured pixels with measured surroundings: the same without blocks, for masks.

    ``detail`` (n,) is y less the mean of what is measured around it and ``texture`` the variance
    there, neither a function of the rest of the pixel; ``residual`` and ``slope`` as above.
    """

    detail: Floats
    texture: Floats
    residual: Floats
    slope: Floats
    channel: Integers
    group: Integers

    def __len__(self) -> int:
        return len(self.group)

    def select(self, chosen: NDArray[np.bool_]) -> ScoredPixels:
        """Some of the pixels."""
        columns = ("detail", "texture", "residual", "slope", "channel", "group")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})


def bounded_sigma(pixels: ScoredPixels) -> Estimate:
    """The least σ that the flattest surroundings do not rule out; too large rather than too small.

    Its ``doubt`` is how much it moves if four times as many pixels are looked at.
    """
    few, error = _bound_of(pixels, FLAT_PIXELS)
    more, _ = _bound_of(pixels, 4 * FLAT_PIXELS)
    return as_sigma(Estimate(few, error, abs(more - few)))


def overall_pixel_bound(pixels: ScoredPixels) -> float:
    """√ of the bound with all pixels alike."""
    return float(np.sqrt(_bound_of(pixels, 1.0)[0]))


def bounded_channels(pixels: ScoredPixels) -> Variation:
    """The same of each channel, and whether it is the same in all."""
    present = np.unique(pixels.channel)
    return compare([bounded_sigma(pixels.select(pixels.channel == c)) for c in present])


def _bound_of(pixels: ScoredPixels, share: float) -> tuple[float, float]:
    """σ² ≤ 1/(dᵀQ⁻¹d) in the flattest share, and its standard error by groups."""
    number = min(len(pixels), max(LEAST_FLAT, round(share * len(pixels))))
    flat = np.argpartition(pixels.texture, number - 1)[:number]
    y, g, group = pixels.detail[flat], pixels.residual[flat], pixels.group[flat]
    columns = (y * y, y * g, g * g, pixels.slope[flat])
    moments: Floats = np.stack(
        [np.bincount(group, c, GROUPS).astype(np.float64) for c in columns], axis=1
    )[..., None]
    count = np.bincount(group, minlength=GROUPS)[:, None].astype(np.float64)
    spectrum = ScoredSpectrum(moments, count)
    return float(spectrum.mean[0]), float(jackknife(spectrum.left_out)[0])
