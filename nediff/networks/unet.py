"""A small noise-conditional residual U-Net that acts locally.

Nothing in it looks at the whole image: no attention and no normalisation over space (only
over channels, pixel by pixel), so that a tile with a large enough margin gives the same
answer as the whole image (METHOD.md §3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PixelNorm(nn.Module):
    """Root-mean-square normalisation over channels, at each pixel by itself.

    x ↦ g · x / √(mean_c x² + ε), with one learned gain g per channel; (B, C, H, W) → same.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        power = torch.linalg.vecdot(x, x, dim=1)[:, None] / x.shape[1]
        return x * torch.rsqrt(power + 1e-6) * self.gain


class NoiseEmbedding(nn.Module):
    """Fourier features of ln σ followed by two dense layers: (B,) → (B, width)."""

    frequencies: Tensor

    def __init__(self, width: int, n_frequencies: int = 16) -> None:
        super().__init__()
        frequencies = torch.linspace(math.log(0.25), math.log(4.0), n_frequencies).exp()
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.layers = nn.Sequential(
            nn.Linear(2 * n_frequencies, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )

    def forward(self, sigma: Tensor) -> Tensor:
        phase = sigma.log()[:, None] * self.frequencies
        out: Tensor = self.layers(torch.cat([phase.sin(), phase.cos()], dim=1))
        return out


class ResidualBlock(nn.Module):
    """x + conv(act(conv(act(norm(x))) · (1 + scale(σ)) + shift(σ)))."""

    def __init__(self, channels: int, embedding: int) -> None:
        super().__init__()
        self.norm = PixelNorm(channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.modulate = nn.Linear(embedding, 2 * channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.modulate.weight)
        nn.init.zeros_(self.modulate.bias)
        nn.init.zeros_(self.conv2.weight)  # every block starts as the identity

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        scale, shift = self.modulate(embedding)[:, :, None, None].chunk(2, dim=1)
        h = self.conv1(F.silu(self.norm(x)))
        h = F.silu(torch.addcmul(shift, h, 1 + scale))
        out: Tensor = x + self.conv2(h)
        return out


def unet_reach(stem: int, blocks: Sequence[int]) -> int:
    """How many pixels away a U-Net with so many blocks (of two 3 × 3 kernels) per level looks."""
    pixels = 2  # head and tail, in pixels of the stem
    for k, count in enumerate(blocks):
        passes = 2 if k < len(blocks) - 1 else 1  # down and up again, or the bottom
        pixels += 2**k * (2 * count * passes + 1)
    return stem * (pixels + 1)


class UNet(nn.Module):
    """F(u, σ): residual U-Net with additive skips.

    ``widths`` are the channels of each level, ``blocks`` the residual blocks per level and
    direction. ``stem`` > 1 first folds stem×stem pixels into channels (pixel-unshuffle): more
    steps per second, but less learned per minute, so our sizes have stem 1
    (docs/results/architecture). Input (B, C + guides, H, W), output
    (B, C, H, W), H and W multiples of ``multiple``; guides are channels to look at only.
    """

    def __init__(
        self,
        channels: int,
        widths: tuple[int, ...],
        blocks: tuple[int, ...],
        stem: int,
        embedding: int = 64,
        guides: int = 0,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.multiple = stem * 2 ** (len(widths) - 1)
        self.embed = NoiseEmbedding(embedding)
        self.head = nn.Conv2d((channels + guides) * stem**2, widths[0], 3, padding=1)
        pairs = list(pairwise(widths))

        def level(width: int, count: int) -> nn.ModuleList:
            return nn.ModuleList(ResidualBlock(width, embedding) for _ in range(count))

        self.encoder = nn.ModuleList(level(w, n) for w, n in zip(widths, blocks, strict=True))
        self.down = nn.ModuleList(nn.Conv2d(a, b, 2, stride=2) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairs)
        self.decoder = nn.ModuleList(
            level(w, n) for w, n in zip(widths[:-1], blocks[:-1], strict=True)
        )
        self.norm = PixelNorm(widths[0])
        self.tail = nn.Conv2d(widths[0], channels * stem**2, 3, padding=1)
        nn.init.zeros_(self.tail.weight)
        nn.init.zeros_(self.tail.bias)  # type: ignore[arg-type]

    @property
    def reach(self) -> int:
        """How many pixels away, at most, an input pixel can be felt."""
        return unet_reach(self.stem, [len(blocks) for blocks in self.encoder])  # type: ignore[arg-type]

    def forward(self, u: Tensor, sigma: Tensor) -> Tensor:
        embedding = self.embed(sigma)
        h = self.head(F.pixel_unshuffle(u, self.stem))
        skips = []
        for k, blocks in enumerate(self.encoder):
            if k > 0:
                skips.append(h)
                h = self.down[k - 1](h)
            for block in blocks:  # type: ignore[attr-defined]
                h = block(h, embedding)
        for k in reversed(range(len(self.down))):
            h = self.up[k](h) + skips.pop()
            for block in self.decoder[k]:  # type: ignore[attr-defined]
                h = block(h, embedding)
        return F.pixel_shuffle(self.tail(F.silu(self.norm(h))), self.stem)
