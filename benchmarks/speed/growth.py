"""5. How each cost grows: with pixels, channels, samples, steps.

The exponent p of seconds ∝ quantity^p, by a line through the logarithms; 1 is linear.
Memory is kept from one layer to the next, as the commands do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.speed.timing import in_turns
from nediff.cli.allocation import reuse_large_blocks
from nediff.config import NetworkConfig
from nediff.networks import build_denoiser
from nediff.problem import Problem
from nediff.sampling import SamplerSettings
from nediff.sampling.posterior import sample_posterior

SIGMA = 0.075
SIDE = 128


def _restore(side: int, channels: int) -> Callable[[], object]:
    denoiser = build_denoiser(NetworkConfig(channels=channels, sigma_data=0.2))
    y, sigma = torch.rand(1, channels, side, side), torch.tensor([SIGMA])

    def work() -> object:
        with torch.no_grad():
            return denoiser(y, sigma)

    return work


def _sample(samples: int, steps: int) -> Callable[[], object]:
    denoiser = build_denoiser(NetworkConfig(channels=1, sigma_data=0.2))
    y, sigma = torch.rand(1, 1, SIDE, SIDE), torch.tensor([SIGMA])
    problem, settings = Problem.denoising(SIGMA, 1), SamplerSettings(steps=steps)

    def network(z: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            out: torch.Tensor = denoiser(z, level)
        return out

    return lambda: sample_posterior(network, y, sigma, problem, samples, [0], settings)


FAMILIES: dict[str, tuple[tuple[int, ...], Callable[[int], Callable[[], object]]]] = {
    "pixels a side (restore)": ((64, 128, 256, 512, 1024), lambda n: _restore(n, 1)),
    "channels (restore)": ((1, 2, 4, 8), lambda n: _restore(SIDE, n)),
    "samples": ((1, 2, 4, 8, 16), lambda n: _sample(n, 10)),
    "steps (sample)": ((5, 10, 20, 40), lambda n: _sample(1, n)),
}


def exponent(quantities: tuple[int, ...], seconds: list[float]) -> float:
    """Of the power law through them."""
    return float(np.polyfit(np.log(quantities), np.log(seconds), 1)[0])


def run(rounds: int = 7) -> dict[str, Any]:
    """Each family, its members in turns."""
    torch.set_num_threads(1)
    reuse_large_blocks()
    rows = {}
    for family, (quantities, make) in FAMILIES.items():
        found = in_turns({str(n): make(n) for n in quantities}, rounds)
        seconds = [float(np.median(found[str(n)])) for n in quantities]
        rows[family] = {
            "quantities": list(quantities),
            "seconds": seconds,
            "exponent": exponent(quantities, seconds),
        }
        print(family, rows[family], flush=True)
    return {"rows": rows}
