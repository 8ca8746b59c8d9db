"""How good is the network, judged from held-out noisy images alone."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nediff.data import Measurements
from nediff.losses import decibels, sure
from nediff.operators import LinearOperator
from nediff.problem import Problem
from nediff.processes import ALONE, Processes
from nediff.randomness import Draws
from nediff.recipes import Network


class SureValidation:
    """SURE on fixed crops of the held-out noisy images, as an estimated PSNR.

    The crops and the probes of the divergence are drawn once, from the seed, so that two
    evaluations differ only through the network.
    """

    def __init__(
        self, heldout: Measurements, problem: Problem, seed: int, side: int = 128, most: int = 16
    ) -> None:
        self.heldout = heldout
        self.cuts = [_centre(heldout, problem, i, side) for i in range(min(most, len(heldout)))]
        draws = Draws(seed, "validation", 1)
        self.probes = [draws.normal_like(crop) for crop, _ in self.cuts]

    @torch.no_grad()
    def estimated_psnr(
        self,
        network: Network,
        device: torch.device | str = "cpu",
        processes: Processes = ALONE,
    ) -> float:
        """10 log₁₀(1 / MSE) in dB with MSE (of Ax) estimated by SURE, all values alike.

        Each image counts at its own noise level. The ``processes`` look at some of them each, and
        the sum is taken in the order of the images: as many as there are, it is the same.
        """
        found = {}
        for k in processes.share(range(len(self.cuts))):
            (crop, problem), probe = self.cuts[k], self.probes[k]
            y, operator = crop.to(device), problem.operator.to(device)
            here = problem.with_operator(operator)
            sigma = torch.full((1,), problem.sigma, device=device)

            def denoiser(u: Tensor, s: Tensor, operator: LinearOperator = operator) -> Tensor:
                return network(u, s, operator)

            value = sure(denoiser, y, sigma, probe.to(device), here)
            m = here.measured(y).item()
            found[k] = torch.tensor([value.item() * m, m], dtype=torch.float64)
        total, values = 0.0, 0.0
        for weighted, m in processes.collect(found, len(self.cuts)).tolist():
            total, values = total + weighted, values + m
        return decibels(total / values)


def _centre(
    measurements: Measurements, problem: Problem, index: int, side: int
) -> tuple[Tensor, Problem]:
    """The middle of a measurement, and the instrument with the noise that measured it."""
    height, width = measurements.size(index)
    h, w, top, left = height, width, 0, 0
    if (step := problem.operator.crop_step) is not None:
        h, w = min(side, height), min(side, width)
        top, left = (height - h) // 2 // step * step, (width - w) // 2 // step * step
    sigma = measurements.sigma_of(index, problem.sigma)
    here = replace(problem, operator=problem.operator.window(top, left, h, w), sigma=sigma)
    crop = torch.from_numpy(measurements.crop(index, top, left, h, w))[None]
    return here.lift(crop), here
