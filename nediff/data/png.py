"""PNG by imagecodecs: Pillow would reduce 16-bit colour to 8 bits without a word."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import imagecodecs
import numpy as np
from PIL import Image

from nediff.data.cache import Store
from nediff.data.header import Header, too_large, without_alpha
from nediff.data.layout import Array, Layout

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY_TYPES = (0, 4)  # colour types without and with alpha; 2, 3 (palette) and 6 are colour


def header(path: Path, axes: str | None) -> Header:
    """Read the IHDR chunk; ``axes`` do not apply to PNG."""
    with path.open("rb") as file:
        start = file.read(26)
    if len(start) < 26 or not start.startswith(_SIGNATURE):
        raise ValueError("its contents do not begin as a PNG does")
    width, height, depth, colour = struct.unpack(">IIBB", start[16:26])
    if width * height > 2 * (Image.MAX_IMAGE_PIXELS or np.inf):
        raise too_large(str(path))
    dtype = np.dtype(np.uint16 if depth == 16 else np.uint8)
    if colour in _GREY_TYPES:
        return Header(Layout("YX", (height, width)), dtype, mapped=False)
    return Header(Layout("YXC", (height, width, 3)), dtype, mapped=False)


def open_map(path: Path) -> Array:
    """Never called: a PNG is compressed."""
    raise NotImplementedError


def decode(path: Path, layout: Layout, page: int, store: Store) -> Array:
    """The picture, (C, H, W); palettes become RGB."""
    pixels: Array = imagecodecs.png_decode(path.read_bytes())
    return np.ascontiguousarray(
        np.moveaxis(without_alpha(pixels, layout.channels, str(path)), 2, 0)
    )


def write(path: Path, header: Header, images: Iterable[Array], source: Path | None) -> None:
    """Write the one image (C, H, W) of uint8 or uint16."""
    (image,) = images
    pixels = np.moveaxis(image, 0, 2).reshape(header.layout.shape)
    path.write_bytes(imagecodecs.png_encode(np.ascontiguousarray(pixels)))
