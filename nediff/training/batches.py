"""Random pooled crops, as a pure function of (seed, step, sample index)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from nediff.data import Measurements
from nediff.pooling import pool
from nediff.problem import Problem
from nediff.randomness import Draws, derive_key
from nediff.recipes import Batch
from nediff.training.crops import (
    Crop,
    blocks,
    choices,
    coarser,
    fitting_factor,
    offset,
    stack_by_size,
)


class BatchSource:
    """The batches of a run: batch k is the same whenever and wherever it is asked for.

    Images are chosen in proportion to their area, so every pixel is as likely as any other.
    A crop for factor f covers f times the crop and is pooled; where the image is too small
    for that, the pooled crop is smaller, so a batch may come in groups of different size.
    Where the operator allows no crops, whole measurements are taken. Without ``turns`` crops
    stay the way up they were measured. Steps from ``pooled_steps`` on pool nothing.
    """

    def __init__(
        self,
        measurements: Measurements,
        problem: Problem,
        crop: int,
        batch: int,
        pool_factors: tuple[int, ...],
        pool_weights: tuple[float, ...],
        seed: int,
        with_clean: bool = False,
        turns: bool = True,
        pooled_steps: int | None = None,
    ) -> None:
        self.measurements, self.problem, self.crop, self.batch = measurements, problem, crop, batch
        self.factors, self.seed, self.turns = pool_factors, seed, turns
        self.pooled_steps = pooled_steps
        self.with_clean = with_clean and measurements.clean is not None
        self._factor_of = choices(pool_factors, pool_weights)
        areas = [h * w for h, w in (measurements.size(i) for i in range(len(measurements)))]
        self._area_steps = list(accumulate(areas))

    def samples(self, step: int) -> range:
        """The global sample indices of the batch of a step."""
        return range(step * self.batch, (step + 1) * self.batch)

    def groups(
        self, step: int, samples: Sequence[int] | None = None, most: int | None = None
    ) -> list[tuple[list[int], Batch]]:
        """The batch of a step as (global sample indices, crops of one size), sizes ascending.

        With ``samples``, only these of its crops, the same as in the whole batch. ``most`` is how
        many crops may be together.
        """
        samples = self.samples(step) if samples is None else samples
        if not samples:
            return []
        windows = self._windows(step, samples)
        if self.measurements.remote:
            self.measurements.prepare(w.index for w in windows)
            after = self._windows(step + 1, [s + self.batch for s in samples])
            self.measurements.prepare((w.index for w in after), wait=False)
        crops = [self._cut(w, sample) for w, sample in zip(windows, samples, strict=True)]
        return stack_by_size(samples, crops, self.problem, most)

    def _windows(self, step: int, samples: Sequence[int]) -> list[_Window]:
        """Where these samples are cut, before anything is read."""
        draws = Draws(self.seed, "crops", samples)
        columns = [draws.uniform().double().tolist() for _ in range(5)]
        pooled = self.pooled_steps is None or step < self.pooled_steps
        return [
            self._window(image, self._factor_of(f) if pooled else 1, *place)
            for image, f, *place in zip(*columns, strict=True)
        ]

    def _window(self, image: float, factor: int, top: float, left: float, turn: float) -> _Window:
        """Four uniform numbers → which image, where, and which way up; pooled by ``factor``."""
        index = bisect_right(self._area_steps, image * self._area_steps[-1])
        index = min(index, len(self._area_steps) - 1)
        height, width = self.measurements.size(index)
        operator = self.problem.operator
        if operator.crop_step is None:
            return _Window(index, 1, height, width, 0, 0, 0)
        f, size = fitting_factor(factor, lambda f: self._size(f, height, width))
        by = blocks(operator, f)
        side, step = size * by, operator.crop_step
        return _Window(
            index,
            f,
            side,
            side,
            offset(top, height - side, step),
            offset(left, width - side, step),
            int(turn * 8) if operator.turns and self.turns else 0,
        )

    def _size(self, factor: int, height: int, width: int) -> int:
        """The side of a crop pooled by ``factor``, as far as the image allows; 0 if it does not."""
        by = blocks(self.problem.operator, factor)
        if by == 0:  # less than the stride: there is no such coarser image
            return 0
        if self.crop * by <= min(height, width):
            return self.crop
        return min(height, width) // by // 8 * 8

    def _cut(self, window: _Window, sample: int) -> Crop:
        """Read the crop, lift it to a measurement, pool it and turn it, and its operator too."""
        place = (window.top, window.left, window.height, window.width)
        stored = self.measurements.crop(window.index, *place)
        operator = self.problem.operator.window(*place)
        y = self.problem.with_operator(operator).lift(torch.from_numpy(stored)[None])
        sigma = self.measurements.sigma_of(window.index, self.problem.sigma)
        crop = Crop(y, sigma, operator)
        if window.factor > 1:
            key = derive_key("pool", self.seed, sample)
            corner = (window.top, window.left)
            crop = coarser(crop, window.factor, self.problem.operator, corner, key)
        if self.with_clean and self.measurements.clean is not None:
            crop.clean = self._clean(window)
        return crop.turned(window.turn)

    def _clean(self, window: _Window) -> Tensor:
        """The image behind a crop, pooled as it was."""
        operator = self.problem.operator
        corner = operator.image_corner(window.top, window.left)
        size = operator.image_size(window.height, window.width)
        assert self.measurements.clean is not None
        stored = self.measurements.clean.crop(window.index, *corner, *size)
        image = operator.as_image(torch.from_numpy(stored)[None])
        return torch.from_numpy(pool(image[0].numpy(), window.factor))[None]


@dataclass(frozen=True)
class _Window:
    """Where a crop is cut (in the measurement), by how much it is pooled, and its turn."""

    index: int
    factor: int
    height: int
    width: int
    top: int
    left: int
    turn: int
