"""Random pooled crops, as a pure function of (seed, step, sample index)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nediff.data import Measurements
from nediff.operators import Convolution, Identity, LinearOperator, Mask, turn
from nediff.pooling import gather, gathered_noise, masked_noise, pool, pool_masked
from nediff.problem import Problem, stack_operators
from nediff.randomness import Draws, derive_key, normal_field
from nediff.recipes import Batch
from nediff.training.rehearsal import offset

LEAST_POOLED_CROP = 16
"""A pooled crop smaller than this teaches nothing but borders."""
LEAST_MEASURED = 0.1
"""A masked crop is pooled only if at least this share of its coarse pixels is measured."""


class BatchSource:
    """The batches of a run: batch k is the same whenever and wherever it is asked for.

    Images are chosen in proportion to their area, so every pixel is as likely as any other.
    A crop for factor f covers f times the crop and is pooled; where the image is too small
    for that, the pooled crop is smaller, so a batch may come in groups of different size.
    Where the operator allows no crops, whole measurements are taken.
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
    ) -> None:
        self.measurements, self.problem, self.crop, self.batch = measurements, problem, crop, batch
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
        by_size: dict[tuple[bool, int, int], list[tuple[int, _Crop]]] = {}
        for sample, numbers in zip(samples, zip(*columns, strict=True), strict=True):
            crop = self._cut(self._window(*numbers), sample)
            key = (isinstance(crop.operator, Identity), crop.y.shape[-2], crop.y.shape[-1])
            by_size.setdefault(key, []).append((sample, crop))
        return [
            ([sample for sample, _ in by_size[size]], self._stack([c for _, c in by_size[size]]))
            for size in sorted(by_size)
        ]

    def _window(self, image: float, factor: float, top: float, left: float, turn: float) -> _Window:
        """Five uniform numbers → which image, how pooled, where, and which way up."""
        index = bisect_right(self._area_steps, image * self._area_steps[-1])
        index = min(index, len(self._area_steps) - 1)
        height, width = self.measurements.size(index)
        operator = self.problem.operator
        if operator.crop_step is None:
            return _Window(index, 1, height, width, 0, 0, 0)
        f = self.factors[min(bisect_right(self._factor_steps, factor), len(self.factors) - 1)]
        blocks = self._blocks(f)
        size = self.crop
        if self.crop * blocks > min(height, width):
            size = min(height, width) // blocks // 8 * 8
        if size < LEAST_POOLED_CROP:
            f, blocks, size = 1, 1, self.crop
        side, step = size * blocks, operator.crop_step
        return _Window(
            index,
            f,
            side,
            side,
            offset(top, height - side, step),
            offset(left, width - side, step),
            int(turn * 8) if operator.turns else 0,
        )

    def _blocks(self, factor: int) -> int:
        """By how much a measurement is pooled for an image coarser by ``factor``."""
        operator = self.problem.operator
        if not isinstance(operator, Convolution) or factor == 1:
            return factor
        return factor // operator.stride  # a coarse measurement is a coarser image already

    def _cut(self, window: _Window, sample: int) -> _Crop:
        """Read the crop, lift it to a measurement, pool it and turn it, and its operator too."""
        place = (window.top, window.left, window.height, window.width)
        stored = self.measurements.crop(window.index, *place)
        operator = self.problem.operator.window(*place)
        y = self.problem.with_operator(operator).lift(torch.from_numpy(stored)[None])
        crop = _Crop(y, self.problem.sigma, operator)
        if window.factor > 1:
            crop = self._pooled(crop, window, sample)
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

    def _pooled(self, crop: _Crop, window: _Window, sample: int) -> _Crop:
        y, sigma, factor = crop.y[0].numpy(), self.problem.sigma, window.factor
        if isinstance(crop.operator, Identity):
            return _Crop(_tensor(pool(y, factor)), sigma / factor, crop.operator)
        if isinstance(crop.operator, Convolution):
            # pooled, the blur is small: a complete coarse image, to be blurred again
            blocks = self._blocks(factor)
            return _Crop(_tensor(pool(y, blocks)), sigma / blocks, Identity(), crop.operator)
        assert isinstance(crop.operator, Mask)  # the plan allows pooling for no other
        mask = crop.operator.mask[0].numpy()
        size = y.shape[-1] // factor
        key = derive_key("pool", self.seed, sample)
        noise = (sigma * normal_field([key], y.shape[0], size, size)[0]).numpy()
        # a part of the instrument as large as the coarse image; it begins where the crop does,
        # so it fits wherever the crop did, and differs from crop to crop
        shown = self.problem.operator.window(window.top, window.left, size, size)
        if crop.operator.kind == "demosaicing":
            complete = _tensor(gather(y, mask, factor, noise))
            everything = Mask(torch.ones_like(complete), "demosaicing")
            return _Crop(complete, sigma * gathered_noise(mask, factor), everything, shown)
        coarse, measured = pool_masked(y, mask, factor, noise)
        if measured.mean() < LEAST_MEASURED:  # as large as a pooled crop, but not pooled
            return _Crop(crop.y[..., :size, :size], sigma, crop.operator.window(0, 0, size, size))
        there = _tensor(measured)
        shown = Mask(there * shown.known(there))
        return _Crop(_tensor(coarse), sigma * masked_noise(factor), Mask(there), shown)

    def _stack(self, crops: list[_Crop]) -> Batch:
        clean = [c.clean for c in crops if c.clean is not None]
        given = [c.given or c.operator for c in crops]
        return Batch(
            torch.cat([c.y for c in crops]),
            torch.tensor([c.sigma for c in crops]),
            self.problem.with_operator(stack_operators([c.operator for c in crops])),
            torch.cat(clean) if clean else None,
            stack_operators(given) if any(c.given for c in crops) else None,
        )


def _tensor(image: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(image))[None]


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


@dataclass
class _Crop:
    """One measurement (1, C, h, w), its noise and operator, and what to show of it if not all."""

    y: Tensor
    sigma: float
    operator: LinearOperator
    given: LinearOperator | None = None
    clean: Tensor | None = None

    def turned(self, k: int) -> _Crop:
        """Measurement, operators and image turned together."""
        return _Crop(
            turn(self.y, k),
            self.sigma,
            self.operator.turned(k),
            None if self.given is None else self.given.turned(k),
            None if self.clean is None else turn(self.clean, k),
        )
