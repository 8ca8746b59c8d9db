"""The sampler against a posterior that is known exactly: a prior of two values, ±1/4 about 1/2.

python examples/posterior.py --out docs/images/posterior.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from nediff.experiments.drawing import COLOURS, INK, charts
from nediff.problem import Problem
from nediff.sampling import SamplerSettings, sample_posterior

CENTRE, HALF, WIDTH, SIGMA, Y = 0.5, 0.25, 0.03, 0.3, 0.55


def denoiser(y: Tensor, sigma: Tensor) -> Tensor:
    """E[x | y] for x ~ ½N(c − h, w²) + ½N(c + h, w²): the means of both, by their odds."""
    s2 = sigma[:, None, None, None] ** 2
    weights, means = [], []
    for sign in (-1, 1):
        m = CENTRE + sign * HALF
        weights.append(-((y - m) ** 2) / (2 * (s2 + WIDTH**2)))
        means.append((m * s2 + y * WIDTH**2) / (s2 + WIDTH**2))
    share = torch.softmax(torch.stack(weights), dim=0)
    return (share * torch.stack(means)).sum(0)


def density(x: Tensor) -> Tensor:
    """p(x | Y), normalised on the grid x."""
    prior = sum(torch.exp(-((x - CENTRE - s * HALF) ** 2) / (2 * WIDTH**2)) for s in (-1, 1))
    posterior = prior * torch.exp(-((x - Y) ** 2) / (2 * SIGMA**2))
    return posterior / torch.trapezoid(posterior, x)


def samples(n: int = 4000) -> Tensor:
    """All from the one measurement Y."""
    y = torch.full((1, 1, 1, 1), Y)
    # to a last level far below the width of a peak: what is weaker than it is lost
    settings = SamplerSettings(steps=60, sigma_min_ratio=0.01)
    problem = Problem.denoising(SIGMA, 1)
    drawn = sample_posterior(denoiser, y, torch.tensor([SIGMA]), problem, n, [0], settings)
    return drawn.flatten()


def main() -> None:
    """Draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("posterior.svg"))
    out = parser.parse_args().out
    x = torch.linspace(0, 1.1, 800)
    with charts(out, 1, 1, width=5.5) as axes:
        axis = axes[0, 0]
        axis.hist(samples().numpy(), bins=90, range=(0, 1.1), density=True, color="#bfdbfe")
        axis.plot(x, density(x), color=COLOURS[1], lw=1.5, label="exact posterior")
        axis.axvline(Y, color=INK, lw=1, ls=":", label="the measurement y")
        axis.set(xlabel="x", ylabel="density")
        axis.legend(frameon=False, fontsize=8)
    print(out)


if __name__ == "__main__":
    main()
