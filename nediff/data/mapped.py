"""Arrays in files that need not fit in memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nediff.data.layout import Array, Layout


def fill(path: Path, array: Array, layout: Layout, images: Iterable[Array]) -> None:
    """Put the images, each (C, H, W), into ``array``, the writable memory map of ``path``."""
    reserve(path)
    for page, image in enumerate(images):
        layout.put(array, page, image)
    flush(array)


def reserve(path: Path) -> None:
    """Take the disk space now: a map into a full disk ends the process, this raises OSError."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def flush(array: Array) -> None:
    """Write what was put into a memory map, or a view of one."""
    if (map_ := _map_of(array)) is not None:
        map_.flush()


def forget(array: Array) -> None:
    """Let the pages of a memory map go; they are read again when needed.

    Otherwise they count as memory of this process for as long as the system finds room for them.
    """
    map_ = _map_of(array)
    if map_ is not None and hasattr(mmap, "MADV_DONTNEED"):
        map_.madvise(mmap.MADV_DONTNEED)


def _map_of(array: Any) -> mmap.mmap | None:
    """The map behind an array, if there is one."""
    while array is not None and not isinstance(array, mmap.mmap):
        array = getattr(array, "_mmap", None) or getattr(array, "base", None)
    return array
