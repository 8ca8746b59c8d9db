"""What a network says of its data, gathered for noise/scored.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import dctn, idctn
from torch import Tensor
from torch.nn import functional as F

from nediff.data import Measurements
from nediff.divergence import derivative
from nediff.errors import NediffError
from nediff.noise.blocks import GROUPS, SIDE
from nediff.noise.scored import ScoredBlocks, ScoredPixels
from nediff.operators import LinearOperator
from nediff.problem import Problem
from nediff.recipes import Network

TILE = 128
"""The side of the pieces in which images are looked at."""
MOST_VALUES = 6_000_000
"""So many values, about, are looked at in all."""
OFFSETS = (0, 4, 2, 6)
"""Of the grids of overlapping blocks, down and across: the first four are (0 or 4, 0 or 4)."""
SURROUNDINGS = 9
"""The side of the window around a pixel that says how flat it is there."""
LEAST_AROUND = 8
"""Fewer measured values in that window say nothing."""


@dataclass(frozen=True)
class Piece:
    """A window (1, C, h, w) of a measurement, which of its values are measured, and its group."""

    y: Tensor
    measured: Tensor
    operator: LinearOperator
    group: int


def pieces_of(measurements: Measurements, problem: Problem, grids: int = 1) -> Iterator[Piece]:
    """Windows all over the data, some of them where they are many; sides are multiples of 8.

    With several ``grids`` everything is looked at as often, from other corners.
    """
    several = len(measurements) >= GROUPS
    for grid in range(grids):
        places = _places(measurements, grid, problem.operator.crop_step or 1)
        values = measurements.channels * sum(height * width for *_, height, width in places)
        stride = max(1, values // MOST_VALUES)
        for number, (image, *place) in enumerate(places[::stride]):
            here = problem.with_operator(problem.operator.window(*place))
            y = here.lift(torch.from_numpy(measurements.crop(image, *place))[None])
            measured = here.mask_noise(torch.ones_like(y))
            group = (image if several else number) % GROUPS
            yield Piece(y, measured, here.operator, group)


def _offsets(grid: int) -> tuple[int, int]:
    """Down and across, of grid 0 to 15."""
    down, across = 2 * (grid // 8) + grid // 2 % 2, 2 * (grid // 4 % 2) + grid % 2
    return OFFSETS[down], OFFSETS[across]


def _places(
    measurements: Measurements, grid: int, step: int
) -> list[tuple[int, int, int, int, int]]:
    """(image, top, left, height, width) of all tiles; they begin off the grid of JPEG's blocks."""
    places = []
    for image in range(len(measurements)):
        height, width = measurements.size(image)
        first_row, first_column = ((image + n) % SIDE // step * step for n in _offsets(grid))
        for top in range(first_row, height - SIDE + 1, TILE):
            for left in range(first_column, width - SIDE + 1, TILE):
                rows, columns = (min(TILE, n) // SIDE * SIDE for n in (height - top, width - left))
                places.append((image, top, left, rows, columns))
    if not places:
        raise NediffError(f"The images are too small to learn their noise: no {SIDE} pixels fit.")
    return places


def score_blocks(network: Network, measurements: Measurements, problem: Problem) -> ScoredBlocks:
    """Blocks of complete images; those with values at the ends of the data are left out.

    Of little data they overlap, as far as sixteen grids of them go: few blocks are flat, and the
    more of them there are, the surer is what they say.
    """
    sizes = map(measurements.size, range(len(measurements)))
    values = measurements.channels * sum(height * width for height, width in sizes)
    grids = min(max(MOST_VALUES // values, 1), len(OFFSETS) ** 2)
    pieces = list(pieces_of(measurements, problem, grids))
    low = torch.stack([p.y.amin((0, 2, 3)) for p in pieces]).amin(0)
    high = torch.stack([p.y.amax((0, 2, 3)) for p in pieces]).amax(0)
    tables = [
        _blocks_of(network, piece, problem.sigma, number, low, high)
        for number, piece in enumerate(pieces)
    ]
    columns = [np.concatenate(column) for column in zip(*tables, strict=True)]
    return ScoredBlocks(*columns)


_Table = tuple[NDArray[np.float32], ...]


def _blocks_of(
    network: Network, piece: Piece, sigma: float, number: int, low: Tensor, high: Tensor
) -> _Table:
    """Coefficients of y, D(y) − y and its slopes, channels and groups of the blocks of a piece.

    The probe has random signs as its cosine coefficients: each then tells its own slope.
    """
    channels, height, width = piece.y.shape[1:]
    count = channels * height * width // SIDE**2
    signs = np.random.default_rng([0x5C0, number]).choice([-1.0, 1.0], (count, SIDE, SIDE))
    probe = _from_blocks(idctn(signs, axes=(1, 2), norm="ortho"), (channels, height, width))
    value, change = _derivative(network, piece, sigma, probe)
    inside = (piece.y > low[:, None, None]) & (piece.y < high[:, None, None])
    whole = _to_blocks(inside.float()).min(axis=(1, 2)) > 0
    kept = whole if whole.sum() >= count // 100 else np.ones_like(whole)
    pixels = _coefficients(piece.y - piece.y.mean(dim=(2, 3), keepdim=True))
    slope = signs.reshape(count, -1).astype(np.float32) * _coefficients(change) - 1
    channel = np.repeat(np.arange(channels), count // channels)
    group = np.full(count, piece.group)
    tables = (pixels, _coefficients(value - piece.y), slope, channel, group)
    return tuple(table[kept] for table in tables)


@torch.no_grad()
def _derivative(
    network: Network, piece: Piece, sigma: float, probe: Tensor
) -> tuple[Tensor, Tensor]:
    """A D(y) and A J b of a piece."""
    operator = piece.operator
    level = torch.full((1,), sigma)
    return derivative(lambda u, s: operator.A(network(u, s, operator)), piece.y, level, probe)


def _to_blocks(image: Tensor) -> NDArray[np.float32]:
    """(1, C, h, w) → (n, 8, 8), channel by channel."""
    _, channels, height, width = image.shape
    rows, columns = height // SIDE, width // SIDE
    cut = image.reshape(channels, rows, SIDE, columns, SIDE).transpose(2, 3)
    blocks: NDArray[np.float32] = cut.reshape(-1, SIDE, SIDE).numpy()
    return blocks


def _from_blocks(blocks: NDArray[np.float64], shape: tuple[int, int, int]) -> Tensor:
    """The reverse, (1, C, h, w) for a shape (C, h, w)."""
    channels, height, width = shape
    cut = torch.from_numpy(blocks).float()
    cut = cut.reshape(channels, height // SIDE, width // SIDE, SIDE, SIDE).transpose(2, 3)
    return cut.reshape(1, channels, height, width)


def _coefficients(image: Tensor) -> NDArray[np.float32]:
    """(1, C, h, w) → (n, 64), orthonormal cosine coefficients; that of the mean is zero."""
    found = dctn(_to_blocks(image), axes=(1, 2), norm="ortho").reshape(-1, SIDE**2)
    found[:, 0] = 0
    coefficients: NDArray[np.float32] = found.astype(np.float32)
    return coefficients


def score_pixels(
    network: Network | None, measurements: Measurements, problem: Problem
) -> ScoredPixels:
    """Measured pixels of incomplete images. Without a network, only what surrounds them tells."""
    tables = [
        _pixels_of(network, piece, problem.sigma, number)
        for number, piece in enumerate(pieces_of(measurements, problem))
    ]
    return ScoredPixels(*(np.concatenate(column) for column in zip(*tables, strict=True)))


def _pixels_of(
    network: Network | None, piece: Piece, sigma: float, number: int
) -> tuple[NDArray[np.float64], ...]:
    """Details, textures, residuals, slopes, channels and groups of the pixels of a piece."""
    y, there = piece.y, piece.measured
    around = _sum_around(there)
    mean = _sum_around(there * y) / around.clamp_min(1)
    texture = _sum_around(there * y.square()) / around.clamp_min(1) - mean.square()
    residual, slope = mean - y, -torch.ones_like(y)
    if network is not None:
        signs = np.random.default_rng([0x5C1, number]).choice([-1.0, 1.0], tuple(y.shape))
        probe = there * torch.from_numpy(signs).float()
        value, change = _derivative(network, piece, sigma, probe)
        residual, slope = value - y, probe * change - 1
    kept = (there > 0) & (around >= LEAST_AROUND)
    channel = torch.arange(y.shape[1])[:, None, None].expand_as(y)
    group = torch.full_like(channel, piece.group)
    tables = (y - mean, texture, residual, slope, channel, group)
    return tuple(
        table[kept].double().numpy().astype(kind)
        for table, kind in zip(tables, _KINDS, strict=True)
    )


_KINDS = (np.float64, np.float64, np.float64, np.float64, np.int64, np.int64)


def _sum_around(x: Tensor) -> Tensor:
    """Over the window around each pixel, without the pixel; (1, C, h, w) → same."""
    total = F.avg_pool2d(x, SURROUNDINGS, 1, SURROUNDINGS // 2) * SURROUNDINGS**2
    return total - x
