"""A convolution: blur and super-resolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nediff.operators.base import LEAST_GAIN, LinearOperator, for_batch, turn


class Convolution(LinearOperator):
    """A x = every stride-th value of k ∗ x, only where the kernel lies inside the image.

    Blur has stride 1; super-resolution averages, then keeps one value in stride × stride. The
    image is larger than the measurement by what the kernel needs at the border, so that a crop
    of a measurement is exactly the measurement of a (larger) crop of the image: nothing is
    assumed about what lies outside. ``kernel`` is (K, K'), applied to each channel alike.
    """

    def __init__(self, kernel: Tensor, stride: int = 1, kind: str = "blur") -> None:
        self.kernel, self.stride, self.kind = kernel, stride, kind
        self.step = 1 / _convolution_gain(kernel, stride)
        if stride > 1:  # which does not commute with shifts, and a box is the same for all turns
            self.group = "shifts"
        # turned, an oblong kernel needs an image of another size: not one for the same batch
        self.turns = kernel.shape[-2] == kernel.shape[-1]

    def _weight(self, x: Tensor) -> Tensor:
        # torch's conv2d correlates: the kernel is flipped to convolve
        flipped = self.kernel.flip(-2, -1).to(x)
        kernels = flipped if flipped.ndim == 3 else flipped[None]
        return for_batch(kernels, len(x)).repeat_interleave(x.shape[1], 0)[:, None]

    def A(self, x: Tensor) -> Tensor:
        """(k ∗ x) at every stride-th place."""
        if self.kernel.ndim == 2:
            weight = self._weight(x[:1])
            return F.conv2d(x, weight, stride=self.stride, groups=x.shape[1])
        batch, channels = x.shape[:2]
        folded = x.reshape(1, batch * channels, *x.shape[-2:])
        out = F.conv2d(folded, self._weight(x), stride=self.stride, groups=batch * channels)
        return out.view(batch, channels, *out.shape[-2:])

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Correlation with k of y, spread out by the stride."""
        if self.kernel.ndim == 2:
            weight = self._weight(y[:1])
            return F.conv_transpose2d(y, weight, stride=self.stride, groups=y.shape[1])
        batch, channels = y.shape[:2]
        folded = y.reshape(1, batch * channels, *y.shape[-2:])
        out = F.conv_transpose2d(
            folded, self._weight(y), stride=self.stride, groups=batch * channels
        )
        return out.view(batch, channels, *out.shape[-2:])

    def fill(self, y: Tensor) -> Tensor:
        """y / Σk, brought to the size of the image by bilinear interpolation, edges repeated."""
        height, width = y.shape[-2:]
        size = self.image_size(height, width)
        enlarged = (height * self.stride, width * self.stride)
        if self.stride > 1:
            y = F.interpolate(y, size=enlarged, mode="bilinear", align_corners=False)
        down, right = size[0] - enlarged[0], size[1] - enlarged[1]
        pad = (right // 2, right - right // 2, down // 2, down - down // 2)
        return F.pad(y, pad, mode="replicate") / self._total(y)

    def _total(self, y: Tensor) -> Tensor:
        total = self.kernel.to(y).sum(dim=(-2, -1))
        return total if self.kernel.ndim == 2 else for_batch(total, len(y))[:, None, None, None]

    def complement(self, noise: Tensor) -> Tensor:
        """By the spectrum of AAᵀ on the grid of measurements, as if it were periodic."""
        kernels = self.kernel if self.kernel.ndim == 3 else self.kernel[None]
        height, width = noise.shape[-2:]
        spectra = torch.stack([_spectrum(k, self.stride, height, width) for k in kernels])
        root = (1 - spectra).clamp_min(0).sqrt().to(noise)
        shaped = for_batch(root, len(noise))[:, None]
        out: Tensor = torch.fft.ifft2(torch.fft.fft2(noise) * shaped).real
        return out

    def unseen(self, x: Tensor) -> Tensor:
        """N x; without a stride by the spectrum of AᵀA, as if the image were periodic."""
        if self.stride > 1:
            return super().unseen(x)
        kernels = self.kernel if self.kernel.ndim == 3 else self.kernel[None]
        spectra = torch.stack([_spectrum(k, 1, *x.shape[-2:]) for k in kernels]).clamp_min(0)
        eps = LEAST_GAIN**2 / self.step
        unseen = for_batch(eps / (spectra + eps), len(x))[:, None].to(x)
        out: Tensor = torch.fft.ifft2(torch.fft.fft2(x) * unseen).real
        return out

    def unseen_share(self, x: Tensor) -> Tensor:
        """Away from the border: with the eigenvalues λ of AAᵀ, 1 − mean(1 − (ε/(λ+ε))²)/stride²."""
        kernel = self.kernel if self.kernel.ndim == 2 else self.kernel[0]  # turned ones: the same
        spectrum = _spectrum(kernel, self.stride, 64, 64)
        unseen = LEAST_GAIN**2 / self.step
        left = (unseen / (spectrum.clamp_min(0) + unseen)).square()
        return (1 - (1 - left).mean() / self.stride**2).to(x).view(1, 1, 1, 1)

    def image_size(self, height: int, width: int) -> tuple[int, int]:
        """(h − 1)·stride + K."""
        rows, columns = self.kernel.shape[-2:]
        return (height - 1) * self.stride + rows, (width - 1) * self.stride + columns

    def measured_size(self, height: int, width: int) -> tuple[int, int]:
        """(H − K)/stride + 1, rounded down."""
        rows, columns = self.kernel.shape[-2:]
        return (height - rows) // self.stride + 1, (width - columns) // self.stride + 1

    def image_corner(self, top: int, left: int) -> tuple[int, int]:
        """stride × (top, left)."""
        return top * self.stride, left * self.stride

    def frame(self, x: Tensor, height: int, width: int) -> Tensor:
        """Without the border that only the kernel reaches."""
        rows = min(height * self.stride, x.shape[-2])
        columns = min(width * self.stride, x.shape[-1])
        top, left = (x.shape[-2] - rows) // 2, (x.shape[-1] - columns) // 2
        return x[..., top : top + rows, left : left + columns]

    def turned(self, k: int) -> Convolution:
        """The kernel turned with the image."""
        return Convolution(turn(self.kernel, k), self.stride, self.kind)

    def stack(self, others: Sequence[LinearOperator]) -> Convolution:
        """One kernel per image, if they differ."""
        kernels = [self.kernel, *(o.kernel for o in others if isinstance(o, Convolution))]
        if all(torch.equal(kernels[0], k) for k in kernels):
            return self
        return Convolution(torch.stack(kernels), self.stride, self.kind)

    def to(self, device: torch.device | str) -> Convolution:
        return Convolution(self.kernel.to(device), self.stride, self.kind)

    def settings(self) -> dict[str, Any]:
        return {"stride": self.stride}

    def arrays(self) -> dict[str, Tensor]:
        return {"kernel": self.kernel}


def _convolution_gain(kernel: Tensor, stride: int) -> float:
    """‖A‖² of a strided convolution with positive weights; no less than that for any others.

    A Aᵀ convolves with every stride-th value of the kernel's autocorrelation.
    """
    kernels = (kernel[None] if kernel.ndim == 2 else kernel).double()
    rows, columns = kernel.shape[-2] - 1, kernel.shape[-1] - 1
    own = F.conv2d(
        kernels[None], kernels[:, None], padding=(rows, columns), groups=len(kernels)
    ).abs()
    kept = own[..., rows % stride :: stride, columns % stride :: stride]
    return float(kept.sum(dim=(-2, -1)).max().clamp_min(1e-12))


def _spectrum(kernel: Tensor, stride: int, height: int, width: int) -> Tensor:
    """The eigenvalues of AAᵀ on a periodic grid (h, w): the transform of k ⋆ k at the strides."""
    k = kernel.double()
    rows, columns = k.shape
    products = F.conv2d(k[None, None], k[None, None], padding=(rows - 1, columns - 1))[0, 0]
    grid = torch.zeros(height, width, dtype=torch.float64)
    for i in range(-((rows - 1) // stride), (rows - 1) // stride + 1):
        for j in range(-((columns - 1) // stride), (columns - 1) // stride + 1):
            value = products[rows - 1 + i * stride, columns - 1 + j * stride]
            grid[i % height, j % width] += value
    spectrum: Tensor = torch.fft.fft2(grid).real
    return spectrum
