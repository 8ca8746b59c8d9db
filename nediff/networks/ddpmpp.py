"""The paper's network: DDPM++ with 55.7 M parameters, from deepinv (METHOD.md §3, §7)."""

from __future__ import annotations

from torch import Tensor, nn


class DDPMpp(nn.Module):
    """F(u, σ) = deepinv's NCSNpp in its DDPM++ form, conditioned on ln(σ)/4 as in EDM.

    It normalises over space and attends over the whole image, so it is not local: tiles of an
    image differ from the whole. Dropout and augmentation inputs are off; nothing is downloaded.
    """

    multiple = 4

    def __init__(self, channels: int, resolution: int, guides: int = 0) -> None:
        super().__init__()
        from deepinv.models import NCSNpp  # imported here: it takes seconds

        self.unet = NCSNpp(
            model_type="ddpm",
            img_resolution=resolution,
            in_channels=channels + guides,
            out_channels=channels,
            channel_mult=(2, 2, 2),
            dropout=0.0,
            augment_dim=0,
            pretrained=None,
        )

    def forward(self, u: Tensor, sigma: Tensor) -> Tensor:
        out: Tensor = self.unet.forward_unet(u, sigma.log() / 4)
        return out
