"""Closed forms for a Gaussian prior seen through a linear operator."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nediff.operators import LinearOperator
from tests.gaussian import GaussianPrior


def matrix_of(operator: LinearOperator, shape: tuple[int, int, int]) -> Tensor:
    """A as a matrix (values of a measurement × values of an image), float64."""
    n = shape[0] * shape[1] * shape[2]
    basis = torch.eye(n, dtype=torch.float64).view(n, *shape)
    return operator.A(basis).flatten(1).T


@dataclass
class MeasuredPrior:
    """x ~ N(m, C) and y = A x + σ η with η only where something is measured."""

    prior: GaussianPrior
    operator: LinearOperator

    def __post_init__(self) -> None:
        self.matrix = matrix_of(self.operator, self.prior.shape)
        like = self.operator.A(torch.zeros(1, *self.prior.shape, dtype=torch.float64))
        self.where = self.operator.mask_noise(torch.ones_like(like)).flatten() > 0
        self.rows = self.matrix[self.where]
        """A without the rows of values that are not measured."""

    def gain(self, sigma: float) -> Tensor:
        """K = C Aᵀ (A C Aᵀ + σ²)⁻¹, from measured values to images."""
        covariance = self.prior.covariance
        inner = self.rows @ covariance @ self.rows.T
        eye = torch.eye(len(inner), dtype=torch.float64)
        return torch.linalg.solve(inner + sigma**2 * eye, self.rows @ covariance).T

    def denoise(self, u: Tensor, sigma: Tensor) -> Tensor:
        """E[x | A x + σ η = u] for u (B, C', h, w); σ (B,) all equal."""
        assert bool((sigma == sigma[0]).all())
        values = u.double().flatten(1)[:, self.where]
        mean = self.prior.mean
        out = mean + (values - mean @ self.rows.T) @ self.gain(float(sigma[0])).T
        return out.view(len(u), *self.prior.shape)

    def posterior(self, y: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        """Mean and covariance of x given one measurement y (C', h, w)."""
        gain = self.gain(sigma)
        residual = y.double().flatten()[self.where] - self.rows @ self.prior.mean
        covariance = self.prior.covariance - gain @ self.rows @ self.prior.covariance
        return self.prior.mean + gain @ residual, covariance

    def measure(self, x: Tensor, sigma: float, seed: int) -> Tensor:
        """A x + σ η, noise only where something is measured."""
        y = self.operator.A(x)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(y.shape, generator=generator, dtype=torch.float64)
        return y + sigma * self.operator.mask_noise(noise)
