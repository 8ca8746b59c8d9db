"""Closed forms for Gaussian and mixture priors, to test everything else against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class GaussianPrior:
    """N(m, C) on images of ``shape`` (C, H, W), with a full covariance; float64."""

    mean: Tensor
    covariance: Tensor
    shape: tuple[int, int, int]

    @classmethod
    def random(cls, shape: tuple[int, int, int], scale: float, seed: int = 0) -> GaussianPrior:
        d = shape[0] * shape[1] * shape[2]
        generator = torch.Generator().manual_seed(seed)
        factor = torch.randn(d, d, generator=generator, dtype=torch.float64)
        spectrum = torch.logspace(-1.5, 0, d, dtype=torch.float64)
        basis, _ = torch.linalg.qr(factor)
        covariance = scale**2 * basis @ torch.diag(spectrum) @ basis.T
        mean = 0.5 + scale * torch.randn(d, generator=generator, dtype=torch.float64)
        return cls(mean, covariance, shape)

    def gain(self, sigma: float) -> Tensor:
        """W = C (C + σ²)⁻¹."""
        eye = torch.eye(len(self.mean), dtype=torch.float64)
        return self.covariance @ torch.linalg.inv(self.covariance + sigma**2 * eye)

    def denoise(self, y: Tensor, sigma: Tensor) -> Tensor:
        """E[x | y] for y (B, C, H, W); σ (B,) all equal."""
        assert bool((sigma == sigma[0]).all())
        centred = y.double().flatten(1) - self.mean
        out = self.mean + centred @ self.gain(float(sigma[0])).T
        return out.view_as(y)

    def posterior(self, y: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        """Mean (d,) and covariance (d, d) of x given y (C, H, W)."""
        gain = self.gain(sigma)
        mean = self.mean + gain @ (y.double().flatten() - self.mean)
        return mean, self.covariance - gain @ self.covariance

    def sample(self, n: int, seed: int) -> Tensor:
        """(n, C, H, W)."""
        generator = torch.Generator().manual_seed(seed)
        factor = torch.linalg.cholesky(self.covariance)
        z = torch.randn(n, len(self.mean), generator=generator, dtype=torch.float64)
        return (self.mean + z @ factor.T).view(n, *self.shape)


@dataclass
class TwoModes:
    """w N(+c, v I) + (1 − w) N(−c, v I) on images."""

    centre: Tensor
    variance: float
    weight: float

    def sample(self, n: int, seed: int) -> Tensor:
        """n images, (n, C, H, W)."""
        generator = torch.Generator().manual_seed(seed)
        upper = torch.rand(n, generator=generator, dtype=torch.float64) < self.weight
        sign = torch.where(upper, 1.0, -1.0).double()[:, None, None, None]
        noise = torch.randn((n, *self.centre.shape), generator=generator, dtype=torch.float64)
        return sign * self.centre + self.variance**0.5 * noise

    def posterior_weight(self, y: Tensor, sigma: Tensor) -> Tensor:
        """P(x belongs to the mode at +c | y), (B,)."""
        total = self.variance + sigma.double() ** 2
        c = self.centre.flatten()
        logit = 2 * (y.double().flatten(1) @ c) / total
        prior = torch.tensor(self.weight / (1 - self.weight), dtype=torch.float64).log()
        return torch.sigmoid(logit + prior)

    def denoise(self, y: Tensor, sigma: Tensor) -> Tensor:
        """E[x | y] = Σ_k w_k(y) (c_k + v/(v+σ²)(y − c_k))."""
        shrink = (self.variance / (self.variance + sigma.double() ** 2))[:, None, None, None]
        signed = (2 * self.posterior_weight(y, sigma) - 1)[:, None, None, None] * self.centre
        return shrink * y.double() + (1 - shrink) * signed
