"""Small blocks of noisy images and the energies of their cosine coefficients.

White Gaussian noise has independent coefficients of equal variance in any orthonormal basis, so
in the cosine basis of a block some coefficients can tell how textured the block is, and others,
independently, how strong the noise is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn

from nediff.data import Measurements
from nediff.errors import NediffError

SIDE = 8
"""Of a block, in pixels."""
GROUPS = 20
"""Parts of the data that are left out in turn for standard errors."""
MOST_BLOCKS = 100_000
MOST_IMAGES = 400
_TILES = 8  # of an image in each direction, where there are too few images to make groups of
_LARGEST = 2048  # the side of the windows in which larger images are looked at

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Blocks:
    """n blocks of one channel each, in unit range.

    ``energy`` (n, 64): squared orthonormal cosine coefficients, of the mean (column 0) zero;
    ``mean``, ``channel``, ``row`` and ``column`` (as fractions of the image), ``group`` and
    ``image`` (n,).
    ``clipped``: the share of the blocks looked at that held a value at an end of the data, or were
    of one value; they are left out unless hardly any other is left.
    """

    energy: NDArray[np.float32]
    mean: Floats
    channel: Integers
    row: Floats
    column: Floats
    group: Integers
    image: Integers
    clipped: float
    ends: tuple[float, float]
    """The smallest and the largest value of the images looked at."""

    def __len__(self) -> int:
        return len(self.mean)

    def select(self, chosen: NDArray[np.bool_]) -> Blocks:
        """Some of the blocks."""
        columns = ("energy", "mean", "channel", "row", "column", "group", "image")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})

    def of_image(self, image: int) -> Blocks:
        """Those of one image, with parts of it as groups."""
        own = self.select(self.image == image)
        return replace(own, group=_tiles(own.row, own.column) % GROUPS)

    def divided(self, variance: Floats) -> Blocks:
        """The energies in units of a variance (n,) of their own."""
        return replace(self, energy=(self.energy / variance[:, None]).astype(np.float32))


def choose_images(measurements: Measurements, seed: int, most: int = MOST_IMAGES) -> list[int]:
    """All images, or ``most`` of them drawn by the seed, in order."""
    if len(measurements) <= most:
        return list(range(len(measurements)))
    random = np.random.default_rng([0x401CE, seed])
    return sorted(int(i) for i in random.choice(len(measurements), most, replace=False))


def gather_blocks(measurements: Measurements, seed: int = 0) -> Blocks:
    """Blocks of the images (of some, in a big set), about MOST_BLOCKS in all."""
    chosen = choose_images(measurements, seed)
    kept = [i for i in chosen if min(measurements.size(i)) >= SIDE]
    if not kept:
        raise NediffError(
            f"The images are smaller than {SIDE} × {SIDE} pixels; their noise cannot be told "
            "from the image in so few."
        )
    ends = _ends(measurements, kept)
    share = MOST_BLOCKS / len(kept)
    tables = [
        _blocks_of(window, ends, place, image, len(kept), share * min(1, place[2] * place[3]))
        for image in kept
        for window, place in _windows(measurements, image)
    ]
    return _joined(tables, (float(ends[0].min()), float(ends[1].max())))


def _windows(
    measurements: Measurements, image: int
) -> Iterator[tuple[NDArray[np.float32], tuple[float, float, float, float]]]:
    """The image, or up to nine windows of a large one, with (top, left, height, width) as parts."""
    height, width = measurements.size(image)
    (tops, high), (lefts, wide) = _pieces(height), _pieces(width)
    for top in tops:
        for left in lefts:
            place = top / height, left / width, high / height, wide / width
            yield measurements.crop(image, top, left, high, wide), place


def _pieces(length: int) -> tuple[list[int], int]:
    """Where up to three pieces of a side begin, and their length; all of it if they can."""
    count = min(3, math.ceil(length / _LARGEST))
    size = min(_LARGEST, math.ceil(length / count))
    starts = np.linspace(0, length - size, count) if count > 1 else [0]
    return [int(start) for start in starts], size


def _ends(measurements: Measurements, images: list[int]) -> Floats:
    """(2, C): the smallest and the largest value of each channel."""
    lows, highs = [], []
    for image in images:
        for window, _ in _windows(measurements, image):
            lows.append(window.min(axis=(1, 2)))
            highs.append(window.max(axis=(1, 2)))
    return np.stack([np.min(lows, axis=0), np.max(highs, axis=0)]).astype(np.float64)


def _stride(height: int, width: int, channels: int, share: float) -> int:
    """The smallest that leaves about ``share`` blocks; no multiple of JPEG's eight pixels."""
    places = (height - SIDE + 1) * (width - SIDE + 1) * channels
    stride = max(1, math.ceil(math.sqrt(places / share)))
    return stride + 1 if stride % SIDE == 0 else stride


_Table = tuple[NDArray[np.float32], Floats, Integers, Floats, Floats, Integers, Integers, int]


def _tiles(rows: Floats, columns: Floats) -> Integers:
    """In which of 8 × 8 parts of its image a block lies."""
    return (rows * _TILES).astype(np.int64) * _TILES + (columns * _TILES).astype(np.int64)


def cosine_energies(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """Blocks (n, 8, 8) → squared orthonormal cosine coefficients (n, 64), without the mean's."""
    centred = pixels - pixels.mean(axis=(1, 2), keepdims=True, dtype=np.float64)
    coefficients = dctn(centred.astype(np.float32), axes=(1, 2), norm="ortho")
    energies: NDArray[np.float32] = np.square(coefficients).reshape(-1, SIDE * SIDE)
    return energies


def _blocks_of(
    window: NDArray[np.float32],
    ends: Floats,
    place: tuple[float, float, float, float],
    image: int,
    images: int,
    share: float,
) -> _Table:
    """The columns of `Blocks`, energies to images, and how many blocks are left out last."""
    channels, height, width = window.shape
    stride = _stride(height, width, channels, share)
    view = np.lib.stride_tricks.sliding_window_view(window, (SIDE, SIDE), axis=(1, 2))
    view = view[:, ::stride, ::stride]
    grid = np.indices(view.shape[:3]).reshape(3, -1)
    pixels = view.reshape(-1, SIDE, SIDE)
    low, high = pixels.min(axis=(1, 2)), pixels.max(axis=(1, 2))
    whole = (low > ends[0, grid[0]]) & (high < ends[1, grid[0]]) & (low < high)
    means = pixels.mean(axis=(1, 2), dtype=np.float64)
    energy = cosine_energies(pixels)
    rows = place[0] + place[2] * (grid[1] * stride + SIDE / 2) / height
    columns = place[1] + place[3] * (grid[2] * stride + SIDE / 2) / width
    group = np.full(len(means), image % GROUPS)
    if images < GROUPS:
        group = (_tiles(rows, columns) + 7 * image) % GROUPS
    order = np.argsort(~whole, kind="stable")
    return (
        energy[order],
        means[order],
        grid[0][order],
        rows[order],
        columns[order],
        group[order],
        np.full(len(means), image),
        int((~whole).sum()),
    )


def _joined(tables: list[_Table], ends: tuple[float, float]) -> Blocks:
    """All blocks that are whole; the others too where fewer than 64 and a hundredth are."""
    total = sum(len(table[1]) for table in tables)
    left_out = sum(table[7] for table in tables)
    enough = total - left_out >= max(64, total // 100)
    kept = [len(table[1]) - table[7] if enough else len(table[1]) for table in tables]
    tables_kept = list(zip(tables, kept, strict=True))
    return Blocks(
        energy=np.concatenate([table[0][:n] for table, n in tables_kept]),
        mean=np.concatenate([table[1][:n] for table, n in tables_kept]),
        channel=np.concatenate([table[2][:n] for table, n in tables_kept]),
        row=np.concatenate([table[3][:n] for table, n in tables_kept]),
        column=np.concatenate([table[4][:n] for table, n in tables_kept]),
        group=np.concatenate([table[5][:n] for table, n in tables_kept]),
        image=np.concatenate([table[6][:n] for table, n in tables_kept]),
        clipped=left_out / total,
        ends=ends,
    )
