"""One image file (or array) as a numbered list of images of its own type."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nediff.data import npy
from nediff.data.cache import Store
from nediff.data.formats import ENDINGS, NPY, Format, format_of, place_of
from nediff.data.header import Header, reading
from nediff.data.layout import Array
from nediff.data.limits import refuse_special
from nediff.data.mapped import forget
from nediff.errors import NediffError


@dataclass(frozen=True, eq=False)
class ImageFile:
    """A file whose pixels are read when asked for, never kept here.

    ``name`` is relative to what the user named. ``array`` is set, and ``path`` is not, where
    the images were given as an array in memory.
    """

    name: str
    path: Path | None
    kind: Format
    header: Header
    store: Store
    array: Array | None = None

    @property
    def place(self) -> Path | None:
        """What is on the disk: the path may go on inside an HDF5 file or a Zarr folder."""
        return None if self.path is None else place_of(self.path)

    @property
    def format(self) -> str:
        """PNG, JPEG, WebP, TIFF, NPY, HDF5 or Zarr."""
        return self.kind.name

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the pixels."""
        return self.header.dtype

    @property
    def axes(self) -> str:
        """One letter per axis of the stored array, see ``Layout``."""
        return self.header.layout.axes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the stored array."""
        return self.header.layout.shape

    @property
    def n_images(self) -> int:
        """How many images: the pages of a stack counted one by one."""
        return self.header.layout.n_images

    @property
    def channels(self) -> int:
        """Channels of every image."""
        return self.header.layout.channels

    def size(self, page: int = 0) -> tuple[int, int]:
        """(H, W), known from the header; the pages of one file are alike."""
        return self.header.layout.size

    def page_name(self, page: int) -> str:
        """``cells.tif``, or ``cells.tif#3`` for page 3 of a stack, counted from 0."""
        return self.name if self.n_images == 1 else f"{self.name}#{page}"

    def read(self, page: int = 0) -> Array:
        """One image (C, H, W) in the type of the file."""
        height, width = self.size(page)
        return self.read_crop(page, 0, 0, height, width)

    def read_crop(self, page: int, top: int, left: int, height: int, width: int) -> Array:
        """A window (C, height, width); of a mapped file no more than it is read from the disk."""
        rows, columns = slice(top, top + height), slice(left, left + width)
        if not 0 <= page < self.n_images:
            raise IndexError(f"page {page} of the {self.n_images} of {self.name}")
        with reading(str(self.path or self.name), self.format):
            if self.header.mapped:
                view = self.header.layout.window(self._mapped(), page, rows, columns)
            else:
                view = self._decoded(page)[:, rows, columns]
            return np.array(view, dtype=self.dtype, order="C", subok=False)

    def forget(self) -> None:
        """Let go what was read of a mapped file; it is read again when needed."""
        if self.header.mapped:
            forget(self._mapped())

    def _mapped(self) -> Array:
        path = self.path
        if self.array is not None or path is None:
            assert self.array is not None
            return self.array
        array: Array = self.store.handles.get((os.getpid(), path), lambda: self.kind.open_map(path))
        return array

    def _decoded(self, page: int) -> Array:
        path = self.path
        assert path is not None
        return self.store.images.get(
            (path, page), lambda: self.kind.decode(path, self.header.layout, page, self.store)
        )


def open_file(path: Path, name: str, axes: str | None, store: Store) -> ImageFile:
    """Read the header of one file."""
    kind = format_of(path)
    if kind is None:
        raise NediffError(f"{path} is not in a format that is read here ({ENDINGS}).")
    refuse_special(place_of(path))
    with reading(str(path), kind.name):
        header = kind.header(path, axes)
    if 0 in header.layout.shape:
        raise NediffError(f"{path} is empty (its shape is {header.layout.shape}); remove it.")
    return ImageFile(name, path, kind, header, store)


def wrap_array(array: Array, axes: str | None, store: Store) -> ImageFile:
    """Images given in memory; they are referred to, not copied."""
    header = npy.array_header(array, axes, "The array")
    return ImageFile("array", None, NPY, header, store, npy.as_pairs(array))
