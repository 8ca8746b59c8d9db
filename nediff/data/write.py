"""Writing restored images: in the format of their source where it can hold them, else TIFF."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nediff.data import npy, tiff, zarr
from nediff.data.atomic import atomic_path, lasting_folder, move, telling
from nediff.data.files import ImageFile
from nediff.data.formats import HDF5, JPEG, NPY, PNG, TIFF, WEBP, ZARR, Format
from nediff.data.header import Header
from nediff.data.layout import Array, Layout
from nediff.data.mapped import flush, forget, reserve
from nediff.errors import NediffError

Shape = tuple[int, int, int]
_FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class Form:
    """How images are to be stored: the format, and their type, shape and order of axes.

    ``source`` is the file whose tags (orientation, colours) go along.
    """

    kind: Format
    header: Header
    source: Path | None

    def rename(self, name: str) -> str:
        """``name`` with an ending of this format."""
        path = Path(name)
        if path.suffix.lower() in self.kind.suffixes:
            return name
        return path.with_suffix(self.kind.suffixes[0]).as_posix()


def form_like(file: ImageFile, shape: Shape, as_float: bool = False) -> Form:
    """The form of images (C, H, W) = ``shape`` that is most like that of ``file``.

    Format, type and order of axes are those of the file. A format that cannot hold images of
    this shape is left for TIFF. ``as_float`` is for images that are not of the kind of the
    input (an image from k-space): they are float32, whatever the input is.
    """
    if shape == (file.channels, *file.size()) and not as_float:
        return Form(file.kind, file.header, file.path)
    header = _reshaped(file.header, shape, _FLOAT if as_float else file.dtype)
    if _can_hold(file, shape[0], as_float):
        return Form(file.kind, header, file.path)
    return Form(TIFF, header, None)


def _can_hold(file: ImageFile, channels: int, as_float: bool) -> bool:
    if file.kind in (TIFF, NPY, HDF5, ZARR):
        return True
    if file.kind == PNG:
        return channels in (1, 3) and not as_float
    # the colour profile of a grey photograph would be wrong for a coloured one
    return file.kind in (JPEG, WEBP) and channels == file.channels and not as_float


def _reshaped(header: Header, shape: Shape, dtype: np.dtype[Any]) -> Header:
    """The header for images of another shape: channels stay where they are, or go to their place.

    That is last for the three of a colour image, and before the rows otherwise.
    """
    channels, height, width = shape
    old = header.layout
    pairs = list(zip(old.axes, old.shape, strict=True))
    same = channels == old.channels and not header.pairs
    if not same:
        pairs = [(letter, n) for letter, n in pairs if letter not in "CS"]
        letters = "".join(letter for letter, _ in pairs)
        place = len(pairs) if channels == 3 else min(letters.index("Y"), letters.index("X"))
        if channels > 1:
            pairs.insert(place, ("C", channels))
    size = {"Y": height, "X": width}
    axes, lengths = zip(*((letter, size.get(letter, n)) for letter, n in pairs), strict=True)
    layout = Layout("".join(axes), tuple(lengths))
    return Header(layout, dtype, header.mapped, header.min_is_white and same)


def write_form(form: Form, out_path: str | os.PathLike[str], images: Iterable[Array]) -> None:
    """Write images, each (C, H, W) in data units, in that form.

    Integers are rounded and clipped to their type. Every page needs its image; they are taken
    one by one, so that a stack need not fit in memory.
    """
    with atomic_path(out_path) as temporary:
        form.kind.write(temporary, form.header, _stored(images, form.header), form.source)


def write_like(file: ImageFile, out_path: str | os.PathLike[str], images: Iterable[Array]) -> None:
    """Write images of the shape of those of ``file`` as it is: format, type, order of axes."""
    path = Path(out_path)
    if path.suffix.lower() not in file.kind.suffixes:
        raise NediffError(
            f"{path} is to be written as {file.format}, like {file.name}; let its name end in "
            f"{file.kind.suffixes[0]}."
        )
    write_form(Form(file.kind, file.header, file.path), path, images)


def write_tiff(out_path: str | os.PathLike[str], images: Iterable[Array]) -> None:
    """Write float images, each (C, H, W) of one size, as one float32 TIFF.

    Several become a stack; three channels are RGB, any other number are planes.
    """
    stack = [np.asarray(image, dtype=np.float32) for image in images]
    write_form(float_form(len(stack), stack[0].shape), out_path, stack)


def _plain_layout(count: int, shape: tuple[int, ...]) -> Layout:
    channels, height, width = shape
    pairs = [("I", count), ("Y", height), ("X", width)]
    pairs.insert(3 if channels == 3 else 1, ("C", channels))
    pairs = [(letter, n) for letter, n in pairs if letter in "YX" or n > 1]
    return Layout("".join(letter for letter, _ in pairs), tuple(n for _, n in pairs))


class Sheet:
    """An image file that is written window by window, in any order, without being in memory.

    It is made at ``path`` (with an ending of its own), or opened again if it is there; `finish`
    makes the real file of it. It may be ``shared`` by several processes, once one has made it.
    """

    def __init__(self, form: Form, path: Path, shared: bool = False) -> None:
        self.form = form
        self._kind, header = form.kind, form.header
        if form.kind not in (TIFF, NPY, ZARR):  # only written whole, or not safe from being killed
            self._kind, header = NPY, replace(header, mapped=True)
        self.path = path.with_suffix(self._kind.suffixes[0])
        # what is in one chunk is read and written again as a whole: one at a time
        self._lock = path.with_name(f".{path.name}-lock") if shared and self._kind is ZARR else None
        module = {TIFF.name: tiff, NPY.name: npy, ZARR.name: zarr}[self._kind.name]
        if not self.path.exists():
            with atomic_path(self.path) as temporary:
                module.create(temporary, header)
                if temporary.is_file():
                    reserve(temporary)
        self._array = module.open_map(self.path, "r+")

    def put(self, page: int, rows: slice, columns: slice, image: Array) -> None:
        """A window (C, h, w) in data units, rounded and clipped to the type of the file."""
        header = self.form.header
        stored = _as_type(image, header.dtype)
        with nullcontext() if self._lock is None else _one_at_a_time(self._lock):
            header.layout.put(self._array, page, stored, rows, columns)
        forget(self._array)

    def read(self, page: int, rows: slice, columns: slice) -> Array:
        """What was put there, (C, h, w)."""
        out = np.array(self.form.header.layout.window(self._array, page, rows, columns))
        forget(self._array)
        return out

    def finish(self, out_path: Path) -> None:
        """Move it to its place, or write what can only be written whole."""
        flush(self._array)
        if self._kind is self.form.kind:
            with telling(out_path):  # in one step: it is here or there, whoever is killed
                lasting_folder(out_path.parent)
                move(self.path, out_path)
            return
        height, width = self.form.header.layout.size
        pages = range(self.form.header.layout.n_images)
        write_form(
            self.form,
            out_path,
            (self.read(page, slice(0, height), slice(0, width)) for page in pages),
        )


@contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    """Wait until no other process is in this block."""
    import fcntl

    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def float_form(count: int, shape: tuple[int, ...]) -> Form:
    """A float32 TIFF of so many images (C, H, W) = ``shape``, as `write_tiff` makes it."""
    return Form(TIFF, Header(_plain_layout(count, shape), _FLOAT, mapped=True), None)


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
