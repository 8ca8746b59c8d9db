"""Writing arrays that need not fit in memory, one image after the other."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from nediff.data.layout import Array, Layout


def fill(path: Path, array: Array, layout: Layout, images: Iterable[Array]) -> None:
    """Put the images, each (C, H, W), into ``array``, the writable memory map of ``path``."""
    _reserve(path)
    for page, image in enumerate(images):
        layout.put(array, page, image)
    array.flush()  # type: ignore[attr-defined]  # a numpy.memmap


def _reserve(path: Path) -> None:
    """Take the disk space now: a map into a full disk ends the process, this raises OSError."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
