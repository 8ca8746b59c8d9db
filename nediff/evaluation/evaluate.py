"""Judge a Restorer: against the truth where there is one, and from noisy images alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nediff.data import Measurements
from nediff.divergence import monte_carlo
from nediff.evaluation.calibration import Calibration
from nediff.evaluation.metrics import psnr, ssim
from nediff.losses import decibels
from nediff.randomness import Draws, derive_key, normal_field
from nediff.restorer import Restorer

Progress = Callable[[int, int], None]
Image = NDArray[np.float32]
Keep = Callable[[int, Image, Image, Image], None]
"""(number, noisy image, estimate, samples): who wants the pictures too."""


@dataclass(frozen=True)
class Level:
    """One-step restoration at one noise level: means over the images."""

    sigma: float
    psnr_noisy: float
    psnr: float
    ssim: float


@dataclass(frozen=True)
class Spread:
    """The calibration figures at σ_n (METHOD.md §5, laws 4 and 5)."""

    samples: int
    error2_over_variance: float
    """1 is right; above 1 the error bars are too narrow."""
    psnr_drop_db: float
    """PSNR of the MMSE estimate minus that of a sample: 3.01 is right."""
    coverage: list[tuple[float, float]]
    """(promised, found) for central intervals."""
    reliability: list[tuple[float, float, float]]
    """(predicted rms error, found rms error, share of pixels)."""


@dataclass(frozen=True)
class Blind:
    """What noisy images say without any truth (SURE and law 3), at σ_n."""

    estimated_psnr: float
    """−10 log₁₀ of the mean squared error over all pixels, estimated by SURE."""
    predicted_psnr: float
    """From the network's own divergence, σ² div D / m: equal for the true MMSE denoiser."""


@dataclass(frozen=True)
class Evaluation:
    """All figures; ``levels`` and ``spread`` need the truth."""

    images: int
    sigma: float
    blind: Blind
    levels: list[Level]
    spread: Spread | None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return asdict(self)


def evaluate_with_truth(
    restorer: Restorer,
    noisy: Measurements,
    clean: Measurements,
    samples: int = 8,
    lower_levels: Sequence[float] = (),
    seed: int = 0,
    progress: Progress | None = None,
    keep: Keep | None = None,
) -> Evaluation:
    """PSNR, SSIM and calibration against ``clean``, which lists the same images in order.

    ``lower_levels`` are noise levels below σ_n, at which the clean images are corrupted anew.
    """
    sigma = restorer.problem.sigma
    calibration = Calibration(samples) if samples >= 2 else None
    rows: dict[float, list[tuple[float, float, float]]] = {
        s: [] for s in (*sorted(set(lower_levels)), sigma)
    }
    for i in range(len(noisy)):
        x, y = clean.image(i), noisy.image(i)
        for level in rows:
            y_level = y if level == sigma else _corrupt(x, level, clean.name(i), seed)
            estimate = restorer.restore(y_level, level)
            rows[level].append((psnr(y_level, x), psnr(estimate, x), ssim(estimate, x)))
        if calibration is not None:
            drawn = restorer.sample(y, samples, derive_key("evaluate", seed, clean.name(i)))
            calibration.add(x, drawn, estimate)
            if keep is not None:
                keep(i, y, estimate, drawn)
        if progress is not None:
            progress(i + 1, len(noisy))
    levels = [Level(s, *np.mean(r, axis=0).tolist()) for s, r in rows.items()]
    spread = None if calibration is None else _spread(calibration)
    return Evaluation(len(noisy), sigma, _blind(restorer, noisy, seed), levels, spread)


def evaluate_blind(
    restorer: Restorer, noisy: Measurements, seed: int = 0, progress: Progress | None = None
) -> Evaluation:
    """Everything here that needs no truth."""
    blind = _blind(restorer, noisy, seed, progress)
    return Evaluation(len(noisy), restorer.problem.sigma, blind, [], None)


def _spread(calibration: Calibration) -> Spread:
    return Spread(
        calibration.n,
        calibration.ratio,
        calibration.psnr_drop,
        calibration.coverage(),
        calibration.reliability(),
    )


def _corrupt(x: Image, level: float, name: str, seed: int) -> Image:
    noise = normal_field([derive_key("evaluate", seed, name)], *x.shape)[0].numpy()
    return (x + level * noise).astype(np.float32)


@torch.no_grad()
def _blind(
    restorer: Restorer, noisy: Measurements, seed: int, progress: Progress | None = None
) -> Blind:
    """SURE, and law 3: E‖x − D‖² = σ² E[div D] for the MMSE denoiser."""
    sigma = torch.tensor([restorer.problem.sigma], device=restorer.device)
    estimated, predicted, pixels = 0.0, 0.0, 0
    for i in range(len(noisy)):
        y = torch.from_numpy(noisy.image(i))[None].to(restorer.device)
        probe = Draws(seed, f"blind {noisy.name(i)}", 1, y.device).normal_like(y)
        value, divergence = monte_carlo(restorer.denoiser, y, sigma, probe)
        variance = sigma.square()
        residual = (y - value).square().sum()
        estimated += (residual + 2 * variance * divergence - y.numel() * variance).item()
        predicted += (variance * divergence).item()
        pixels += y.numel()
        if progress is not None:
            progress(i + 1, len(noisy))
    return Blind(decibels(estimated / pixels), decibels(predicted / pixels))
