"""How sure is this? What the samples say of a pixel or a region."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import EllipsisType

import numpy as np
from numpy.typing import NDArray

from nediff.app.restoring import MASKED, Result
from nediff.errors import NediffError

FEW = 8
"""Fewer samples tell their own spread too badly to compare it with anything: that of two is, 95
times of a hundred, between 0.03 and 2.2 times what it should be."""


@dataclass(frozen=True)
class Region:
    """Rows and columns of a result, a pixel if both sides are one."""

    top: int
    left: int
    height: int = 1
    width: int = 1

    @property
    def words(self) -> str:
        """Where it is."""
        if self.height == self.width == 1:
            return f"the pixel in row {self.top}, column {self.left}"
        return (
            f"the mean of rows {self.top} to {self.top + self.height - 1}, columns {self.left} to "
            f"{self.left + self.width - 1}"
        )


@dataclass(frozen=True)
class Probe:
    """The mean of a region over its pixels and channels, in the data's units."""

    region: Region
    noisy: float
    """Of what was measured; NaN where nothing was, or not of pixels (as k-space)."""
    restored: float
    values: NDArray[np.float64]
    """Of each sample, (n,)."""
    noise: float
    """The standard deviation of the noise of the measured mean; NaN where that is not known."""
    scale: float
    """The length of the intensity range."""
    channels: int = 1
    share: float = 1.0
    """Of its values that were measured."""

    @property
    def sd(self) -> float:
        """The posterior standard deviation, as far as n samples tell it."""
        return float(self.values.std(ddof=1))

    @property
    def interval(self) -> tuple[float, float]:
        """From the k-th lowest to the k-th highest sample."""
        ordered = np.sort(self.values)
        return float(ordered[self._k - 1]), float(ordered[-self._k])

    @property
    def coverage(self) -> float:
        """The share of true values which that holds if the truth is like one more sample."""
        return (len(self.values) + 1 - 2 * self._k) / (len(self.values) + 1)

    @property
    def _k(self) -> int:
        """As many as leave 90 %; with fewer than 19 samples all are taken, which is less."""
        return max(1, round(0.05 * (len(self.values) + 1)))


def within(result: Result, region: Region) -> Region:
    """The part of a region that lies in the image."""
    height, width = result.restored.shape[-2:]
    top, left = max(region.top, 0), max(region.left, 0)
    bottom = min(region.top + max(region.height, 1), height)
    right = min(region.left + max(region.width, 1), width)
    if bottom <= top or right <= left:
        raise NediffError(
            f"Row {region.top}, column {region.left} is outside of the image, which has {height} "
            f"rows and {width} columns, both counted from 0."
        )
    return Region(top, left, bottom - top, right - left)


def probe(result: Result, region: Region) -> Probe:
    """What is known there; at least two samples are needed."""
    if len(result.samples) < 2:
        raise NediffError("To say how sure this is takes samples; draw at least two.")
    region = within(result, region)
    here = _place(region)
    noisy, share = _measured(result, region)
    # only what was measured value by value has noise of σ, and a mean of others was not measured
    count = region.height * region.width * len(result.restored)
    compared = share == 1.0 and result.kind in ("denoising", *MASKED)
    # of correlated values it is not known how much noise is left in their mean
    compared = compared and (result.white or count == 1)
    variance = result.noise_variance(result.restored[here])
    return Probe(
        region,
        noisy,
        float(result.restored[here].mean(dtype=np.float64)),
        result.samples[here].mean((-3, -2, -1), dtype=np.float64),
        math.sqrt(variance / count) if compared else math.nan,
        result.opened.range.scale,
        len(result.restored),
        share,
    )


def _place(region: Region) -> tuple[EllipsisType, slice, slice]:
    """Its index in arrays (..., H, W)."""
    rows = slice(region.top, region.top + region.height)
    return ..., rows, slice(region.left, region.left + region.width)


def _measured(result: Result, region: Region) -> tuple[float, float]:
    """(the mean of the measured values of a region, the share of its values that these are)."""
    in_pixels = result.noisy.shape[-2:] == result.restored.shape[-2:]
    if not in_pixels or result.kind not in ("denoising", "blur", *MASKED):
        return math.nan, 1.0
    here = _place(region)
    values = result.noisy[here]
    if result.measured is None:
        return float(values.mean(dtype=np.float64)), 1.0
    known = result.measured[here]
    if not known.any():
        return math.nan, 0.0
    # a raw mosaic has one channel, of which all is measured
    there = values[known] if values.shape == known.shape else values
    return float(there.mean(dtype=np.float64)), float(known.mean())


def answer(found: Probe) -> str:
    """The answer in plain words."""
    low, high = found.interval
    sd, unit = found.sd, _digits(found.sd)
    share = f"{found.coverage:.0%}"
    where = found.region.words[0].upper() + found.region.words[1:]
    if found.channels > 1:
        where += f" (all {found.channels} channels together)"
    words = (
        f"{where} is {found.restored:.{unit}f}, give or take {sd:.{unit}f} "
        f"({sd / found.scale:.1%} of the intensity range). The samples say that it lies between "
        f"{low:.{unit}f} and {high:.{unit}f} with a probability of {share}."
    )
    if not low <= found.restored <= high:
        words += " The restored value lies outside of that."
    few = len(found.values) < FEW
    if few:
        words += f" These are few samples: draw more, {FEW} or so, to be told how sure it is."
    if found.share == 0:
        return words + " Nothing was measured here."
    if math.isnan(found.noisy):
        return words
    if found.share < 1:
        some = f"{found.share:.0%} of its values, with a mean of"
        return words + f" Measured were {some} {found.noisy:.{unit}f}."
    words += f" Measured was {found.noisy:.{unit}f}."
    if not few and sd > 0 and found.noise > 0:
        ratio = found.noise / sd
        if ratio >= 1.15:
            words += f" The noise alone would leave {ratio:.1f} times as much doubt."
        else:
            words += " That is about as unsure as the measurement itself: little was gained here."
    return words


def _digits(sd: float) -> int:
    """So many decimals that the spread shows two figures."""
    return 2 if sd <= 0 else min(max(1 - math.floor(math.log10(sd)), 0), 6)


def histogram(found: Probe, width: int = 460, height: int = 150) -> str:
    """The samples as an SVG that takes its colours from the page.

    A dot for each, stacked where they are close; the interval as a band; what was measured and
    what was restored as lines.
    """
    low, high = float(found.values.min()), float(found.values.max())
    low, high = min(low, found.restored), max(high, found.restored)
    margin = 0.12 * (high - low) or 1.0
    low, high = low - margin, high + margin
    bottom, side = height - 34, 14

    def at(value: float) -> float:
        return side + (value - low) / (high - low) * (width - 2 * side)

    bins = max(8, min(30, 2 * len(found.values)))
    counts, edges = np.histogram(found.values, bins, (low, high))
    step = min(16.0, (bottom - 14) / max(counts.max(), 1))
    radius = min(step / 2, (width - 2 * side) / bins / 2) * 0.92
    dots = "".join(
        f'<circle cx="{at(float(here.mean())):.1f}" cy="{bottom - (k + 0.5) * step:.1f}" '
        f'r="{radius:.1f}" class="dot"/>'
        for here in _by_bin(found.values, edges)
        for k in range(len(here))
    )
    left, right = (at(v) for v in found.interval)
    marks = f'<line x1="{at(found.restored):.1f}" x2="{at(found.restored):.1f}" y1="8" '
    marks += f'y2="{bottom}" class="restored"/>'
    measured = not math.isnan(found.noisy) and low <= found.noisy <= high
    if measured:
        x = at(found.noisy)
        marks += f'<line x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="{bottom}" class="noisy"/>'
    unit = _digits(found.sd)
    ticks = "".join(
        f'<text x="{at(v):.1f}" y="{bottom + 15}" text-anchor="middle">{v:.{unit}f}</text>'
        for v in np.linspace(low + margin, high - margin, 3)
    )
    key = "solid: restored"
    if not math.isnan(found.noisy):
        key += "; dashed: measured" if measured else "; measured: outside"
    label = f"Histogram of {len(found.values)} posterior samples. {answer(found)}"
    return (
        f'<svg class="nediff-histogram" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{label}">'
        f'<rect x="{left:.1f}" y="8" width="{max(right - left, 1):.1f}" height="{bottom - 8}" '
        f'class="band"/>{dots}{marks}'
        f'<line x1="{side}" x2="{width - side}" y1="{bottom}" y2="{bottom}" class="axis"/>{ticks}'
        f'<text x="{width / 2}" y="{height - 4}" text-anchor="middle" class="key">dots: samples; '
        f"band: {found.coverage:.0%} interval; {key}</text></svg>"
    )


def _by_bin(values: NDArray[np.float64], edges: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The values of each bin that has any."""
    place = np.digitize(values, edges)
    return [values[place == k] for k in np.unique(place)]
