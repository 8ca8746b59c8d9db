"""JPEG and WebP by Pillow: 8-bit grey or RGB, one picture per file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nediff.data.cache import Store
from nediff.data.header import Header, without_alpha
from nediff.data.layout import Array, Layout
from nediff.errors import NediffError

_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 3}
_FORMATS = ("JPEG", "WEBP")
_QUALITY: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 95, "subsampling": 0},
    "WEBP": {"lossless": True, "exact": True},
}


def header(path: Path, axes: str | None) -> Header:
    """Read the header; ``axes`` do not apply to these formats."""
    with Image.open(path, formats=_FORMATS) as picture:
        mode, (width, height) = picture.mode, picture.size
        frames = getattr(picture, "n_frames", 1)
    if mode not in _CHANNELS:
        raise NediffError(f"{path} has the colour mode {mode}; save it as grey or RGB.")
    if frames > 1:
        raise NediffError(f"{path} is an animation of {frames} frames; save them one by one.")
    if _CHANNELS[mode] == 1:
        return Header(Layout("YX", (height, width)), np.dtype(np.uint8), mapped=False)
    return Header(Layout("YXC", (height, width, 3)), np.dtype(np.uint8), mapped=False)


def open_map(path: Path) -> Array:
    """Never called: these formats are compressed."""
    raise NotImplementedError


def decode(path: Path, layout: Layout, page: int, store: Store) -> Array:
    """The picture, (C, H, W), as stored: an orientation tag turns neither it nor our output."""
    with Image.open(path, formats=_FORMATS) as picture:
        pixels = np.asarray(picture)
    return np.ascontiguousarray(
        np.moveaxis(without_alpha(pixels, layout.channels, str(path)), 2, 0)
    )


def write(path: Path, header: Header, images: Iterable[Array], source: Path | None) -> None:
    """Write the one image (C, H, W) with the orientation (EXIF) and the colours of its source."""
    (image,) = images
    pixels = np.moveaxis(image, 0, 2).reshape(header.layout.shape)
    kind, tags = "WEBP" if path.suffix.lower() == ".webp" else "JPEG", {}
    if source is not None:
        with Image.open(source, formats=_FORMATS) as original:
            kind, known = original.format or kind, original.info
            tags = {key: known[key] for key in ("exif", "icc_profile") if key in known}
    Image.fromarray(np.ascontiguousarray(pixels)).save(path, kind, **_QUALITY[kind], **tags)
