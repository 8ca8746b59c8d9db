"""The file formats, by the ending of the name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from nediff.data import hdf5, npy, photo, png, tiff, zarr
from nediff.data.cache import Store
from nediff.data.header import Header
from nediff.data.layout import Array, Layout
from nediff.data.nested import split_at


@dataclass(frozen=True)
class Format:
    """How one format is read and written.

    ``header(path, axes)`` needs no pixels; ``open_map(path)`` gives the stored array of a
    mapped file and ``decode(path, layout, page, store)`` one image (C, H, W) of any other;
    ``write(path, header, images, source)`` makes a file of images already of the right type.
    """

    name: str
    suffixes: tuple[str, ...]
    header: Callable[[Path, str | None], Header]
    open_map: Callable[[Path], Array]
    decode: Callable[[Path, Layout, int, Store], Array]
    write: Callable[[Path, Header, Iterable[Array], Path | None], None]


PNG = Format("PNG", (".png",), png.header, png.open_map, png.decode, png.write)
JPEG = Format("JPEG", (".jpg", ".jpeg"), photo.header, photo.open_map, photo.decode, photo.write)
WEBP = Format("WebP", (".webp",), photo.header, photo.open_map, photo.decode, photo.write)
TIFF = Format("TIFF", (".tif", ".tiff"), tiff.header, tiff.open_map, tiff.decode, tiff.write)
NPY = Format("NPY", (".npy",), npy.header, npy.open_map, npy.decode, npy.write)
HDF5 = Format("HDF5", hdf5.SUFFIXES, hdf5.header, hdf5.open_map, hdf5.decode, hdf5.write)
ZARR = Format("Zarr", zarr.SUFFIXES, zarr.header, zarr.open_map, zarr.decode, zarr.write)

_ALL = (PNG, JPEG, WEBP, TIFF, NPY, HDF5, ZARR)
FORMATS = {suffix: kind for kind in _ALL for suffix in kind.suffixes}
ENDINGS = ", ".join(FORMATS)


def format_of(path: Path) -> Format | None:
    """The format a file claims to have by its ending, None for anything that is no image.

    An array inside a Zarr folder or an HDF5 file has that of what it is in.
    """
    own = FORMATS.get(path.suffix.lower())
    around = (FORMATS.get(place.suffix.lower()) for place in path.parents)
    return own or next((kind for kind in around if kind in (HDF5, ZARR)), None)


def place_of(path: Path) -> Path:
    """What is on the disk of a path that may go on inside an HDF5 file or a Zarr folder."""
    for kind in (HDF5, ZARR):
        place, inside = split_at(path, kind.suffixes)
        if inside and place.exists():
            return place
    return path
