"""A mask or a kernel: one small array from a file, of any number type, bits included."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nediff.data import png, tiff
from nediff.data.cache import Store
from nediff.data.header import reading
from nediff.data.layout import Array
from nediff.errors import NediffError, did_you_mean_path


def read_plain(path: Path) -> Array:
    """The array of a PNG, TIFF or .npy file: (H, W), (C, H, W) or, of .npy, as it is.

    Channels that are all alike, as those of a grey picture saved in colour, become one.
    """
    if not path.is_file():
        raise NediffError(f"{path} does not exist.{did_you_mean_path(path)}")
    with reading(str(path), path.suffix or "an array"):
        values = _read(path)
    if values.dtype.kind not in "buif" or not values.size or not np.isfinite(values).all():
        raise NediffError(
            f"{path} must hold finite real numbers only; its type is {values.dtype} and its shape "
            f"{values.shape}."
        )
    grey = values.ndim == 3 and bool((values == values[:1]).all())
    return values[0] if grey else values


def _read(path: Path) -> Array:
    suffix = path.suffix.lower()
    values: Array
    if suffix == ".png":
        return png.decode(path, png.header(path, None).layout, 0, Store())
    if suffix == ".npy":
        values = np.array(np.lib.format.open_memmap(path, "r"))
    elif suffix in (".tif", ".tiff"):
        values = tiff.read_whole(path)
    else:
        raise NediffError(f"{path} must be a .png, .tif or .npy file: others change the values.")
    channels_last = values.ndim == 3 and values.shape[-1] <= 4 < values.shape[0]
    return np.moveaxis(values, -1, 0) if channels_last else values
