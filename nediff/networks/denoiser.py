"""D(y, σ): a network with preconditioning, for images of any size (METHOD.md §3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nediff.divergence import expand
from nediff.errors import NediffError
from nediff.operators import Identity, LinearOperator


class Denoiser(nn.Module):
    """What every denoiser shares: D(y, σ) for y (B, C, H, W) and σ (B,).

    The mean m of each channel is subtracted before the network and added back after, which
    makes D exactly equivariant to y → y + μ1. ``mean`` (B, C) may be given, so that a tile of
    a large image can use the mean of the whole. Sizes that the network cannot take are padded
    by reflection at the right and bottom and cropped again. ``operator`` says what y measures;
    those of this module are for A = I.
    """

    multiple: int = 1

    @property
    def reach(self) -> int | None:
        """How many pixels away, at most, a pixel of y can be felt; None if all over the image."""
        return None

    def forward(
        self,
        y: Tensor,
        sigma: Tensor,
        operator: LinearOperator | None = None,
        mean: Tensor | None = None,
    ) -> Tensor:
        if operator is not None and not isinstance(operator, Identity):
            raise NediffError(
                f"This kind of network is for denoising only, not for {operator.kind}."
            )
        mean = channel_means(y) if mean is None else mean[:, :, None, None]
        height, width = y.shape[-2:]
        centred = pad_to_multiple(y - mean, self.multiple)
        return self.denoise_centred(centred, sigma)[..., :height, :width] + mean

    def denoise_centred(self, u: Tensor, sigma: Tensor) -> Tensor:
        """The estimate of x − m from u = y − m."""
        raise NotImplementedError("a Denoiser defines denoise_centred")


def reach_of(network: nn.Module) -> int | None:
    """How many pixels away an input pixel of a network can be felt; None if it is not local."""
    found = getattr(network, "reach", None)
    return None if found is None else int(found)


def channel_means(x: Tensor) -> Tensor:
    """(B, C, H, W) → (B, C, 1, 1)."""
    return x.mean(dim=(2, 3), keepdim=True)


def pad_to_multiple(u: Tensor, multiple: int) -> Tensor:
    """Reflect-pad right and bottom to multiples of ``multiple`` (edge-pad very small images)."""
    bottom, right = -u.shape[-2] % multiple, -u.shape[-1] % multiple
    if bottom == 0 and right == 0:
        return u
    reflectable = bottom < u.shape[-2] and right < u.shape[-1]
    return F.pad(u, (0, right, 0, bottom), mode="reflect" if reflectable else "replicate")


class EDMDenoiser(Denoiser):
    """D = m + c_skip u + c_out F(c_in u, σ) with the coefficients of Karras et al. (2022).

    With v = σ² + σ_data²: c_skip = σ_data²/v, c_out = σ σ_data/√v, c_in = 1/√v. Right for
    A = I, where the answer differs from the input by about σ.
    """

    def __init__(self, network: nn.Module, sigma_data: float, multiple: int) -> None:
        super().__init__()
        self.network, self.sigma_data, self.multiple = network, sigma_data, multiple

    @property
    def reach(self) -> int | None:
        """That of the network."""
        return reach_of(self.network)

    def denoise_centred(self, u: Tensor, sigma: Tensor) -> Tensor:
        """c_skip u + c_out F(c_in u, σ)."""
        s = expand(sigma)
        v = s.square() + self.sigma_data**2
        c_skip, c_out, c_in = self.sigma_data**2 / v, s * self.sigma_data / v.sqrt(), v.rsqrt()
        out: Tensor = c_skip * u + c_out * self.network(c_in * u, sigma)
        return out


class UncentredDenoiser(EDMDenoiser):
    """The same without subtracting the mean: u = y − ½, the middle of the range, for all images.

    An ablation: what all other denoisers know by construction, that brightness does not matter,
    is left to the draws of μ in the training (METHOD.md §3).
    """

    def forward(
        self,
        y: Tensor,
        sigma: Tensor,
        operator: LinearOperator | None = None,
        mean: Tensor | None = None,
    ) -> Tensor:
        return super().forward(y, sigma, operator, y.new_full(y.shape[:2], 0.5))


class StandardisedDenoiser(Denoiser):
    """D = m + s F((y − m)/s, σ/s), s the standard deviation of y: exactly equivariant.

    An ablation: D(αy + μ1, ασ) = αD(y, σ) + μ1 holds by construction (METHOD.md §6). F is an
    EDM-preconditioned network for images of standard deviation 1. The standard deviation is
    taken over the whole image, so this denoiser is not local.
    """

    def __init__(self, network: nn.Module, multiple: int) -> None:
        super().__init__()
        self.standard = EDMDenoiser(network, sigma_data=1.0, multiple=multiple)
        self.multiple = multiple

    def denoise_centred(self, u: Tensor, sigma: Tensor) -> Tensor:
        """s F(u/s, σ/s)."""
        spread = u.square().mean(dim=(1, 2, 3)).sqrt().clamp_min(1e-8)
        out = self.standard.denoise_centred(u / expand(spread), sigma / spread)
        return expand(spread) * out


class HomogeneousDenoiser(Denoiser):
    """D = m + u − F(u, σ) with F bias-free and positively homogeneous: exactly equivariant.

    An ablation: F(αu, ασ) = αF(u, σ) because F has no bias, only ReLUs, and sees σ as one
    more constant channel (METHOD.md §6).
    """

    def __init__(self, network: nn.Module, multiple: int) -> None:
        super().__init__()
        self.network, self.multiple = network, multiple

    @property
    def reach(self) -> int | None:
        """That of the network."""
        return reach_of(self.network)

    def denoise_centred(self, u: Tensor, sigma: Tensor) -> Tensor:
        """u − F([u, σ1])."""
        level = expand(sigma).expand(-1, 1, *u.shape[-2:])
        out: Tensor = u - self.network(torch.cat([u, level], dim=1))
        return out


class ChannelwiseDenoiser(Denoiser):
    """A denoiser of grey images for images of several channels, one after another.

    The three of a colour image are turned first, T u with T orthonormal, which keeps white noise
    white: t₀ = √3 × their mean, in which edges of all channels add up, and two differences, in
    which there is little. √3 × a grey image with noise σ is denoised as √3 D(· / √3, σ/√3).
    """

    def __init__(self, grey: Denoiser, channels: int) -> None:
        super().__init__()
        self.grey, self.multiple = grey, grey.multiple
        turn = torch.eye(channels)
        contrast = torch.ones(channels)
        if channels == 3:
            turn = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]])
            turn = turn / turn.norm(dim=1, keepdim=True)
            contrast[0] = 3**0.5
        self.turn: Tensor
        self.contrast: Tensor
        self.register_buffer("turn", turn)
        self.register_buffer("contrast", contrast)

    @property
    def reach(self) -> int | None:
        """That of the grey one."""
        return self.grey.reach

    def denoise_centred(self, u: Tensor, sigma: Tensor) -> Tensor:
        """Tᵀ c D(T u / c, σ/c), c the contrast of each turned channel."""
        batch, channels, height, width = u.shape
        c = self.contrast[None, :, None, None]
        grey = (torch.einsum("dc,bchw->bdhw", self.turn, u) / c).reshape(-1, 1, height, width)
        levels = (sigma[:, None] / self.contrast).reshape(-1)
        parts = [
            self.grey.denoise_centred(grey[k : k + batch], levels[k : k + batch])
            for k in range(0, len(grey), batch)
        ]
        turned = torch.cat(parts).reshape(batch, channels, height, width) * c
        return torch.einsum("dc,bdhw->bchw", self.turn, turned)
