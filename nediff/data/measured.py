"""One pass over measurements with missing values: the missing ones are stored as zeros."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from nediff.data.files import ImageFile
from nediff.data.layout import Array
from nediff.data.measurements import Instrument
from nediff.data.scan import Progress, Scan, Transform
from nediff.errors import NediffError

_SAMPLE = 2**20  # values kept for the percentiles, over all images
Measured = NDArray[np.bool_]


def scan_measured(
    files: Sequence[ImageFile],
    instrument: Instrument,
    hint: str,
    progress: Progress | None = None,
    transform: Transform | None = None,
) -> Scan:
    """As `scan`, but of the measured values alone, which zeros elsewhere would drown.

    A file with other values than zero where the instrument measures nothing is refused; the
    sentence ends in ``hint``, what to do about it. The sizes must have been checked.
    ``transform`` is as for `scan`.
    """
    count = sum(file.n_images for file in files)
    quota = max(1, _SAMPLE // count)
    random = np.random.default_rng(0x5CA7)
    sample: list[Array] = []
    variance = 0.0
    extremes = [math.inf, -math.inf]
    for done, (name, values, measured) in enumerate(_pages(files, instrument)):
        _refuse_values(name, values, measured, hint)
        if transform is not None:
            values = transform(values.astype(np.float64))
        seen = values[measured]
        extremes = [min(extremes[0], float(seen.min())), max(extremes[1], float(seen.max()))]
        sample.append(seen if seen.size <= quota else seen[random.integers(0, seen.size, quota)])
        variance += _variance(values, measured) / count
        if progress is not None:
            progress(done + 1, count)
    return Scan(np.concatenate(sample).astype(np.float64), extremes[0], extremes[1], variance)


def _pages(
    files: Sequence[ImageFile], instrument: Instrument
) -> Iterator[tuple[str, Array, Measured]]:
    """(name, values (C, H, W), where they are measured) of every image."""
    shape, measured = (0, 0, 0), np.empty((0, 0, 0), dtype=bool)
    for file in files:
        for page in range(file.n_images):
            wanted = (file.channels, *file.size(page))
            if shape != wanted:
                shape = wanted
                measured = instrument.mask(np.ones(shape, dtype=np.float32), 0, 0) != 0
            yield file.page_name(page), file.read(page), measured


def _refuse_values(name: str, values: Array, measured: Measured, hint: str) -> None:
    wrong = ((values != 0) & ~measured).any(axis=0)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise NediffError(
            f"{name} has values other than 0 at {int(wrong.sum())} place(s) where nothing is "
            f"measured, the first at row {row}, column {column}; {hint}"
        )


def _variance(values: Array, measured: Measured) -> float:
    """Of the measured values of each channel that has any, averaged."""
    channels = zip(values.astype(np.float64), measured, strict=True)
    return float(np.mean([v[m].var() for v, m in channels if m.any()]))
