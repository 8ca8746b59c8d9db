"""How good is the network, judged from held-out noisy images alone."""

from __future__ import annotations

import torch
from torch import Tensor

from nediff.data import Measurements
from nediff.divergence import Map
from nediff.losses import decibels, sure
from nediff.problem import Problem
from nediff.randomness import Draws


class SureValidation:
    """SURE on fixed crops of the held-out noisy images, as an estimated PSNR.

    The crops and the probes of the divergence are drawn once, from the seed, so that two
    evaluations differ only through the network.
    """

    def __init__(
        self, heldout: Measurements, problem: Problem, seed: int, side: int = 128, most: int = 16
    ) -> None:
        self.problem = problem
        indices = range(min(most, len(heldout)))
        self.crops = [_centre(heldout, i, side) for i in indices]
        draws = Draws(seed, "validation", 1)
        self.probes = [draws.normal_like(crop) for crop in self.crops]

    @torch.no_grad()
    def estimated_psnr(self, denoiser: Map, device: torch.device | str = "cpu") -> float:
        """10 log₁₀(1 / MSE) in dB with MSE estimated by SURE at σ_n, every pixel counted once."""
        total, pixels = 0.0, 0
        for crop, probe in zip(self.crops, self.probes, strict=True):
            y = crop.to(device)
            sigma = torch.full((1,), self.problem.sigma, device=device)
            value = sure(denoiser, y, sigma, probe.to(device), self.problem)
            total, pixels = total + value.item() * y.numel(), pixels + y.numel()
        return decibels(total / pixels)


def _centre(measurements: Measurements, index: int, side: int) -> Tensor:
    height, width = measurements.size(index)
    h, w = min(side, height), min(side, width)
    crop = measurements.crop(index, (height - h) // 2, (width - w) // 2, h, w)
    return torch.from_numpy(crop)[None]
