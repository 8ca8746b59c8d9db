"""NumPy's ``.npy`` files, always memory-mapped and never unpickled.

Complex values are two channels, their real and imaginary parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from nediff.data.cache import Store
from nediff.data.header import Header, native_dtype
from nediff.data.layout import Array, Layout, make_layout
from nediff.data.mapped import fill


def header(path: Path, axes: str | None) -> Header:
    """Read the header; fails on files shorter than it promises."""
    return array_header(_load(path), axes, str(path))


def array_header(array: Array, axes: str | None, where: str) -> Header:
    """What is known of an array; ``axes`` are its own, without that of `as_pairs`."""
    layout = make_layout(array.shape, axes, where)
    if array.dtype.kind != "c":
        return Header(layout, native_dtype(array.dtype, where), mapped=True)
    part = native_dtype(array.real.dtype, where)
    pairs = replace(layout, axes=layout.axes + "C", shape=(*layout.shape, 2))
    return Header(pairs, part, mapped=True, pairs=True)


def as_pairs(array: Array) -> Array:
    """Complex values (...) as their real and imaginary parts (..., 2), a view; others as is."""
    if array.dtype.kind != "c":
        return array
    view: Array = array[..., None].view(array.real.dtype)
    return view


def open_map(path: Path, mode: Literal["r", "r+"] = "r") -> Array:
    """The whole array, on disk."""
    return as_pairs(_load(path, mode))


def _load(path: Path, mode: Literal["r", "r+"] = "r") -> Array:
    """Not np.load, which opens archives too; this reads nothing but the header."""
    array: Array = np.lib.format.open_memmap(path, mode)
    return array


def decode(path: Path, layout: Layout, page: int, store: Store) -> Array:
    """Never called: these files are mapped."""
    raise NotImplementedError


def write(path: Path, header: Header, images: Iterable[Array], source: Path | None) -> None:
    """Write the images, each (C, H, W), in the layout of the header; pairs become complex."""
    fill(path, create(path, header), header.layout, images)


def create(path: Path, header: Header) -> Array:
    """A new file in the layout of the header, as a writable map; pairs are stored as complex."""
    dtype, shape = header.dtype, header.layout.shape
    if header.pairs:
        dtype, shape = np.result_type(dtype, np.complex64), shape[:-1]
    return as_pairs(np.lib.format.open_memmap(path, "w+", dtype, shape))
