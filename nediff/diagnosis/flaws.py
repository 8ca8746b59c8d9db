"""What may be wrong with the files themselves: rounding, JPEG, clipping, copies, empty images."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nediff.data import Measurements
from nediff.noise.blocks import GROUPS, Floats, choose_images
from nediff.noise.floor import jackknife

Image = NDArray[np.float32]
MOST_COMPARED = 1000
"""Images among which copies are looked for."""
_REPEATED = 0.2  # fewer distinct values than this share: the data are rounded
_ATOM = 0.002  # of the pixels; as many at an end are no accident
_PILE = 1.5  # times as many at the end as at the value next to it
_GRID = 8  # pixels of a JPEG block
_BLOCKY = 5.0  # standard errors
_MATERIAL = 0.03  # of the usual step between neighbours
_THUMBNAIL = 16
_ALIKE = 1.6  # times the noise between two thumbnails
_DISTINCT = 30.0  # times the noise: thumbnails with less contrast cannot be told apart


@dataclass(frozen=True)
class Rounding:
    """``distinct`` values among those looked at, and the ``step`` between them (unit range)."""

    distinct: int
    step: float | None
    """None where values hardly repeat."""


def rounding_of(images: Sequence[Image], seed: int) -> Rounding:
    """Of up to 200,000 values drawn by the seed."""
    values = np.concatenate([image.reshape(-1) for image in images])
    random = np.random.default_rng([0x57E9, seed])
    if len(values) > 200_000:
        values = values[random.integers(0, len(values), 200_000)]
    distinct = np.unique(values)
    if len(distinct) < 2 or len(distinct) > _REPEATED * len(values):
        return Rounding(len(distinct), None)
    return Rounding(len(distinct), float(np.quantile(np.diff(distinct.astype(np.float64)), 0.1)))


@dataclass(frozen=True)
class Clipping:
    """The shares of pixels at the lowest and at the highest value, 0 where they do not pile up."""

    low: float
    high: float


def clipping_of(images: Sequence[Image], rounding: Rounding) -> Clipping:
    """A pile at an end of the data: more pixels there than at the value next to it."""
    values = np.concatenate([image.reshape(-1) for image in images])
    width = rounding.step if rounding.step is not None else 0.0
    found = []
    for end, sign in ((values.min(), 1.0), (values.max(), -1.0)):
        there = float(np.mean(np.abs(values - end) <= 0.25 * width))
        beside = float(np.mean(np.abs(values - end - sign * width) <= 0.25 * width)) if width else 0
        found.append(there if there > _ATOM and there > _PILE * beside else 0.0)
    return Clipping(*found)


def blockiness_of(images: Sequence[Image]) -> tuple[float, float]:
    """Jumps at every eighth pixel: how much larger than between others, and in standard errors.

    The jump between pixels j and j + 1 is |y_(j+1) − y_j − (y_j − y_(j−1) + y_(j+2) − y_(j+1))/2|;
    the eight phases of j are compared, since a crop may begin anywhere.
    """
    across = _worst_phase(images)
    down = _worst_phase([image.transpose(0, 2, 1) for image in images])
    return max(across, down, key=lambda found: found[1])


def _worst_phase(images: Sequence[Image]) -> tuple[float, float]:
    """The phase of the columns with the largest excess, in standard errors."""
    sums, counts = np.zeros((2, GROUPS, _GRID))
    for number, image in enumerate(images):
        if image.shape[2] < 2 * _GRID:
            continue
        step = np.diff(image.astype(np.float64), axis=2)
        jump = np.abs(step[..., 1:-1] - (step[..., :-2] + step[..., 2:]) / 2)
        phase = (np.arange(jump.shape[2]) + 1) % _GRID
        group = (np.arange(jump.shape[1]) * GROUPS // jump.shape[1] + number) % GROUPS
        rows = np.bincount(group, minlength=GROUPS) * jump.shape[0]
        for p in range(_GRID):
            by_row = jump[..., phase == p].sum(axis=(0, 2))
            sums[:, p] += np.bincount(group, by_row, minlength=GROUPS)
            counts[:, p] += rows * (phase == p).sum()
    there = np.flatnonzero(counts.sum(axis=1) > 0)
    if len(there) < 2:
        return 0.0, 0.0
    excess = _phase_excess(sums.sum(axis=0), counts.sum(axis=0))
    left_out = [_phase_excess(sums.sum(0) - sums[g], counts.sum(0) - counts[g]) for g in there]
    score = excess / np.maximum(jackknife(np.stack(left_out)), 1e-6)
    worst = int(np.argmax(score))
    return float(excess[worst]), float(score[worst])


def _phase_excess(sums: Floats, counts: Floats) -> Floats:
    """(8,): each phase over the mean of the others, minus one."""
    means = sums / np.maximum(counts, 1)
    others = (means.sum() - means) / (_GRID - 1)
    excess: Floats = means / np.maximum(others, 1e-12) - 1
    return excess


def blocky(excess: float, score: float) -> bool:
    """Whether the jumps are both large and no accident."""
    return excess > _MATERIAL and score > _BLOCKY


@dataclass(frozen=True)
class Copies:
    """Names of images that are the same: byte for byte, or but for their noise.

    ``constant``: images of one value. ``compared``: how many images were looked at.
    """

    exact: tuple[tuple[str, ...], ...]
    near: tuple[tuple[str, str], ...]
    constant: tuple[str, ...]
    compared: int


def copies_of(measurements: Measurements, sigma: float, seed: int) -> Copies:
    """Among up to MOST_COMPARED images drawn by the seed; σ in unit range."""
    same: dict[bytes, list[str]] = defaultdict(list)
    constant, thumbnails = [], []
    chosen = choose_images(measurements, seed, MOST_COMPARED)
    for i in chosen:
        image, name = measurements.image(i), measurements.name(i)
        if np.ptp(image) == 0:
            constant.append(name)
            continue
        digest = hashlib.blake2b(image.tobytes(), digest_size=16).digest()
        same[digest + str(image.shape).encode()].append(name)
        if len(same[digest + str(image.shape).encode()]) == 1:
            thumbnails.append((name, image.shape, _thumbnail(image)))
    exact = tuple(tuple(names) for names in same.values() if len(names) > 1)
    return Copies(exact, _near(thumbnails, sigma), tuple(constant), len(chosen))


def _thumbnail(image: Image) -> Floats:
    """Means of blocks, some 16 × 16 of them, of the mean over channels; rows and columns left."""
    plane = image.mean(axis=0, dtype=np.float64)
    side = max(1, min(plane.shape) // _THUMBNAIL)
    rows, columns = plane.shape[0] // side, plane.shape[1] // side
    cut = plane[: rows * side, : columns * side].reshape(rows, side, columns, side)
    means: Floats = cut.mean(axis=(1, 3))
    return means


def _near(
    thumbnails: Sequence[tuple[str, tuple[int, ...], Floats]], sigma: float
) -> tuple[tuple[str, str], ...]:
    """Pairs whose thumbnails differ by no more than their noise: E‖a − b‖² = 2 n σ²/(C side²)."""
    pairs = []
    by_shape: dict[tuple[int, ...], list[tuple[str, Floats]]] = defaultdict(list)
    for name, shape, small in thumbnails:
        by_shape[shape].append((name, small))
    for shape, members in by_shape.items():
        side = max(1, min(shape[1:]) // _THUMBNAIL)
        noise = sigma**2 / (shape[0] * side**2)
        table = np.stack([small.reshape(-1) for _, small in members])
        table = table - table.mean(axis=1, keepdims=True)
        squares = np.square(table).mean(axis=1)
        distance = squares[:, None] + squares - 2 * (table @ table.T) / table.shape[1]
        clear = squares > _DISTINCT * noise
        alike = (distance < _ALIKE * 2 * noise) & clear[:, None] & clear
        pairs += [(members[i][0], members[j][0]) for i, j in np.argwhere(np.triu(alike, 1))]
    return tuple(pairs)


def equal_channels(images: Sequence[Image]) -> bool:
    """Whether grey images are stored as colours."""
    return all(len(image) > 1 and bool((image == image[:1]).all()) for image in images)
