"""Arrays to pictures, pixel by pixel."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage
from PIL import ImageDraw, ImageFont

Array = NDArray[np.floating]


def to_picture(image: Array) -> PILImage.Image:
    """(C, H, W) in unit intensities → 8-bit grey or RGB (other channel counts: their mean)."""
    channels = image if image.shape[0] in (1, 3) else image.mean(0, keepdims=True)
    values = np.round(np.clip(channels, 0, 1) * 255).astype(np.uint8)
    return PILImage.fromarray(values[0] if len(values) == 1 else values.transpose(1, 2, 0))


def heat(sd: Array, top: float) -> PILImage.Image:
    """A standard deviation (C, H, W), root-mean-squared over channels, as colours from 0 to top."""
    from matplotlib import colormaps

    flat = np.sqrt(np.square(sd.astype(np.float64)).mean(0))
    colours = colormaps["magma"](np.clip(flat / top, 0, 1))[..., :3]
    return PILImage.fromarray(np.round(colours * 255).astype(np.uint8))


def data_uri(picture: PILImage.Image) -> str:
    """The picture as a PNG inside a URI."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def montage(rows: list[list[tuple[str, PILImage.Image]]], side: int = 200) -> PILImage.Image:
    """Captioned pictures in rows, each scaled to ``side`` pixels wide; captions may have lines."""
    gap, font = 6, _font(12)
    heights = [max(round(p.height * side / p.width) for _, p in row) for row in rows]
    lines = [6 + 16 * max(caption.count("\n") + 1 for caption, _ in row) for row in rows]
    width = gap + max(len(row) for row in rows) * (side + gap)
    sheet = PILImage.new("RGB", (width, sum(heights) + sum(lines) + gap * (len(rows) + 1)), "white")
    draw = ImageDraw.Draw(sheet)
    top = gap
    for row, height, line in zip(rows, heights, lines, strict=True):
        for k, (caption, picture) in enumerate(row):
            left = gap + k * (side + gap)
            scaled = picture.convert("RGB").resize((side, height), PILImage.Resampling.LANCZOS)
            sheet.paste(scaled, (left, top + line))
            draw.text((left + 1, top + 2), caption, fill="#1e293b", font=font, spacing=2)
        top += height + line + gap
    return sheet


def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib and, unlike Pillow's own font, has a σ."""
    from matplotlib import get_data_path

    return ImageFont.truetype(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size)
