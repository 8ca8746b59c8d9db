"""3. Sampling: network calls and seconds until the spread of the samples is right.

Closed form: Gaussian priors of several widths, the exact denoiser; the fewest calls after which the
standard deviation of the samples is within 5 % in variance for all of them. Real images: squares of
`bsd68_gray` by a network of ours; the fewest calls after which error²/variance is within 10 % of 1.
Each solver may choose its γ and σ_min from the same lists (shorter for images), deepinv's too.
Algorithm 1 as printed has no spread however it walks, so on images only a few walks are tried,
among them the paper's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.denoising import central_squares
from nediff.evaluation import Calibration
from nediff.restorer import Restorer
from nediff.sampling.schedule import noise_levels
from nediff.sampling.solvers import SOLVERS, network_calls, solve

SIGMA = 0.075
WIDTHS = (0.02, 0.05, 0.1, 0.3)
"""Standard deviations of the Gaussian priors."""
COUNT = 20000
"""Samples of each: the variance is known to √(2/COUNT) = 1 %."""
LEVELS = (4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 64)
GAMMAS, RATIOS = (1.0, 3.0, 7.0), (1 / 60, 1 / 30, 1 / 15)
ON_IMAGES = [*product((4, 5, 6, 8, 10, 13, 16, 20, 25), (3.0, 7.0), (1 / 30, 1 / 15))]
"""The walks tried on images, which take longer."""
PRINTED = [(levels, 7.0, ratio) for levels in (10, 25) for ratio in (*RATIOS, 0.01 / SIGMA)]
"""The walks of Algorithm 1 on images: K, γ, σ_min/σ_n; the last is the paper's."""
VARIANCE_ERROR, CALIBRATION_ERROR = 0.05, 0.10
SIDE, EVERY, SAMPLES = 64, 4, 8
Denoise = Callable[[Tensor, Tensor], Tensor]
Sampler = Callable[[Tensor, Denoise, Tensor, torch.Generator], Tensor]
"""(y, D, levels (K,), randomness) → the state at the last level."""


@dataclass(frozen=True)
class Setting:
    """A walk: how many levels, how they are placed, where they end."""

    levels: int
    gamma: float
    ratio: float

    def tensor(self) -> Tensor:
        """σ_1 > … > σ_K."""
        top = torch.tensor([SIGMA], dtype=torch.float64)
        return noise_levels(top, self.ratio * top, self.levels, self.gamma)[:, 0]


def of_ours(solver: str) -> Sampler:
    """One of our solvers."""

    def sample(y: Tensor, denoise: Denoise, levels: Tensor, rng: torch.Generator) -> Tensor:
        def noise(_: int) -> Tensor:
            return torch.randn(y.shape, generator=rng, dtype=y.dtype)

        walk = levels[:, None].expand(-1, len(y))
        return solve(SOLVERS[solver], y, denoise, walk, noise)

    return sample


def of_deepinv(heun: bool) -> Sampler:
    """deepinv's EDM diffusion started at the measurement, with σ(t) = t."""

    def sample(y: Tensor, denoise: Denoise, levels: Tensor, rng: torch.Generator) -> Tensor:
        from deepinv.sampling import EDMDiffusionSDE, EulerSolver, HeunSolver

        class Model(torch.nn.Module):
            """D, as deepinv calls it."""

            def forward(self, z: Tensor, sigma: Any, **_: Any) -> Tensor:
                level = torch.as_tensor(sigma, dtype=z.dtype).flatten().expand(len(z))
                return denoise(z, level)

        solver = (HeunSolver if heun else EulerSolver)(timesteps=levels, rng=rng)
        sde = EDMDiffusionSDE(
            sigma_t=lambda t: t,
            sigma_prime_t=torch.ones_like,
            variance_exploding=True,
            alpha=1.0,
            T=SIGMA,
            denoiser=Model(),
            solver=solver,
            minus_one_one=False,
        )
        out: Tensor = solver.sample(sde, y).sample
        return out

    return sample


CANDIDATES: dict[str, tuple[Sampler, Callable[[int], int]]] = {
    **{
        name: (of_ours(name), lambda k, name=name: network_calls(name, k))  # type: ignore[misc]
        for name in SOLVERS
    },
    "deepinv, Euler": (of_deepinv(False), lambda k: k),
    "deepinv, Heun": (of_deepinv(True), lambda k: 2 * k - 1),
}
"""Samplers, and their network calls for K levels, with the last D(z, σ_min)."""


def settings_by_calls(calls: Callable[[int], int]) -> Iterator[tuple[int, Setting]]:
    """All settings, fewest calls first."""
    for levels in LEVELS:
        for gamma, ratio in product(GAMMAS, RATIOS):
            yield calls(levels), Setting(levels, gamma, ratio)


def gaussian_error(sampler: Sampler, setting: Setting) -> float:
    """The largest |sample variance / posterior variance − 1| over the priors."""
    width = torch.tensor(WIDTHS, dtype=torch.float64).repeat_interleave(COUNT)
    prior = width.square().view(-1, 1, 1, 1)

    def denoise(z: Tensor, level: Tensor) -> Tensor:
        return z * prior / (prior + level.view(-1, 1, 1, 1).square())

    levels, y = setting.tensor(), torch.full_like(prior, 0.1)
    rng = torch.Generator().manual_seed(0)
    z = sampler(y, denoise, levels, rng)
    x = denoise(z, levels[-1].expand(len(z))).view(len(WIDTHS), COUNT)
    true = torch.tensor([w**2 * SIGMA**2 / (w**2 + SIGMA**2) for w in WIDTHS])
    return float((x.var(dim=1) / true - 1).abs().max())


def fewest_gaussian(name: str) -> dict[str, Any]:
    """The first setting that is within the error."""
    sampler, calls = CANDIDATES[name]
    least = np.inf
    for count, setting in settings_by_calls(calls):
        error = gaussian_error(sampler, setting)
        least = min(least, error)
        if error <= VARIANCE_ERROR:
            return {"calls": count, "error": error, **vars(setting)}
    return {"calls": None, "error": least}


def ratio_on_images(restorer: Restorer, sampler: Sampler, setting: Setting, images: Any) -> Any:
    """error²/variance of several samples of each image, and the seconds they took."""
    clean, noisy = images
    calibration, seconds = Calibration(SAMPLES), 0.0
    levels = setting.tensor()

    def denoise(z: Tensor, level: Tensor) -> Tensor:
        with torch.no_grad():
            return restorer.denoiser(z.float(), level.float()).double()  # type: ignore[no-any-return]

    for i in range(len(clean)):
        y = noisy.image(i)
        started = time.process_time()
        copies = torch.from_numpy(np.repeat(y[None], SAMPLES, axis=0)).double()
        z = sampler(copies, denoise, levels, torch.Generator().manual_seed(i))
        drawn = denoise(z, levels[-1].expand(len(z))).float().numpy()
        seconds += time.process_time() - started
        calibration.add(clean.image(i), drawn, restorer.restore(y))
    return calibration.ratio, seconds / (len(clean) * SAMPLES)


def walks_on_images(name: str) -> list[Setting]:
    """Those that a solver may try, fewest levels first."""
    if name == "paper":
        return [Setting(*walk) for walk in PRINTED]
    return [Setting(*walk) for walk in ON_IMAGES]


def fewest_on_images(name: str, restorer: Restorer, images: Any) -> dict[str, Any]:
    """The first walk that is within 10 %; if there is none, the nearest.

    ``spread`` is error²/variance; ``ratio`` is that of the walk, σ_min/σ_n.
    """
    sampler, calls = CANDIDATES[name]
    nearest: dict[str, Any] = {"calls": None, "spread": None}
    for setting in walks_on_images(name):
        found, seconds = ratio_on_images(restorer, sampler, setting, images)
        row = {"calls": calls(setting.levels), "spread": found, "seconds": seconds, **vars(setting)}
        if abs(found - 1) <= CALIBRATION_ERROR:
            return row
        if nearest["spread"] is None or abs(found - 1) < abs(nearest["spread"] - 1):
            nearest = row | {"calls": None}
    return nearest


def run(data: Path, model: Path) -> dict[str, Any]:
    """Both, for every candidate; ``model`` is a run folder of a grey denoiser."""
    torch.set_num_threads(1)
    restorer = Restorer.load(model)
    images = central_squares(data, SIDE, EVERY)
    rows = {}
    for name in CANDIDATES:
        rows[name] = {
            "gaussian": fewest_gaussian(name),
            "images": fewest_on_images(name, restorer, images),
        }
        print(name, rows[name], flush=True)
    return {"rows": rows, "images": len(images[0]), "samples": SAMPLES, "side": SIDE}
