"""Memory for large images, taken from the system once instead of for each layer."""

from __future__ import annotations

import ctypes
import sys

LARGEST = 2**30
"""Bytes: blocks up to this size are kept for the next that asks."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h."""


def reuse_large_blocks() -> bool:
    """Let the C library keep freed blocks; whether it does (GNU's can, others are left alone).

    It gives blocks above 32 MB back to the system, which fills each with zeros, page by page, when
    it is asked for again. One channel group of a network looking at 900 × 900 pixels is as large:
    then that costs nearly as much as the convolutions. For whole programs only, not for a library:
    what was freed stays with the process until it ends.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGEST) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))


def give_back_free_memory() -> None:
    """Return what the C library keeps for later, where it can (GNU's).

    Kept blocks are cut up by small ones that stay, and after thousands of tiles no large one fits
    in between any more. So now and then all is given back, and a process needs no more memory for
    a large image than for a small one.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
