"""The file formats, by the ending of the name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from nediff.data import npy, photo, png, tiff
from nediff.data.cache import Store
from nediff.data.header import Header
from nediff.data.layout import Array, Layout


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

FORMATS = {suffix: kind for kind in (PNG, JPEG, WEBP, TIFF, NPY) for suffix in kind.suffixes}
ENDINGS = ", ".join(FORMATS)


def format_of(path: Path) -> Format | None:
    """The format a file claims to have by its ending, None for anything that is no image."""
    return FORMATS.get(path.suffix.lower())
