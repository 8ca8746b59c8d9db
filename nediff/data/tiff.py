"""TIFF by tifffile: memory-mapped where nothing is compressed, else decoded page by page."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tifffile

from nediff.data.cache import Store
from nediff.data.header import Header, native_dtype
from nediff.data.layout import Array, Layout, make_layout
from nediff.data.limits import refuse_claim, refuse_whole
from nediff.data.mapped import fill
from nediff.errors import NediffError

logging.getLogger("tifffile").addHandler(logging.NullHandler())  # what matters becomes a sentence


class _Complaints(logging.Handler):
    """Collects what tifffile only logs, such as pages lost to truncation."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def _strict() -> Iterator[None]:
    """Make the errors that tifffile passes over into exceptions."""
    complaints = _Complaints()
    logger = logging.getLogger("tifffile")
    logger.addHandler(complaints)
    try:
        yield
    finally:
        logger.removeHandler(complaints)
    if complaints.messages:
        raise ValueError(complaints.messages[0])


def _refuse_circles(tif: Any, path: Path) -> None:
    """Lists of tags that fill more than the file: one leads back to another, or they overlap.

    Each ends with the place of the next one; tifffile follows a circle for ever.
    """
    kind, file, claimed = tif.tiff, tif.filehandle, 0
    place = tif.pages.first.offset
    while 0 < place < file.size and claimed <= file.size:
        file.seek(place)
        count = int.from_bytes(file.read(kind.tagnosize), _order(kind))
        length = kind.tagnosize + count * kind.tagsize
        if place + length > file.size:
            return  # cut short, which tifffile says
        file.seek(place + length)
        place = int.from_bytes(file.read(kind.offsetsize), _order(kind))
        claimed += length + kind.offsetsize
    if claimed > file.size:
        raise NediffError(f"{path} is damaged: its pages overlap, or lead in a circle.")


def _order(kind: Any) -> Literal["little", "big"]:
    return "little" if kind.byteorder == "<" else "big"


def _series(tif: Any, path: Path) -> Any:
    """The one series of pages of equal shape."""
    _refuse_circles(tif, path)
    with _strict():
        series = tif.series
    if len(series) != 1 or series[0].is_multifile:
        raise NediffError(
            f"{path} holds {len(series)} series of images, or refers to other files; save each "
            "series as a TIFF of its own."
        )
    return series[0]


def _opened(path: Path) -> Any:
    """Without the other files that its metadata may name, wherever these lie."""
    return tifffile.TiffFile(path, _multifile=False)


def refuse_claims(series: Any, path: Path, whole: bool = False) -> None:
    """Pixels that cannot be in the file; ones that are compressed are unpacked page by page."""
    size = np.dtype(series.dtype).itemsize
    refuse_claim(size * math.prod(series.shape), path.stat().st_size, str(path))
    if whole or series.dataoffset is None:
        paged = not whole and _page_axes(series) is not None
        refuse_whole(size * math.prod(series.keyframe.shape if paged else series.shape), str(path))


def read_whole(path: Path) -> Array:
    """All pixels of a small file."""
    with _opened(path) as tif:
        series = _series(tif, path)
        refuse_claims(series, path, whole=True)
        pixels: Array = series.asarray()
    return pixels


def header(path: Path, axes: str | None) -> Header:
    """Read the tags of all pages; the metadata say what the axes are, or else the shape does."""
    with _opened(path) as tif:
        series = _series(tif, path)
        refuse_claims(series, path)
        shape, dtype = tuple(int(n) for n in series.shape), np.dtype(series.dtype)
        known, mapped = str(series.axes), series.dataoffset is not None
        min_is_white = _min_is_white(series, path)
    unknown = set(known) <= {"Q", "Y", "X"} and "Q" in known
    if axes is not None or unknown or 0 in shape:
        layout = make_layout(shape, axes, str(path))
    elif known.count("Y") == 1 and known.count("X") == 1:
        layout = Layout(known, shape)
    else:
        raise NediffError(f"{path} has the axes {known}, which are not those of images.")
    return Header(layout, native_dtype(dtype, str(path)), mapped, min_is_white)


def _min_is_white(series: Any, path: Path) -> bool:
    """Whether the lowest value is shown white; refuses palettes, whose values are no intensities.

    Averaging the numbers of colours, as restoring does, gives numbers of other colours.
    """
    photometric = series.keyframe.photometric
    if photometric == tifffile.PHOTOMETRIC.PALETTE:
        raise NediffError(
            f"{path} has a colour palette, so that its values are numbers of colours and not "
            "intensities; convert it to RGB, or to grey."
        )
    return bool(photometric == tifffile.PHOTOMETRIC.MINISWHITE)


def open_map(path: Path, mode: Literal["r", "r+"] = "r") -> Array:
    """The whole array, on disk."""
    array: Array = tifffile.memmap(path, mode=mode)
    return array


def _open(path: Path) -> Any:
    tif = _opened(path)
    tif.filehandle.set_lock(True)
    return tif


def decode(path: Path, layout: Layout, page: int, store: Store) -> Array:
    """One image (C, H, W): only the pages it is made of are decoded.

    The process is part of the key because a forked process must not share a file position.
    """
    tif = store.handles.get((os.getpid(), path), lambda: _open(path))
    series = _series(tif, path)
    index = layout.index(page, slice(None), slice(None))
    split = _page_axes(series)
    if split is None:
        picked = series.asarray()[index]
    else:
        numbers = np.arange(len(series.pages)).reshape(series.shape[:split])[index[:split]]
        tail = series.shape[split:]
        parts = [_page(series, int(k), tail)[index[split:]] for k in np.ravel(numbers)]
        picked = np.stack(parts).reshape(np.shape(numbers) + parts[0].shape)
    arranged = layout.arrange(picked)
    return np.ascontiguousarray(arranged.reshape(-1, *arranged.shape[-2:]))


def _page_axes(series: Any) -> int | None:
    """How many leading axes of the series run over its pages, the others lying inside a page."""
    pages, inside = len(series.pages), series.keyframe.size
    for split in range(len(series.shape) + 1):
        lead, tail = series.shape[:split], series.shape[split:]
        if math.prod(lead) == pages and math.prod(tail) == inside:
            return split
    return None


def _page(series: Any, number: int, shape: tuple[int, ...]) -> Array:
    page = series.pages[number]
    if page is None:
        raise ValueError(f"page {number} is missing")
    ends = (a + n for a, n in zip(page.dataoffsets, page.databytecounts, strict=True))
    if max(ends) > series.parent.filehandle.size:
        raise ValueError(f"the pixels of page {number} are cut off")
    pixels: Array = page.asarray().reshape(shape)
    return pixels


def write(path: Path, header: Header, images: Iterable[Array], source: Path | None) -> None:
    """Write the images, each (C, H, W), uncompressed and in the layout of the header."""
    fill(path, create(path, header), header.layout, images)


def create(path: Path, header: Header) -> Array:
    """A new file without compression, in the layout of the header, as a writable map."""
    layout = header.layout
    tags = _tags(layout)
    if header.min_is_white:
        tags["photometric"] = "miniswhite"
    if header.about is not None:
        tags["metadata"] = {**tags.get("metadata", {}), "nediff": header.about}
    array: Array = tifffile.memmap(
        path, shape=layout.shape, dtype=header.dtype, bigtiff=None, **tags
    )
    return array


def _tags(layout: Layout) -> dict[str, Any]:
    """Channels last are samples of a pixel, RGB where there are three; otherwise pages."""
    axes, rgb = layout.axes, layout.channels == 3
    if axes[-3:] in ("YXC", "YXS"):
        return {
            "photometric": "rgb" if rgb else "minisblack",
            "planarconfig": "contig",
            "metadata": {"axes": axes[:-1] + "S"},
        }
    if axes[-3:] == "SYX" and rgb:
        return {"photometric": "rgb", "planarconfig": "separate", "metadata": {"axes": axes}}
    return {"photometric": "minisblack", "metadata": {"axes": axes.replace("S", "C")}}
