"""Random pooled crops, as a pure function of (seed, step, sample index)."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from nediff.data import Measurements
from nediff.pooling import pool
from nediff.randomness import Draws
from nediff.recipes import Batch

LEAST_POOLED_CROP = 16
"""A pooled crop smaller than this teaches nothing but borders."""


class BatchSource:
    """The batches of a run: batch k is the same whenever and wherever it is asked for.

    Images are chosen in proportion to their area, so every pixel is as likely as any other.
    A crop for factor f covers f times the crop and is pooled; where the image is too small
    for that, the pooled crop is smaller, so a batch may come in groups of different size.
    """

    def __init__(
        self,
        measurements: Measurements,
        sigma: float,
        crop: int,
        batch: int,
        pool_factors: tuple[int, ...],
        pool_weights: tuple[float, ...],
        seed: int,
        with_clean: bool = False,
    ) -> None:
        self.measurements, self.sigma, self.crop, self.batch = measurements, sigma, crop, batch
        self.factors, self.seed = pool_factors, seed
        self.with_clean = with_clean and measurements.clean is not None
        total = sum(pool_weights)
        self._factor_steps = [w / total for w in accumulate(pool_weights)]
        areas = [h * w for h, w in (measurements.size(i) for i in range(len(measurements)))]
        self._area_steps = list(accumulate(areas))

    def groups(self, step: int, count: int | None = None) -> list[tuple[list[int], Batch]]:
        """The batch of a step as (global sample indices, crops of one size), sizes ascending.

        With ``count``, only the first so many of its crops.
        """
        first = step * self.batch
        samples = range(first, first + (self.batch if count is None else count))
        draws = Draws(self.seed, "crops", samples)
        columns = [draws.uniform().double().tolist() for _ in range(5)]
        by_size: dict[int, list[tuple[int, _Window]]] = {}
        for sample, numbers in zip(samples, zip(*columns, strict=True), strict=True):
            window = self._window(*numbers)
            by_size.setdefault(window.size, []).append((sample, window))
        return [
            ([sample for sample, _ in by_size[size]], self._stack([w for _, w in by_size[size]]))
            for size in sorted(by_size)
        ]

    def _window(self, image: float, factor: float, top: float, left: float, turn: float) -> _Window:
        """Five uniform numbers → which image, how pooled, where, and which way up."""
        index = bisect_right(self._area_steps, image * self._area_steps[-1])
        index = min(index, len(self._area_steps) - 1)
        height, width = self.measurements.size(index)
        f = self.factors[min(bisect_right(self._factor_steps, factor), len(self.factors) - 1)]
        size = self.crop
        if self.crop * f > min(height, width):
            size = min(height, width) // f // 8 * 8
        if size < LEAST_POOLED_CROP:
            f, size = 1, self.crop
        room_down, room_right = height - size * f, width - size * f
        return _Window(
            index,
            f,
            size,
            min(int(top * (room_down + 1)), room_down),
            min(int(left * (room_right + 1)), room_right),
            int(turn * 8),
        )

    def _stack(self, windows: list[_Window]) -> Batch:
        y = torch.from_numpy(np.stack([w.cut(self.measurements) for w in windows]))
        sigma = torch.tensor([self.sigma / w.factor for w in windows])
        clean = None
        if self.with_clean and self.measurements.clean is not None:
            clean = torch.from_numpy(np.stack([w.cut(self.measurements.clean) for w in windows]))
        return Batch(y, sigma, clean)


class _Window:
    """One crop: image, pool factor, pooled size, position, and one of the 8 flips and turns."""

    __slots__ = ("factor", "index", "left", "size", "top", "turn")

    def __init__(self, index: int, factor: int, size: int, top: int, left: int, turn: int) -> None:
        self.index, self.factor, self.size = index, factor, size
        self.top, self.left, self.turn = top, left, turn

    def cut(self, source: Measurements) -> NDArray[np.float32]:
        side = self.size * self.factor
        crop = pool(source.crop(self.index, self.top, self.left, side, side), self.factor)
        crop = np.rot90(crop, self.turn % 4, axes=(1, 2))
        return np.ascontiguousarray(crop[:, :, ::-1] if self.turn >= 4 else crop)
