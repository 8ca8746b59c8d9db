"""Distances between an estimate and the truth, for images in unit intensities."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.floating]


def mse(estimate: Image, truth: Image) -> float:
    """Mean squared error over all values, in float64."""
    return float(np.mean(np.square(estimate.astype(np.float64) - truth)))


def psnr(estimate: Image, truth: Image) -> float:
    """−10 log₁₀ MSE in dB (peak 1); infinite for equal images."""
    error = mse(estimate, truth)
    return math.inf if error == 0 else -10 * math.log10(error)


def ssim(estimate: Image, truth: Image) -> float:
    """Structural similarity (Wang et al. 2004: Gaussian window, σ = 1.5) of (C, H, W) images.

    Images smaller than its 11-pixel window have none: NaN.
    """
    from skimage.metrics import structural_similarity

    if min(truth.shape[-2:]) < 11:
        return math.nan
    value = structural_similarity(
        estimate.astype(np.float64),
        truth.astype(np.float64),
        data_range=1.0,
        channel_axis=0,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    return float(value)
