"""SURE and its own error bar, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from nediff.divergence import Map
from nediff.evaluation.sure import NORMAL_95, Sure, estimate_error
from nediff.operators import Colour
from nediff.problem import Problem, random_mask

SIGMA = 0.1
SHAPE = (1, 16, 16)
MASK = random_mask(0.7, (16, 16), 0)
COLOUR = Colour.of(np.array([0.0, 0.3, 0.7]), np.array([3.0, 1.0, 0.1])[:, None, None])[0]


def normal(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shrink(y: Tensor, sigma: Tensor) -> Tensor:
    """Pixel by pixel, not linear."""
    return y * y.square() / (y.square() + 4 * SIGMA**2)


def smooth(y: Tensor, sigma: Tensor) -> Tensor:
    """Each pixel with its right neighbour, and not symmetric: J ≠ Jᵀ."""
    return 0.6 * y + 0.3 * y.roll(1, -1)


def errors(denoiser: Map, problem: Problem, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(SURE − true squared error, its stated variance) for so many draws of noise and probe."""
    x = 0.3 * normal((1, *SHAPE), 0)
    off, stated = [], []
    for seed in range(count):
        noise, probe = (problem.noise(normal((1, *SHAPE), 2 * seed + k)) for k in (1, 2))
        y = problem.A(x) + SIGMA * noise
        found = estimate_error(denoiser, y, torch.full((1,), SIGMA).double(), probe, problem)
        truth = float((problem.A(denoiser(y, torch.tensor([SIGMA])) - x)).square().sum())
        off.append(found.error - truth)
        stated.append(found.variance)
    return np.array(off), np.array(stated)


@pytest.mark.parametrize("denoiser", [shrink, smooth])
@pytest.mark.parametrize("kind", ["white", "masked", "correlated"])
def test_the_stated_error_of_sure_is_the_one_it_has(denoiser: Map, kind: str) -> None:
    """Over 600 draws: the mean of SURE − truth is zero within four standard errors, its variance
    the stated one within 25 % (a sample variance of 600 has 5.8 %, that of estimates 256 values
    wide a little more), and 95 % intervals hold 95 ± 3 % (3.4 standard errors)."""
    problem = Problem.denoising(SIGMA, 1, COLOUR if kind == "correlated" else None)
    if kind == "masked":
        problem = Problem.inpainting(MASK, SIGMA)
    off, stated = errors(denoiser, problem, 600)
    assert abs(off.mean()) < 4 * math.sqrt(stated.mean() / len(off))
    assert off.var() == pytest.approx(stated.mean(), rel=0.25)
    held = np.abs(off) < NORMAL_95 * np.sqrt(np.maximum(stated, 0))
    assert held.mean() == pytest.approx(0.95, abs=0.03)


def test_sums_and_decibels() -> None:
    whole = Sure(1.0, 0.01, 2.0, 100.0) + Sure(1.0, 0.03, 0.0, 100.0)
    assert whole.psnr == pytest.approx(20.0)
    assert whole.predicted_psnr == pytest.approx(20.0)
    low, high = whole.interval
    assert low == pytest.approx(-10 * math.log10((2 + 1.96 * 0.2) / 200))
    assert high == pytest.approx(-10 * math.log10((2 - 1.96 * 0.2) / 200))
