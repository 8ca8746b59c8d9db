"""Crops of measurements: made coarser, turned, and stacked into batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nediff.operators import Convolution, Identity, LinearOperator, Mask, turn
from nediff.pooling import gather, gathered_noise, masked_noise, pool, pool_masked
from nediff.problem import Problem, stack_operators
from nediff.randomness import normal_field
from nediff.recipes import Batch

LEAST_POOLED_CROP = 16
"""A pooled crop smaller than this teaches nothing but borders."""
LEAST_MEASURED = 0.1
"""A masked crop is pooled only if at least this share of its coarse pixels is measured."""


@dataclass
class Crop:
    """One measurement (1, C, h, w), its noise and operator, and what to show of it if not all."""

    y: Tensor
    sigma: float
    operator: LinearOperator
    given: LinearOperator | None = None
    clean: Tensor | None = None

    def turned(self, k: int) -> Crop:
        """Measurement, operators and image turned together."""
        return Crop(
            turn(self.y, k),
            self.sigma,
            self.operator.turned(k),
            None if self.given is None else self.given.turned(k),
            None if self.clean is None else turn(self.clean, k),
        )


def offset(unit: float, room: int, step: int) -> int:
    """A number in [0, 1) → a multiple of ``step`` from 0 to ``room``, all as likely."""
    places = room // step
    return step * min(int(unit * (places + 1)), places)


def choices(factors: Sequence[int], weights: Sequence[float]) -> Callable[[float], int]:
    """A number in [0, 1) → one of the pool factors, as likely as its weight says."""
    steps = [w / sum(weights) for w in accumulate(weights)]
    return lambda unit: factors[min(bisect_right(steps, unit), len(factors) - 1)]


def fitting_factor(factor: int, size_of: Callable[[int], int]) -> tuple[int, int]:
    """The factor, or the next half of it whose crops are large enough, and the size of these."""
    while factor > 1 and size_of(factor) < LEAST_POOLED_CROP:
        factor = factor // 2 if factor % 2 == 0 else 1
    return factor, size_of(factor)


def blocks(operator: LinearOperator, factor: int) -> int:
    """By how much a measurement is pooled for an image coarser by ``factor``."""
    if not isinstance(operator, Convolution) or factor == 1:
        return factor
    return factor // operator.stride  # a coarse measurement is a coarser image already


def coarser(
    crop: Crop, factor: int, instrument: LinearOperator, corner: tuple[int, int], key: int
) -> Crop:
    """The crop as a measurement of a coarser image, or as a coarser image to be measured again.

    ``instrument`` is the whole of it and ``corner`` where in it the crop begins; ``key`` that of
    the noise which makes up for what is less noisy than the rest.
    """
    y, sigma = crop.y[0].numpy(), crop.sigma
    if isinstance(crop.operator, Identity):
        return Crop(_tensor(pool(y, factor)), sigma / factor, crop.operator)
    if isinstance(crop.operator, Convolution):
        # pooled, the blur is small: a complete coarse image, to be blurred again
        by = blocks(crop.operator, factor)
        return Crop(_tensor(pool(y, by)), sigma / by, Identity(), crop.operator)
    assert isinstance(crop.operator, Mask)  # the plan allows pooling for no other
    mask = crop.operator.mask[0].numpy()
    size = y.shape[-1] // factor
    noise = (sigma * normal_field([key], y.shape[0], size, size)[0]).numpy()
    # a part of the instrument as large as the coarse image; it begins where the crop does,
    # so it fits wherever the crop did, and differs from crop to crop
    shown = instrument.window(*corner, size, size)
    if crop.operator.kind == "demosaicing":
        complete = _tensor(gather(y, mask, factor, noise))
        everything = Mask(torch.ones_like(complete), "demosaicing")
        return Crop(complete, sigma * gathered_noise(mask, factor), everything, shown)
    coarse, measured = pool_masked(y, mask, factor, noise)
    if measured.mean() < LEAST_MEASURED:  # as large as a pooled crop, but not pooled
        return Crop(crop.y[..., :size, :size], sigma, crop.operator.window(0, 0, size, size))
    there = _tensor(measured)
    shown = Mask(there * shown.known(there))
    return Crop(_tensor(coarse), sigma * masked_noise(factor), Mask(there), shown)


def stack_by_size(
    samples: Sequence[int], crops: Sequence[Crop], problem: Problem, most: int | None = None
) -> list[tuple[list[int], Batch]]:
    """(global sample indices, batch) for each size of crops there is, sizes ascending.

    No batch has more than ``most`` crops.
    """
    by_size: dict[tuple[bool, int, int], list[tuple[int, Crop]]] = {}
    for sample, crop in zip(samples, crops, strict=True):
        key = (isinstance(crop.operator, Identity), crop.y.shape[-2], crop.y.shape[-1])
        by_size.setdefault(key, []).append((sample, crop))
    parts = [
        by_size[size][start : start + (most or len(crops))]
        for size in sorted(by_size)
        for start in range(0, len(by_size[size]), most or len(crops))
    ]
    return [([sample for sample, _ in p], _stack([c for _, c in p], problem)) for p in parts]


def _stack(crops: Sequence[Crop], problem: Problem) -> Batch:
    clean = [c.clean for c in crops if c.clean is not None]
    given = [c.given or c.operator for c in crops]
    return Batch(
        torch.cat([c.y for c in crops]),
        torch.tensor([c.sigma for c in crops]),
        problem.with_operator(stack_operators([c.operator for c in crops])),
        torch.cat(clean) if clean else None,
        stack_operators(given) if any(c.given for c in crops) else None,
    )


def _tensor(image: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(image))[None]
