"""Arrays inside HDF5 files and Zarr folders: which one is meant, and how it is indexed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nediff.data.header import Header, native_dtype
from nediff.data.layout import Array, Layout, make_layout
from nediff.errors import NediffError


class Nested:
    """Indexed like an array in memory; complex values are pairs, (..., 2)."""

    def __init__(self, array: Any, axes: str | None = None) -> None:
        self._array = array
        self.axes = axes or _named(array)
        self.pairs = np.dtype(array.dtype).kind == "c"

    @property
    def shape(self) -> tuple[int, ...]:
        """As stored."""
        return tuple(int(n) for n in self._array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """As stored."""
        found: np.dtype[Any] = np.dtype(self._array.dtype)
        return found

    @property
    def chunks(self) -> tuple[int, ...]:
        """The shape of what is read at once; without chunks, nothing is read in vain."""
        return tuple(self._array.chunks or (1,))

    def __getitem__(self, index: tuple[int | slice, ...]) -> Array:
        if not self.pairs:
            return np.asarray(self._array[index])
        values = np.ascontiguousarray(np.asarray(self._array[index[:-1]])[..., None])
        return values.view(values.real.dtype)[..., index[-1]]

    def __setitem__(self, index: tuple[int | slice, ...], values: Array) -> None:
        if self.pairs:
            parts = np.moveaxis(values, -1, 0)
            index, values = index[:-1], parts[0] + 1j * parts[1]
        self._array[index] = values

    def close(self) -> None:
        """Of the file it is in, where there is one."""
        if hasattr(self._array, "file"):
            self._array.file.close()


def _named(array: Any) -> str | None:
    """The axes by an attribute: ours, or that of xarray."""
    attributes = dict(array.attrs)
    if isinstance(said := attributes.get("axes"), str):
        return said
    names = attributes.get("_ARRAY_DIMENSIONS")
    letters = [str(n)[:1].upper() for n in names] if names is not None else []
    return "".join(letters) if {"Y", "X"} <= set(letters) else None


def nested_header(array: Any, axes: str | None, where: str) -> Header:
    """What is known of it; ``axes`` given by the user come before those it names itself."""
    shape, dtype = array.shape, array.dtype
    layout = make_layout(shape, axes or array.axes, where)
    if not array.pairs:
        return Header(layout, native_dtype(dtype, where), mapped=True)
    part = native_dtype(np.empty(0, dtype).real.dtype, where)
    return Header(Layout(layout.axes + "C", (*shape, 2)), part, mapped=True, pairs=True)


def split_at(path: Path, suffixes: tuple[str, ...]) -> tuple[Path, str]:
    """What is on the disk, and the name inside it: (scan.h5, kspace) of scan.h5/kspace."""
    for place in (path, *path.parents):
        if place.suffix.lower() in suffixes:
            return place, path.relative_to(place).as_posix().removeprefix(".")
    return path, ""


def choose(found: dict[str, Any], name: str, path: Path) -> Any:
    """The array of that name, or the only one."""
    if name in found:
        return found[name]
    listed = ", ".join(sorted(found)[:6]) or "none"
    if name:
        raise NediffError(f"There is no array {path}; those of at least two axes are: {listed}.")
    if len(found) != 1:
        raise NediffError(
            f"{path} holds {len(found)} arrays of at least two axes ({listed}); name the one that "
            f"is meant, such as {path}/{next(iter(sorted(found)), 'data')}."
        )
    return next(iter(found.values()))
