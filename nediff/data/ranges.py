"""The affine map between the units of the data and the unit range [0, 1]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nediff.data.layout import Array
from nediff.errors import NediffError

_PERCENTILES = (0.1, 99.9)
_MARGIN = 0.02


@dataclass(frozen=True)
class IntensityRange:
    """``low`` becomes 0 and ``high`` becomes 1; values beyond go beyond, nothing is clipped."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise NediffError(
                f"The intensity range ({self.low}, {self.high}) is not a range: give two finite "
                "numbers, the lower one first."
            )

    @property
    def scale(self) -> float:
        """Data units per unit."""
        return self.high - self.low

    @property
    def span(self) -> float:
        """The length of the unit range in the units of `transform`."""
        return self.scale

    def transform(self, values: Array) -> Array:
        """Data units → units in which the noise is white, here the same."""
        return values

    def to_unit(self, values: Array) -> NDArray[np.float32]:
        """Data units → unit range, any shape, computed in double precision."""
        shifted = np.subtract(values, self.low, dtype=np.float64)
        shifted /= self.scale
        return shifted.astype(np.float32)

    def from_unit(self, values: Array) -> NDArray[np.float64]:
        """Unit range → data units, any shape."""
        return np.asarray(values, dtype=np.float64) * self.scale + self.low

    def straight(self, values: Array) -> Array:
        """Unit range → fractions of low to high in data units: here the same."""
        return values

    def of_means(self) -> IntensityRange:
        """The map for clean images: the same."""
        return self


def choose_range(
    sample: Array,
    dtype: np.dtype[Any],
    given: tuple[float, float] | IntensityRange | None = None,
    extremes: tuple[float, float] | None = None,
) -> tuple[IntensityRange, str]:
    """The range of a data set and one line that says how it was chosen.

    ``sample`` are some of its values in data units, ``extremes`` its smallest and largest
    value where the sample may have missed them.
    """
    low, high = extremes or (float(sample.min()), float(sample.max()))
    if low == high:
        raise NediffError(
            f"All pixels of the data have the same value, {low:g}; there is nothing to learn."
        )
    if given is not None:
        chosen = given if isinstance(given, IntensityRange) else IntensityRange(*map(float, given))
        return chosen, f"{chosen.low:g} to {chosen.high:g}, as given"
    bottom, top = (float(q) for q in np.percentile(sample.astype(np.float64), _PERCENTILES))
    if dtype.kind == "f" and bottom >= -0.5 and top <= 1.5 and top - bottom > 0.05:
        return IntensityRange(0.0, 1.0), f"0 to 1, since the {dtype} data lie about there"
    if dtype.kind in "ui":
        info = np.iinfo(dtype)
        if top - bottom >= 0.5 * (int(info.max) - int(info.min)):
            how = f"{info.min} to {info.max}, all of {dtype}, since the data fill most of it"
            return IntensityRange(float(info.min), float(info.max)), how
    return _robust(bottom, top, (low, high), dtype)


def _robust(
    bottom: float, top: float, extremes: tuple[float, float], dtype: np.dtype[Any]
) -> tuple[IntensityRange, str]:
    """The percentiles with a margin; the extremes where nearly all pixels are equal."""
    if bottom == top:
        how = f"{extremes[0]:g} to {extremes[1]:g}, the smallest and largest value of the data"
        return IntensityRange(*extremes), how
    margin = _MARGIN * (top - bottom)
    low, high = bottom - margin, top + margin
    if dtype.kind in "ui":
        info = np.iinfo(dtype)
        low, high = max(low, float(info.min)), min(high, float(info.max))
    how = (
        f"{low:g} to {high:g}, from the {_PERCENTILES[0]:g} and {_PERCENTILES[1]:g} percentiles "
        f"of the {dtype} data"
    )
    return IntensityRange(low, high), how
