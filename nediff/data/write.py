"""Writing restored images: in the format of their source, or as float TIFF."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nediff.data.atomic import atomic_path
from nediff.data.files import ImageFile
from nediff.data.formats import TIFF
from nediff.data.header import Header
from nediff.data.layout import Array, Layout
from nediff.errors import NediffError


def write_like(file: ImageFile, out_path: str | os.PathLike[str], images: Iterable[Array]) -> None:
    """Write images, each (C, H, W) in data units, as ``file`` is: format, type, order of axes.

    Integers are rounded and clipped to their type. One image is needed for each of the file;
    they are taken one by one, so that a stack need not fit in memory.
    """
    path = Path(out_path)
    if path.suffix.lower() not in file.kind.suffixes:
        raise NediffError(
            f"{path} is to be written as {file.format}, like {file.name}; let its name end in "
            f"{file.kind.suffixes[0]}."
        )
    with atomic_path(path) as temporary:
        file.kind.write(temporary, file.header, _stored(images, file.header), file.path)


def write_tiff(out_path: str | os.PathLike[str], images: Iterable[Array]) -> None:
    """Write float images, each (C, H, W) of one size, as one float32 TIFF.

    Several become a stack; three channels are RGB, any other number are planes.
    """
    stack = [np.asarray(image, dtype=np.float32) for image in images]
    header = Header(_plain_layout(len(stack), stack[0].shape), np.dtype(np.float32), mapped=True)
    with atomic_path(out_path) as temporary:
        TIFF.write(temporary, header, _stored(stack, header), None)


def _plain_layout(count: int, shape: tuple[int, ...]) -> Layout:
    channels, height, width = shape
    pairs = [("I", count), ("Y", height), ("X", width)]
    pairs.insert(3 if channels == 3 else 1, ("C", channels))
    pairs = [(letter, n) for letter, n in pairs if letter in "YX" or n > 1]
    return Layout("".join(letter for letter, _ in pairs), tuple(n for _, n in pairs))


def _stored(images: Iterable[Array], header: Header) -> Iterator[Array]:
    """The images in the type of the file; fails unless number and shapes are those it has."""
    layout = header.layout
    shape = (layout.channels, *layout.size)
    for _, image in zip(range(layout.n_images), images, strict=True):
        if image.shape != shape:
            raise ValueError(f"an image of shape {image.shape} where the file has {shape}")
        yield _as_type(image, header.dtype)


def _as_type(image: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "f":
        return image.astype(dtype)
    info = np.iinfo(dtype)
    high = float(info.max)
    if int(high) > info.max:  # 64-bit integers: the nearest double is one too many
        high = float(np.nextafter(high, 0.0))
    return np.clip(np.rint(image.astype(np.float64)), float(info.min), high).astype(dtype)
