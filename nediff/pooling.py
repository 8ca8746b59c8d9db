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


def pool_masked(y: Image, mask: Image, factor: int, noise: Image) -> tuple[Image, Image]:
    """Blocks of which more than half is measured become measured coarse pixels: (pooled, mask).

    Each is the mean of what is measured in it; ``noise`` (standard normal times σ, of the
    result's shape) brings all to the noise of the least measured one, `masked_noise` × σ. That a
    few pixels of a block are missing makes its mean differ from that of all by a little detail;
    in return, most of a coarse image is there, and can be shown to the network in part.
    """
    counts = _blocks(mask, factor).sum(axis=(2, 4))
    measured = (counts > factor**2 / 2).astype(np.float32)
    counts = np.maximum(counts, 1)
    means = _blocks(y * mask, factor).sum(axis=(2, 4)) / counts
    missing = np.maximum(masked_noise(factor) ** 2 - 1 / counts, 0)
    pooled: Image = (measured * (means + np.sqrt(missing) * noise)).astype(np.float32)
    return pooled, measured


def masked_noise(factor: int) -> float:
    """The noise of a pixel of `pool_masked`, in units of σ."""
    return 1.0 if factor == 1 else float((factor**2 // 2 + 1) ** -0.5)


def gather(y: Image, mask: Image, factor: int, noise: Image) -> Image:
    """A mosaic (C, H, W), to a complete image of 1/factor its size, with the noise of the noisiest.

    Each pixel is a weighted mean of the colour's own values in one block (so the noise stays
    white), with the smallest weights whose centre of mass is that of the block: a plain mean
    would shift the colours against each other. A block of 2×2 has one red value only and cannot
    be centred. ``noise`` (standard normal times σ, of the result's shape) brings the colours with
    less noise up to that of the noisiest, `gathered_noise` × σ.
    """
    weights = centred_weights(mask[:, :factor, :factor])
    gains = np.square(weights).sum(axis=(1, 2))
    rows, columns = y.shape[1] // factor, y.shape[2] // factor
    means = _blocks(y, factor) * weights[:, None, :, None, :]
    added = np.sqrt(gains.max() - gains)[:, None, None] * noise[:, :rows, :columns]
    out: Image = (means.sum(axis=(2, 4)) + added).astype(np.float32)
    return out


def gathered_noise(mask: Image, factor: int) -> float:
    """The noise of a gathered pixel, in units of σ."""
    weights = centred_weights(mask[:, :factor, :factor])
    return float(np.sqrt(np.square(weights).sum(axis=(1, 2)).max()))


def centred_weights(block: Image) -> NDArray[np.float64]:
    """Of each channel's measured pixels in a block (C, f, f): sum one, centred, least squares."""
    weights = np.zeros(block.shape)
    middle = (block.shape[-1] - 1) / 2
    for channel, measured in enumerate(block):
        places = np.argwhere(measured > 0)
        conditions = np.vstack([np.ones(len(places)), (places - middle).T])
        values = np.linalg.pinv(conditions) @ np.array([1.0, 0.0, 0.0])
        weights[channel][tuple(places.T)] = values / values.sum()
    return weights


def _blocks(y: Image, factor: int) -> Image:
    """(C, H, W) → (C, rows, factor, columns, factor)."""
    channels, height, width = y.shape
    rows, columns = height // factor, width // factor
    cut = y[:, : rows * factor, : columns * factor]
    return cut.reshape(channels, rows, factor, columns, factor)
