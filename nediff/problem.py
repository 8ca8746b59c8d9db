"""What the instrument does: y = A x + σ_n η (METHOD.md §1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class LinearOperator(Protocol):
    """A linear map A from images to measurements, both as (B, C, H, W) tensors."""

    def A(self, x: Tensor) -> Tensor:
        """A x."""
        ...

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Aᵀ y."""
        ...

    def mask_noise(self, noise: Tensor) -> Tensor:
        """Noise as the instrument adds it: zero where nothing is measured."""
        ...


@dataclass(frozen=True)
class Identity:
    """A = I: every pixel is measured once; restoring is denoising."""

    def A(self, x: Tensor) -> Tensor:
        """A x = x."""
        return x

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Aᵀ y = y."""
        return y

    def mask_noise(self, noise: Tensor) -> Tensor:
        """Every pixel is noisy."""
        return noise


@dataclass(frozen=True)
class Problem:
    """One instrument: an operator, its noise level σ_n (unit intensities) and its channels."""

    sigma: float
    channels: int
    operator: LinearOperator = Identity()

    @classmethod
    def denoising(cls, sigma: float, channels: int = 1) -> Problem:
        """y = x + σ_n η."""
        return cls(sigma=sigma, channels=channels)

    def A(self, x: Tensor) -> Tensor:
        """The noise-free measurement A x."""
        return self.operator.A(x)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Aᵀ y."""
        return self.operator.A_adjoint(y)

    def A1(self, like: Tensor) -> Tensor:
        """The measurement of the constant image 1, shaped like the measurement ``like``."""
        return self.operator.A(torch.ones_like(self.operator.A_adjoint(like)))

    def mask_noise(self, noise: Tensor) -> Tensor:
        """Noise as the instrument adds it: zero where nothing is measured."""
        return self.operator.mask_noise(noise)

    def measured(self, like: Tensor) -> Tensor:
        """m, the number of measured values per image, (B,)."""
        return self.mask_noise(torch.ones_like(like)).flatten(1).sum(1)
