"""Posterior samples in measurement space, reproducible by image and seed (METHOD.md §4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nediff.divergence import Map
from nediff.problem import Problem
from nediff.randomness import derive_key, normal_field
from nediff.sampling.schedule import noise_levels
from nediff.sampling.solvers import SOLVERS, solve

Progress = Callable[[int, int], None]
"""(steps done, steps in all)."""


@dataclass(frozen=True)
class SamplerSettings:
    """How to walk from σ_n to σ_min.

    Ten calls keep the calibration if the first steps are short: γ = 3. With the paper's γ = 7
    the first step is long, and of first order only, and the samples come out too narrow
    (docs/results/sampler).
    """

    solver: str = "dpm2m"
    steps: int = 10
    """K, the number of noise levels; dpm2m calls the network K times."""
    sigma_min_ratio: float = 1 / 15
    """σ_min = σ_n × this."""
    gamma: float = 3.0

    def __post_init__(self) -> None:
        if self.solver not in SOLVERS:
            raise ValueError(f"unknown solver {self.solver!r}; there are {', '.join(SOLVERS)}")
        if self.steps < 2:
            raise ValueError(f"sampling needs at least 2 steps, got {self.steps}")


PAPER_SETTINGS = SamplerSettings("paper", steps=25, sigma_min_ratio=0.01 / 0.075, gamma=7.0)
"""Algorithm 1 of the paper with its own settings, for reproduction only."""


def sample_posterior(
    denoiser: Map,
    y: Tensor,
    sigma: Tensor,
    problem: Problem,
    n: int,
    seeds: Sequence[int],
    settings: SamplerSettings | None = None,
    progress: Progress | None = None,
    pixels_at_once: int = 2**17,
) -> Tensor:
    """n samples of the image behind each measurement of y (B, C', h, w): (n, B, C, H, W).

    The walk is in measurement space, z from y down to σ_min with u ↦ A D(u, σ) and noise where
    the instrument has noise; the sample is x = D(z, σ_min). So A x is sampled; what A does not
    see gets its conditional mean.

    Sample k of an image is a function of that image, its σ, its seed and k alone, to float
    tolerance: the batch only decides what is computed together. The sampler's state is kept
    in float64, the network runs in the type of y. ``pixels_at_once`` bounds what is computed
    together: on a CPU, larger batches fall out of its caches and run at half the speed.

    All samples of an image start at z = y, so the first of the network's answers is theirs
    together and is asked for once.
    """
    settings = settings or SamplerSettings()
    first = _first_answers(denoiser, y, sigma, problem, pixels_at_once) if n > 1 else None
    jobs = [(k, i) for k in range(n) for i in range(len(y))]
    at_once = max(1, pixels_at_once // max(1, y[0, 0].numel()))
    out: list[Tensor] = []
    for start in range(0, len(jobs), at_once):
        chunk = jobs[start : start + at_once]
        images = [i for _, i in chunk]
        keys = [(seeds[i], k) for k, i in chunk]

        def report(step: int, done: int = start, size: int = len(chunk)) -> None:
            if progress is not None:
                total = len(jobs) * settings.steps
                progress(done * settings.steps + size * step, total)

        out.append(
            _sample_chunk(
                denoiser,
                y[images],
                sigma[images],
                problem,
                keys,
                settings,
                report,
                None if first is None else first[images],
            )
        )
        report(settings.steps)
    shape = problem.A_adjoint(y[:1]).shape[1:]
    return torch.cat(out).view(n, len(y), *shape) if n else y.new_empty((0, len(y), *shape))


def _first_answers(
    denoiser: Map, y: Tensor, sigma: Tensor, problem: Problem, pixels_at_once: int
) -> Tensor:
    """A D(y, σ), what every solver asks for first, of the shape of y."""
    at_once = max(1, pixels_at_once // max(1, y[0, 0].numel()))
    parts = [
        problem.A(denoiser(y[i : i + at_once], sigma[i : i + at_once]))
        for i in range(0, len(y), at_once)
    ]
    return torch.cat(parts)


def _sample_chunk(
    denoiser: Map,
    y: Tensor,
    sigma: Tensor,
    problem: Problem,
    keys: Sequence[tuple[int, int]],
    settings: SamplerSettings,
    report: Callable[[int], None],
    first: Tensor | None = None,
) -> Tensor:
    """One sample per row of y, row r with the noise of (seed, sample number) = keys[r].

    ``first`` is A D(y, σ), if it is known.
    """
    _, channels, height, width = y.shape
    known = [] if first is None else [first]

    def denoise(z: Tensor, level: Tensor) -> Tensor:
        if known:
            return known.pop().double()
        return problem.A(denoiser(z.to(y.dtype), level.to(y.dtype))).double()

    def noise(step: int) -> Tensor:
        field_keys = [derive_key("sample", seed, k, step) for seed, k in keys]
        field = normal_field(field_keys, channels, height, width, device=y.device)
        return problem.noise(field.double())

    sigma_min = sigma * settings.sigma_min_ratio
    levels = noise_levels(sigma, sigma_min, settings.steps, settings.gamma)
    z = solve(SOLVERS[settings.solver], y.double(), denoise, levels, noise, report)
    return denoiser(z.to(y.dtype), sigma_min.to(y.dtype))
