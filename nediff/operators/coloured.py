"""Noise that is correlated between neighbouring pixels and between channels: coloured noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nediff.operators.base import Identity, LinearOperator

Floats = NDArray[np.float64]
_GRID = 64  # to average a spectrum over


@dataclass(frozen=True, eq=False)
class Colour:
    """The spectrum of stationary noise, the same in all directions, of mean variance 1.

    ``frequency`` (K,), increasing, in cycles per pixel; ``power`` (K, C, C): the covariance of the
    channels there. Straight lines in between, constant beyond.
    """

    frequency: Floats
    power: Floats
    estimated: bool = False
    """Told from noisy images, so that the noise may be another (operators/doubtful.py)."""

    @classmethod
    def of(cls, frequency: Floats, power: Floats) -> tuple[Colour, float]:
        """A spectrum of any strength → (its colour, its mean variance)."""
        variance = float(cls(frequency, power)._autocovariance()[0, 0])
        return cls(frequency, power / variance), variance

    def on(self, height: int, width: int) -> Floats:
        """(height, width // 2 + 1, C, C), as `torch.fft.rfft2` orders frequencies."""
        f = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
        channels = self.power.shape[1]
        out: Floats = np.empty((*f.shape, channels, channels))
        for i in range(channels):
            for j in range(channels):
                out[..., i, j] = np.interp(f, self.frequency, self.power[:, i, j])
        return out

    @property
    def correlation(self) -> float:
        """Of neighbouring pixels, the mean over the channels."""
        covariance = self._autocovariance()
        return float(covariance[0, 1] / covariance[0, 0])

    def _autocovariance(self) -> Floats:
        """By the distance in pixels, down and across; the mean over the channels."""
        spectrum = np.trace(self.on(_GRID, _GRID), axis1=2, axis2=3) / self.power.shape[1]
        return np.asarray(np.fft.irfft2(spectrum, s=(_GRID, _GRID)), np.float64)

    def root(self, height: int, width: int) -> Tensor:
        """The symmetric root of `on`; what is negative by chance counts as zero."""
        values, vectors = np.linalg.eigh(self.on(height, width))
        root = np.einsum("hwij,hwj,hwkj->hwik", vectors, np.sqrt(np.maximum(values, 0)), vectors)
        return torch.from_numpy(root).to(torch.complex128)


class Coloured(Identity):
    """A = I with noise of a `Colour`: n = C^½ η, as if the picture went round at its borders.

    Nothing else changes. y ± τσn are independent if n has the covariance of the noise, and
    Stein's divergence is E[n · J n]; from x + σn to x the sampler goes along z − D(z, σ), since
    E[x | z] = z + σ²C∇log p(z), and adds noise of the same colour.
    """

    noise_reach = 64
    """Beyond, noise that a camera has filtered is not correlated any more."""

    def __init__(self, colour: Colour) -> None:
        self.colour = colour
        self._root = lru_cache(maxsize=16)(colour.root)

    def noise(self, white: Tensor) -> Tensor:
        """White noise (B, C, h, w) → noise of this colour."""
        height, width = white.shape[-2:]
        spectrum = torch.fft.rfft2(white)
        root = self._root(height, width).to(spectrum)
        mixed = torch.einsum("hwij,bjhw->bihw", root, spectrum)
        out: Tensor = torch.fft.irfft2(mixed, s=(height, width))
        return out

    def covariance_square(self, like: Tensor) -> Tensor:
        """The sum of the squared spectrum over all frequencies, (B,)."""
        height, width = like.shape[-2:]
        squares = np.square(self.colour.on(height, width)).sum(axis=(2, 3))
        squares[:, 1 : (width + 1) // 2] *= 2  # the frequencies that rfft2 leaves out
        return like.new_full((len(like),), float(squares.sum()))

    def noise_variance(self, like: Tensor) -> Tensor:
        """That of each channel; their mean is 1."""
        height, width = like.shape[-2:]
        power = self._root(height, width).real.square().sum(dim=3)
        power[:, 1 : (width + 1) // 2] *= 2  # the frequencies that rfft2 leaves out
        of_channels = power.sum(dim=(0, 1)) / (height * width)
        return of_channels.to(like)[None, :, None, None].expand_as(like)

    def stack(self, others: Sequence[LinearOperator]) -> LinearOperator:
        """All crops have the same noise."""
        return self

    def settings(self) -> dict[str, Any]:
        """That there is a colour; `arrays` has it."""
        return {"coloured": True}

    def arrays(self) -> dict[str, Tensor]:
        """The spectrum."""
        return {
            "frequency": torch.from_numpy(self.colour.frequency).float(),
            "power": torch.from_numpy(self.colour.power).float(),
        }
