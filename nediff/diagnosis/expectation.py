"""What can be expected of training on these images: a PSNR, and how many images are enough.

Wiener's filter is the best *linear* answer: of a coefficient with signal energy S it leaves
S σ²/(S + σ²). In blocks of 8 × 8 with one spectrum for all it is a pessimistic figure; with a
spectrum for each class of flatness it knows edges from flat places, as a network does. Networks
trained here gained about 1.4 times as many dB, which is the `likely` figure.

The number: the excess error of learning from N noisy images falls like c σ²/√N.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct

from nediff.noise.blocks import SIDE, Floats, cosine_energies
from nediff.noise.floor import FREQUENCY

CLASSES = 20
"""Of flatness."""
NETWORK_GAIN = 1.4
"""dB gained over the noisy images by trained networks, over that of the adaptive filter."""
SQUARE = 64
"""N counts squares of so many pixels a side."""
EXCESS = 0.25
"""c, from 400 images of 180² pixels that lost 0.1 dB: an order of magnitude, no more."""
LOSS = 0.25
"""dB; enough images lose no more than this."""
LEAST = 100
"""Squares, whatever the law says."""
_STRIDE = 4


@dataclass(frozen=True)
class Expectation:
    """PSNR in dB, of the unit range: of the noisy images, and of restored ones.

    ``wiener``: by one linear filter for all. ``adaptive``: by one for each class of flatness.
    ``likely``: what a trained network would reach, give or take a decibel. ``squares``: how many
    squares of 64 × 64 pixels there are; ``enough``: how many lose less than LOSS.
    """

    noisy: float
    wiener: float
    adaptive: float
    likely: float
    squares: int
    enough: int


def expectation_of(
    images: Sequence[NDArray[np.float32]], sigma: float, pixels: int
) -> Expectation | None:
    """From some images (C, H, W) with noise σ; ``pixels`` (H W) of all images together.

    Channels are mixed orthonormally first: they have much in common, and noise stays white.
    """
    large = [image for image in images if min(image.shape[1:]) >= SIDE]
    if sigma <= 0 or not large:
        return None
    energies = np.concatenate([_patches(dct(image, axis=0, norm="ortho")) for image in large], 1)
    linear = float(np.mean([_mse(part.mean(axis=0), sigma) for part in energies]))
    classes = float(np.mean([_adaptive(part, sigma) for part in energies]))
    noisy, wiener, adaptive = (_psnr(mse) for mse in (sigma**2, linear, classes))
    likely = noisy + NETWORK_GAIN * (adaptive - noisy)
    squares = max(1, round(pixels / SQUARE**2))
    return Expectation(noisy, wiener, adaptive, likely, squares, _enough(likely - noisy))


def _patches(image: NDArray[np.float32]) -> Floats:
    """(C, n, 64)."""
    view = np.lib.stride_tricks.sliding_window_view(image, (SIDE, SIDE), axis=(1, 2))
    view = view[:, ::_STRIDE, ::_STRIDE]
    flat = cosine_energies(view.reshape(-1, SIDE, SIDE)).astype(np.float64)
    return flat.reshape(len(image), -1, SIDE * SIDE)


def _adaptive(energies: Floats, sigma: float) -> float:
    """The error with a spectrum for each class of flatness; (n, 64) of one channel."""
    left = np.zeros(SIDE * SIDE)
    even = (np.indices((SIDE, SIDE)).sum(axis=0) % 2 == 0).reshape(-1)
    for measured in (even, ~even):
        # classes by the other coefficients: by its own, noise would be taken for texture
        texture = energies @ (~measured & (FREQUENCY > 0)).astype(np.float64)
        for part in np.array_split(np.argsort(texture), CLASSES):
            if len(part):
                share = len(part) / len(energies)
                left[measured] += share * _left(energies[part].mean(axis=0), sigma)[measured]
    return _with_mean(left, sigma)


def _mse(energy: Floats, sigma: float) -> float:
    return _with_mean(_left(energy, sigma), sigma)


def _left(energy: Floats, sigma: float) -> Floats:
    signal = np.maximum(energy - sigma**2, 0)
    left: Floats = signal * sigma**2 / (signal + sigma**2)
    return left


def _with_mean(left: Floats, sigma: float) -> float:
    """The mean over coefficients; that of the block's mean keeps its noise."""
    return float(left[1:].sum() + sigma**2) / SIDE**2


def _enough(gain: float) -> int:
    """N with 10 log₁₀(1 + (c/√N) σ²/MSE) ≤ LOSS."""
    allowed = 10 ** (LOSS / 10) - 1
    return max(LEAST, math.ceil((EXCESS * 10 ** (gain / 10) / allowed) ** 2))


def _psnr(mse: float) -> float:
    return -10 * math.log10(mse)
