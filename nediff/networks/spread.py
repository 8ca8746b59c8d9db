"""How uncertain is a pixel that was never measured? A small network that says so."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nediff.divergence import expand
from nediff.networks.denoiser import channel_means
from nediff.networks.measured import apply_network
from nediff.networks.unet import UNet
from nediff.operators import LinearOperator


class SpreadNetwork(nn.Module):
    """Var(x | y) of each pixel, from the measurement and its estimate: (B, C, H, W) → same.

    v = fill_error² exp(F([u, x̂ − m, guide], σ)): always positive, of the right order from the
    start. Only its values where nothing is measured are trained and used. ``mean`` (B, C) is that
    of fill(y), which may be given for a part of an image, as to a `Denoiser`.
    """

    def __init__(self, channels: int, guides: int, sigma_data: float, fill_error: float) -> None:
        super().__init__()
        self.network = UNet(channels, (8, 16, 32), (1, 1, 1), 1, guides=channels + guides)
        self.sigma_data, self.fill_error = sigma_data, fill_error

    def forward(
        self,
        y: Tensor,
        estimate: Tensor,
        sigma: Tensor,
        operator: LinearOperator,
        mean: Tensor | None = None,
    ) -> Tensor:
        filled = operator.fill(y)
        mean = channel_means(filled) if mean is None else mean[:, :, None, None]
        c_in = (expand(sigma).square() + self.sigma_data**2).rsqrt()
        inputs = torch.cat([c_in * (filled - mean), c_in * (estimate - mean)], dim=1)
        out = apply_network(
            self.network, inputs, operator.guide(filled), sigma, self.network.multiple
        )
        return self.fill_error**2 * out.clamp(-10, 10).exp()
