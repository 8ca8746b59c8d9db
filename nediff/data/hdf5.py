"""HDF5: one dataset of a file, read and written window by window.

A file with several is named with the one that is meant, as if it were a folder: scan.h5/kspace.
Complex values are two channels, their real and imaginary parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nediff.data.cache import Store
from nediff.data.header import Header
from nediff.data.layout import Array, Layout
from nediff.data.limits import refuse_chunk, refuse_claim
from nediff.data.mapped import fill
from nediff.data.nested import Nested, choose, nested_header, split_at
from nediff.errors import NediffError

SUFFIXES = (".h5", ".hdf5")
DATASET = "data"
"""The name of the dataset in files of ours."""


def header(path: Path, axes: str | None) -> Header:
    """Shape and type of the dataset."""
    return nested_header(open_map(path), axes, str(path))


def open_map(path: Path, mode: Literal["r", "r+"] = "r") -> Array:
    """The dataset, which is indexed like an array."""
    import h5py

    place, inside = split_at(path, SUFFIXES)
    file = h5py.File(place, mode)
    found: dict[str, Any] = {}

    def look(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.ndim >= 2:
            found[name] = item

    try:
        file.visititems(look)  # links to other places are not followed
        chosen = choose(found, inside, path)
        _refuse_elsewhere(chosen, path)
    except BaseException:
        file.close()
        raise
    return Nested(chosen)  # type: ignore[return-value]


def _refuse_elsewhere(dataset: Any, path: Path) -> None:
    """Values that lie in other files, or nowhere at all."""
    if dataset.external or dataset.is_virtual:
        raise NediffError(
            f"{path} refers to values in other files; copy them into one (h5repack does)."
        )
    size, stored = dataset.dtype.itemsize, dataset.id.get_storage_size()
    refuse_claim(size * math.prod(dataset.shape), stored, str(path))
    if dataset.chunks is not None:
        refuse_chunk(size * math.prod(dataset.chunks), str(path))


def decode(path: Path, layout: Layout, page: int, store: Store) -> Array:
    """Never called: datasets are read in parts."""
    raise NotImplementedError


def create(path: Path, header: Header) -> Array:
    """A new file with one dataset of the header's layout."""
    import h5py

    dtype, shape = header.dtype, header.layout.shape
    if header.pairs:
        dtype, shape = np.result_type(dtype, np.complex64), shape[:-1]
    with h5py.File(path, "w") as file:
        made = file.create_dataset(DATASET, shape, dtype)
        made.attrs["axes"] = header.layout.axes[: len(shape)]
    return open_map(path, "r+")


def write(path: Path, header: Header, images: Iterable[Array], source: Path | None) -> None:
    """Write the images, each (C, H, W), in the layout of the header."""
    array = create(path, header)
    fill(path, array, header.layout, images)
    array.close()  # type: ignore[attr-defined]
