"""Pooled measurements: cleaner measurements of coarser images (METHOD.md §2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.float32]


def pool(y: Image, factor: int) -> Image:
    """Means of disjoint factor×factor blocks: pool_f(y) = pool_f(x) + (σ/f) η', η' white.

    (C, H, W) → (C, H // f, W // f); rows and columns that fill no block are left out.
    """
    if factor == 1:
        return y
    means: Image = _blocks(y, factor).mean(axis=(2, 4), dtype=np.float64).astype(np.float32)
    return means


def pool_masked(y: Image, mask: Image, factor: int) -> tuple[Image, Image]:
    """Blocks of which every pixel is measured become measured coarse pixels, with noise σ/f.

    The others are missing: a sparser mask. Returns (pooled y, its mask).
    """
    complete = _blocks(mask, factor).min(axis=(2, 4))
    return pool(y, factor) * complete, complete


def gather(y: Image, mask: Image, factor: int, noise: Image) -> Image:
    """A mosaic (C, H, W), to a complete image of 1/factor its size: means of each colour's pixels.

    Every colour occurs in each block of ``factor`` pixels (an even number for Bayer). A colour
    that occurs more often than another has less noise; ``noise`` (standard normal, of the
    result's shape, times σ) makes up for it, so that all have that of the rarest.
    """
    counts = _blocks(mask, factor).sum(axis=(2, 4))
    means = _blocks(y * mask, factor).sum(axis=(2, 4)) / counts
    least = counts.min()
    out: Image = (means + noise * np.sqrt(1 / least - 1 / counts)).astype(np.float32)
    return out


def gathered_noise(mask: Image, factor: int) -> float:
    """The noise of a gathered pixel in units of σ: 1/√(pixels of the rarest colour in a block)."""
    return float(1 / np.sqrt(_blocks(mask, factor).sum(axis=(2, 4)).min()))


def _blocks(y: Image, factor: int) -> Image:
    """(C, H, W) → (C, rows, factor, columns, factor)."""
    channels, height, width = y.shape
    rows, columns = height // factor, width // factor
    cut = y[:, : rows * factor, : columns * factor]
    return cut.reshape(channels, rows, factor, columns, factor)
