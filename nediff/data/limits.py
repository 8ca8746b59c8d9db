"""What a file may ask of us: files made to exhaust memory or time are refused before they do."""

from __future__ import annotations

import os
from pathlib import Path

from nediff.errors import NediffError

MOST_PIXELS = 2 * 89_478_485
"""More in one compressed image, and it is looked at twice; Pillow's limit."""
MOST_RATIO = 2000
"""Deflate makes a file at most 1032 times smaller; beyond this nothing is in it but a claim."""
MOST_CHUNK = 2**31
"""Bytes of a chunk, which is always unpacked as a whole; also the limit of Blosc."""


def refuse_special(path: Path) -> None:
    """Pipes and devices would be read for ever, or wait for ever."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise NediffError(f"{path} is not a file but a pipe or a device; copy it to a file first.")


def refuse_claim(claimed: int, stored: int, where: str) -> None:
    """Values of ``claimed`` bytes in a file, or part of one, that takes ``stored`` bytes."""
    if claimed > MOST_PIXELS and claimed > MOST_RATIO * max(stored, 1):
        raise NediffError(
            f"{where} claims {claimed / 2**30:.3g} GB of values but holds only {stored} bytes, "
            "as a file made to exhaust memory would."
        )


def refuse_whole(size: int, where: str) -> None:
    """What is unpacked as a whole must fit in memory."""
    if size > memory():
        raise NediffError(
            f"{where} takes {size / 2**30:.3g} GB unpacked, more than this machine has; save it "
            "without compression (TIFF, .npy) or in chunks (Zarr), which are read in parts."
        )


def refuse_chunk(size: int, where: str) -> None:
    """A chunk of an HDF5 or Zarr array."""
    if size > MOST_CHUNK:
        raise NediffError(
            f"{where} is stored in chunks of {size / 2**30:.3g} GB; save it in smaller ones."
        )


def memory() -> int:
    """Bytes of this machine's memory; without an answer, plenty."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**40
