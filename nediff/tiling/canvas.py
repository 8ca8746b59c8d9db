"""Images that need not fit in memory: read and written rectangle by rectangle."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nediff.errors import NediffError
from nediff.tiling.tiles import Tile

Values = NDArray[np.float32]
Shape = tuple[int, int, int]


class Canvas(Protocol):
    """An image (C, H, W) of float32."""

    shape: Shape

    def read(self, tile: Tile) -> Values:
        """A rectangle (C, h, w)."""

    def write(self, tile: Tile, values: Values) -> None:
        """Put a rectangle (C, h, w) in its place."""


CanvasMaker = Callable[[str, Shape], Canvas]
"""By a name; the same name gives the same canvas again, also after an interruption."""


class MemoryCanvas:
    """In an array."""

    def __init__(self, array: Values) -> None:
        self.array = array
        self.shape: Shape = array.shape

    def read(self, tile: Tile) -> Values:
        """A copy of the rectangle."""
        out: Values = self.array[:, tile.rows, tile.columns].copy()
        return out

    def write(self, tile: Tile, values: Values) -> None:
        """Into the array."""
        self.array[:, tile.rows, tile.columns] = values


def in_memory() -> CanvasMaker:
    """Canvases that are gone when nobody needs them."""
    made: dict[str, MemoryCanvas] = {}

    def make(name: str, shape: Shape) -> Canvas:
        if name not in made:
            made[name] = MemoryCanvas(np.zeros(shape, np.float32))
        return made[name]

    return make


class FileCanvas:
    """In a file, row after row; no more than a rectangle of it is ever in memory.

    Not a memory map: the pages of one count as memory of the process for as long as the system
    finds room for them.
    """

    def __init__(self, path: Path, shape: Shape) -> None:
        self.path, self.shape = path, shape
        size = 4 * int(np.prod(shape, dtype=np.int64))
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
        try:
            self._file = os.open(path, flags, 0o644)
            if hasattr(os, "posix_fallocate"):  # a full disk is found out now
                os.posix_fallocate(self._file, 0, size)
            else:
                os.ftruncate(self._file, size)
        except OSError as error:
            raise NediffError(
                f"No room for {size / 2**30:.1f} GB of intermediate results in {path.parent} "
                f"({error.strerror}); free some space or choose another --out."
            ) from error

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def _offset(self, channel: int, row: int, column: int) -> int:
        _, height, width = self.shape
        return 4 * ((channel * height + row) * width + column)

    def read(self, tile: Tile) -> Values:
        """Row by row."""
        out = np.empty((self.shape[0], tile.height, tile.width), np.float32)
        for channel in range(len(out)):
            for row in range(tile.height):
                place = self._offset(channel, tile.top + row, tile.left)
                got = os.pread(self._file, 4 * tile.width, place)
                out[channel, row] = np.frombuffer(got, np.float32)
        return out

    def write(self, tile: Tile, values: Values) -> None:
        """Row by row."""
        stored = np.ascontiguousarray(values, np.float32)
        for channel in range(len(stored)):
            for row in range(tile.height):
                place = self._offset(channel, tile.top + row, tile.left)
                os.pwrite(self._file, stored[channel, row].tobytes(), place)


def on_disk(folder: Path) -> CanvasMaker:
    """Canvases in files of this folder, which stay there."""
    made: dict[str, FileCanvas] = {}

    def make(name: str, shape: Shape) -> Canvas:
        if name not in made:
            made[name] = FileCanvas(folder / f"{name}.f32", shape)
        return made[name]

    return make
