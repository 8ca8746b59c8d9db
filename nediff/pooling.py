"""Pooled measurements: cleaner measurements of coarser images (METHOD.md §2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def pool(y: NDArray[np.float32], factor: int) -> NDArray[np.float32]:
    """Means of disjoint factor×factor blocks: pool_f(y) = pool_f(x) + (σ/f) η', η' white.

    (C, H, W) → (C, H // f, W // f); rows and columns that fill no block are left out.
    """
    if factor == 1:
        return y
    channels, height, width = y.shape
    rows, columns = height // factor, width // factor
    blocks = y[:, : rows * factor, : columns * factor].reshape(
        channels, rows, factor, columns, factor
    )
    means: NDArray[np.float32] = blocks.mean(axis=(2, 4), dtype=np.float64).astype(np.float32)
    return means
