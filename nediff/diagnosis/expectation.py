"""What can be expected of training on these images: a PSNR, and how many images are enough.

Wiener's filter is the best *linear* answer: of a coefficient with signal energy S it leaves
S σ²/(S + σ²). In blocks of 8 × 8 with one spectrum for all it is a pessimistic figure; with a
spectrum for each class of flatness it knows edges from flat places, as a network does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nediff.noise.blocks import SIDE, Blocks, Floats
from nediff.noise.floor import FREQUENCY

CLASSES = 20
"""Of flatness."""


@dataclass(frozen=True)
class Expectation:
    """PSNR in dB, of the unit range: of the noisy images, and of restored ones.

    ``wiener``: by one linear filter for all. ``adaptive``: by one for each class of flatness.
    """

    noisy: float
    wiener: float
    adaptive: float


def expectation_of(blocks: Blocks, sigma: float) -> Expectation:
    """From the spectra of the blocks; σ in unit range, not zero."""
    every = blocks.energy.mean(axis=0, dtype=np.float64)
    wiener = _left(every, sigma**2)
    errors = np.zeros(SIDE * SIDE)
    even = (np.indices((SIDE, SIDE)).sum(axis=0) % 2 == 0).reshape(-1)
    for measured in (even, ~even):
        # classes by the other coefficients: by its own, noise would be taken for texture
        texture = blocks.energy @ (~measured & (FREQUENCY > 0)).astype(np.float32)
        for part in np.array_split(np.argsort(texture), CLASSES):
            left = _left(blocks.energy[part].mean(axis=0, dtype=np.float64), sigma**2)
            errors[measured] += left[measured] * len(part) / len(blocks)
    return Expectation(_psnr(sigma**2), _psnr(_mean(wiener, sigma)), _psnr(_mean(errors, sigma)))


def _left(energy: Floats, variance: float) -> Floats:
    signal = np.maximum(energy - variance, 0)
    left: Floats = signal * variance / (signal + variance)
    return left


def _mean(errors: Floats, sigma: float) -> float:
    """Of all coefficients; the mean of a block keeps its noise."""
    return float(errors[1:].sum() + sigma**2) / SIDE**2


def _psnr(mse: float) -> float:
    return -10 * math.log10(mse)
