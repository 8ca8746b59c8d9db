"""What is known of an image file before its pixels are read, and how reading fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from nediff.data.layout import Array, Layout
from nediff.errors import NediffError


@dataclass(frozen=True)
class Header:
    """``mapped``: the pixels lie in the file as they are, so that it can be memory-mapped.

    ``min_is_white``: viewers show the file inverted (a kind of grey TIFF). The values are used
    as they are; it is only for writing the like. ``pairs``: the values are complex, and their
    real and imaginary parts are the last axis of the layout, two channels. ``about``: what to
    write of a result into its file (about.py), for formats that can hold it.
    """

    layout: Layout
    dtype: np.dtype[Any]
    mapped: bool
    min_is_white: bool = False
    pairs: bool = False
    about: Mapping[str, Any] | None = None


def native_dtype(dtype: np.dtype[Any], where: str) -> np.dtype[Any]:
    """The type in the byte order of this machine; refuses what is not a real number."""
    if dtype.kind not in "uif" or dtype.itemsize > 8:
        raise NediffError(
            f"{where} holds values of type {dtype}, which are not intensities; save it as "
            "integers or as float32."
        )
    native: np.dtype[Any] = dtype.newbyteorder("=")
    return native


@contextmanager
def reading(where: str, kind: str) -> Iterator[None]:
    """Say any failure of a decoder as one sentence that names the file."""
    try:
        yield
    except (NediffError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        raise too_large(where) from error
    except Exception as error:  # a decoder may raise anything on a damaged file
        raise NediffError(
            f"{where} cannot be read as {kind} ({error}); it may be cut short or not be such a "
            "file at all: remove it or save it again."
        ) from error


def too_large(where: str) -> NediffError:
    """The refusal of a file whose header promises an absurd number of pixels."""
    return NediffError(
        f"{where} claims more than {2 * (Image.MAX_IMAGE_PIXELS or 0)} pixels, as a file made to "
        "exhaust memory would; if it is genuine, save it as TIFF or .npy."
    )


def without_alpha(pixels: Array, colours: int, where: str) -> Array:
    """(H, W, colours) from a decoded picture (H, W) or (H, W, colours or colours + 1).

    A fully opaque alpha channel says nothing and is dropped; any other is refused, because
    neither the hidden colours nor the transparency is a measurement.
    """
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    if pixels.shape[2] == colours + 1:
        if (pixels[..., -1] != np.iinfo(pixels.dtype).max).any():
            raise NediffError(f"{where} is partly transparent; save it without an alpha channel.")
        pixels = pixels[..., :-1]
    if pixels.shape[2] != colours:
        raise ValueError(f"{pixels.shape[2]} channels where the header says {colours}")
    return pixels
