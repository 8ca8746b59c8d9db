"""A bias-free ReLU U-Net: positively homogeneous of degree one in its input."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from nediff.networks.unet import unet_reach


class HomogeneousBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), without biases."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.conv2(F.relu(self.conv1(F.relu(x))))
        return out


class HomogeneousUNet(nn.Module):
    """F(αv) = αF(v) for α ≥ 0; (B, in_channels, H, W) → (B, out_channels, H, W)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        widths: tuple[int, ...],
        blocks: tuple[int, ...],
        stem: int,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.multiple = stem * 2 ** (len(widths) - 1)
        pairs = list(pairwise(widths))
        self.head = nn.Conv2d(in_channels * stem**2, widths[0], 3, padding=1, bias=False)

        def level(width: int, count: int) -> nn.Sequential:
            return nn.Sequential(*(HomogeneousBlock(width) for _ in range(count)))

        self.encoder = nn.ModuleList(level(w, n) for w, n in zip(widths, blocks, strict=True))
        self.down = nn.ModuleList(nn.Conv2d(a, b, 2, stride=2, bias=False) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2, bias=False) for a, b in pairs)
        self.decoder = nn.ModuleList(
            level(w, n) for w, n in zip(widths[:-1], blocks[:-1], strict=True)
        )
        self.tail = nn.Conv2d(widths[0], out_channels * stem**2, 3, padding=1, bias=False)

    @property
    def reach(self) -> int:
        """How many pixels away, at most, an input pixel can be felt."""
        return unet_reach(self.stem, [len(level) for level in self.encoder])  # type: ignore[arg-type]

    def forward(self, v: Tensor) -> Tensor:
        h = self.encoder[0](self.head(F.pixel_unshuffle(v, self.stem)))
        skips = []
        for down, encode in zip(self.down, self.encoder[1:], strict=True):
            skips.append(h)
            h = encode(down(h))
        for up, decode in zip(reversed(self.up), reversed(self.decoder), strict=True):
            h = decode(up(h) + skips.pop())
        return F.pixel_shuffle(self.tail(F.relu(h)), self.stem)
