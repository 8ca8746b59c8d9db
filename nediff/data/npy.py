"""NumPy's ``.npy`` files, always memory-mapped and never unpickled."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nediff.data.cache import Store
from nediff.data.header import Header, native_dtype
from nediff.data.layout import Array, Layout, make_layout
from nediff.data.mapped import fill


def header(path: Path, axes: str | None) -> Header:
    """Read the header; fails on files shorter than it promises."""
    array = open_map(path)
    layout = make_layout(array.shape, axes, str(path))
    return Header(layout, native_dtype(array.dtype, str(path)), mapped=True)


def open_map(path: Path) -> Array:
    """The whole array, on disk."""
    array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def decode(path: Path, layout: Layout, page: int, store: Store) -> Array:
    """Never called: these files are mapped."""
    raise NotImplementedError


def write(path: Path, header: Header, images: Iterable[Array], source: Path | None) -> None:
    """Write the images, each (C, H, W), in the layout of the header."""
    array = np.lib.format.open_memmap(path, "w+", header.dtype, header.layout.shape)
    fill(path, array, header.layout, images)
