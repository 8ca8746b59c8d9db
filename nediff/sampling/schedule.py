"""The noise levels a sampler walks down (METHOD.md §4)."""

from __future__ import annotations

import torch
from torch import Tensor


def noise_levels(sigma_max: Tensor, sigma_min: Tensor, steps: int, gamma: float = 7.0) -> Tensor:
    """σ_i = (σ_max^{1/γ} + i/(K−1) (σ_min^{1/γ} − σ_max^{1/γ}))^γ, i = 0 … K−1.

    σ_max and σ_min are (B,); returns (K, B) in float64, strictly decreasing.
    """
    if steps < 2:
        raise ValueError(f"a schedule needs at least 2 levels, got {steps}")
    high, low = sigma_max.double() ** (1 / gamma), sigma_min.double() ** (1 / gamma)
    fraction = torch.linspace(0, 1, steps, dtype=torch.float64, device=sigma_max.device)[:, None]
    levels = (high + fraction * (low - high)) ** gamma
    levels[0], levels[-1] = sigma_max.double(), sigma_min.double()  # exact ends
    return levels
