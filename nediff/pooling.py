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
    """A mosaic (C, H, W), to a complete image of 1/factor its size: means of each colour's values.

    The values of a colour do not lie in the middle of their block, so the means are shifted
    there by a fraction of a pixel; a shift is orthonormal, so white noise stays white.
    ``noise`` (standard normal times σ, of the result's shape) brings the colours with less noise
    up to that of the noisiest, `gathered_noise` × σ.
    """
    block = mask[:, :factor, :factor]
    counts = block.sum(axis=(1, 2), keepdims=True)
    means = _blocks(y * mask, factor).sum(axis=(2, 4)) / counts
    full = means + np.sqrt(1 / counts.min() - 1 / counts) * noise
    middle = (factor - 1) / 2
    shifted = [
        shift(plane, *((np.argwhere(there > 0).mean(axis=0) - middle) / factor))
        for plane, there in zip(full, block, strict=True)
    ]
    out: Image = np.stack(shifted).astype(np.float32)
    return out


def gathered_noise(mask: Image, factor: int) -> float:
    """The noise of a gathered pixel, in units of σ: 1/√(values of the rarest colour in a block)."""
    return float(mask[:, :factor, :factor].sum(axis=(1, 2)).min() ** -0.5)


def shift(plane: NDArray[np.floating], down: float, right: float) -> NDArray[np.floating]:
    """Move an image (H, W) by a fraction of a pixel: a phase in Fourier space, edges mirrored."""
    if down == 0 and right == 0:
        return plane
    margin = [min(8, n - 1) for n in plane.shape]
    wide = np.pad(plane, [(m, m) for m in margin], mode="reflect")
    rows, columns = np.fft.fftfreq(wide.shape[0]), np.fft.rfftfreq(wide.shape[1])
    phase = np.exp(-2j * np.pi * (rows[:, None] * down + columns * right))
    moved = np.fft.irfft2(np.fft.rfft2(wide) * phase, s=wide.shape)
    return moved[margin[0] : moved.shape[0] - margin[0], margin[1] : moved.shape[1] - margin[1]]


def _blocks(y: Image, factor: int) -> Image:
    """(C, H, W) → (C, rows, factor, columns, factor)."""
    channels, height, width = y.shape
    rows, columns = height // factor, width // factor
    cut = y[:, : rows * factor, : columns * factor]
    return cut.reshape(channels, rows, factor, columns, factor)
