"""Filling what was not measured from what was, linearly (METHOD.md §3)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_EDGE = (0.25, 0.5, 0.25)


def fill_missing(y: Tensor, mask: Tensor) -> Tensor:
    """y where measured, a weighted mean of measured neighbours elsewhere; (B, C, H, W) → same.

    Normalised convolution, (g ∗ (m⊙y)) / (g ∗ m), with the 3×3 kernel of bilinear
    interpolation; where no neighbour is measured, the same on the image at half size, and so
    on. Linear in y with weights that sum to one, so it commutes with y → αy + μm.
    """
    mask = mask.expand_as(y)
    total, weight = _smooth(mask * y), _smooth(mask)
    near = weight > 1e-6
    estimate = total / weight.clamp_min(1e-6)
    if not bool(near.all()) and max(y.shape[-2:]) > 1:
        estimate = torch.where(near, estimate, _from_half_size(y, mask))
    return torch.where(mask > 0, y, estimate)


def _smooth(x: Tensor) -> Tensor:
    kernel = torch.tensor(_EDGE, dtype=x.dtype, device=x.device)
    weight = (kernel[:, None] * kernel).expand(x.shape[1], 1, 3, 3)
    return F.conv2d(x, weight, padding=1, groups=x.shape[1])


def _from_half_size(y: Tensor, mask: Tensor) -> Tensor:
    """Fill at half size, from the means of the measured pixels of each 2×2 block."""
    height, width = y.shape[-2:]
    pad = (0, width % 2, 0, height % 2)
    total = F.avg_pool2d(F.pad(mask * y, pad), 2)
    weight = F.avg_pool2d(F.pad(mask, pad), 2)
    coarse = fill_missing(total / weight.clamp_min(1e-6), (weight > 0).to(y.dtype))
    return F.interpolate(coarse, scale_factor=2.0, mode="nearest")[..., :height, :width]


def fill_depth(mask: Tensor) -> int:
    """How many times `fill_missing` halves the size until every pixel has a neighbour.

    After d halvings it looks 2^(d+1) − 1 pixels away, in blocks of 2^d pixels.
    """
    depth, mask = 0, (mask > 0).float()
    while not bool((_smooth(mask) > 1e-6).all()) and max(mask.shape[-2:]) > 1:
        pad = (0, mask.shape[-1] % 2, 0, mask.shape[-2] % 2)
        mask, depth = (F.avg_pool2d(F.pad(mask, pad), 2) > 0).float(), depth + 1
    return depth
