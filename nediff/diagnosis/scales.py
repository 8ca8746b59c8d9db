"""Do the images look alike at other magnifications? What lets pooled measurements teach.

Images averaged over f × f pixels are compared with the images as they are: the energies of 8 × 8
patches by frequency, freed of the noise (σ² and σ²/f²), and the score of their contrasts. Only
shapes count, since contrast is rescaled anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nediff.noise.blocks import SIDE, Floats, cosine_energies
from nediff.noise.floor import FREQUENCY
from nediff.pooling import pool

FACTORS = (2, 4)
SAFE = 0.5
"""A score from here: spectra that differ in shape by less than 4 dB."""
WORST = 8.0
"""dB of difference that mean nothing in common."""
RINGS: NDArray[np.int64] = np.round(FREQUENCY).astype(np.int64)
"""(64,): the ring of frequencies of each coefficient, 1 to 10; 0 is the mean."""
_SEEN = 0.15  # of the noise: rings with less signal are not compared
_LEAST_BLOCKS = 50
_STRIDE = 4


@dataclass(frozen=True)
class Spectrum:
    """Energy of patches of images pooled by ``factor``, by ring of frequency, without noise.

    NaN in rings where noise leaves nothing to compare; ``noise`` is what was subtracted.
    """

    factor: int
    rings: tuple[float, ...]
    noise: float


@dataclass(frozen=True)
class ScaleInvariance:
    """How alike the images pooled by ``factor`` are to the images.

    ``deviation``: rms over frequencies of the difference of the spectra in dB, their mean
    difference taken out. ``score`` = 1 − deviation/8 dB, in [0, 1]; None where the images are too
    small or too noisy to tell.
    """

    factor: int
    deviation: float | None
    score: float | None

    @property
    def safe(self) -> bool:
        """Whether such pooled measurements may be learned from."""
        return self.score is not None and self.score >= SAFE


def spectrum_of(
    images: Sequence[NDArray[np.float32]], factor: int, variance: float
) -> Spectrum | None:
    """Of images (C, H, W) with noise of ``variance``; None if there are too few patches."""
    noise = variance / factor**2
    energies = [_patch_energies(pool(image, factor)) for image in images]
    patches: NDArray[np.float32] = np.concatenate(energies)
    if len(patches) < _LEAST_BLOCKS:
        return None
    mean: Floats = patches.mean(axis=0, dtype=np.float64)
    error: Floats = patches.std(axis=0, dtype=np.float64) / np.sqrt(len(patches))
    rings = []
    for ring in range(1, int(RINGS.max()) + 1):
        inside: NDArray[np.bool_] = np.equal(RINGS, ring)
        signal = float(mean[inside].mean()) - noise
        sure = signal > max(3 * float(error[inside].mean()) / np.sqrt(inside.sum()), _SEEN * noise)
        rings.append(signal if sure else float("nan"))
    return Spectrum(factor, tuple(rings), noise)


def _patch_energies(image: NDArray[np.float32]) -> NDArray[np.float32]:
    if min(image.shape[1:]) < SIDE:
        return np.zeros((0, SIDE * SIDE), np.float32)
    view = np.lib.stride_tricks.sliding_window_view(image, (SIDE, SIDE), axis=(1, 2))
    return cosine_energies(view[:, ::_STRIDE, ::_STRIDE].reshape(-1, SIDE, SIDE))


def compare(fine: Spectrum | None, coarse: Spectrum | None, factor: int) -> ScaleInvariance:
    """The shapes of two spectra, in the rings that both have."""
    if fine is None or coarse is None:
        return ScaleInvariance(factor, None, None)
    decibels = 10 * np.log10(np.array(coarse.rings) / np.array(fine.rings))
    shared = decibels[np.isfinite(decibels)]
    if len(shared) < 3:
        return ScaleInvariance(factor, None, None)
    deviation = float(shared.std())
    return ScaleInvariance(factor, deviation, max(0.0, 1 - deviation / WORST))
