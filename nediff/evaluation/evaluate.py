"""Judge a Restorer: against the truth where there is one, and from noisy images alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nediff.data import Measurements
from nediff.divergence import expand, monte_carlo
from nediff.evaluation.calibration import Calibration
from nediff.evaluation.views import SampleScores, Scores, View, mean_scores
from nediff.losses import decibels
from nediff.randomness import Draws, derive_key
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
    """Of the measurement itself or, where it is incomplete, of its linear fill."""
    psnr: float
    ssim: float
    psnr_unmeasured: float | None = None
    """On the pixels that were not measured, where there are such."""


@dataclass(frozen=True)
class Spread:
    """The calibration figures at σ_n (METHOD.md §5, laws 4 and 5), for Ax or for what A misses."""

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
    consistency: float | None = None
    """‖A x − y‖²/(m σ_n²) of the samples: about 1, as for the truth."""
    spread_unmeasured: Spread | None = None
    """The same calibration figures on the pixels that were not measured."""

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
    Where the noisy images have levels of their own, σ_n in the result is their root mean square.
    """
    sigma = _level(restorer, noisy)
    scores: dict[float, list[Scores]] = {s: [] for s in (*sorted(set(lower_levels)), sigma)}
    spreads = SampleScores(samples) if samples >= 2 else None
    for i in range(len(noisy)):
        own = noisy.sigma_of(i, restorer.problem.sigma)
        view = View(restorer, clean.image(i), noisy.size(i), own)
        y = noisy.image(i)
        for level in scores:
            if level == sigma:
                y_level, estimate = y, restorer.restore(y, own)
            else:
                y_level = view.measure(level, clean.name(i), seed)
                estimate = restorer.restore(y_level, level)
            scores[level].append(view.score(y_level, estimate))
        if spreads is not None:
            drawn = restorer.sample(y, samples, derive_key("evaluate", seed, clean.name(i)), own)
            spreads.add(view, y, drawn, estimate)
            if keep is not None:
                keep(i, y, estimate, drawn)
        if progress is not None:
            progress(i + 1, len(noisy))
    levels = [Level(s, *mean_scores(rows)) for s, rows in scores.items()]
    blind = _blind(restorer, noisy, seed)
    if spreads is None:
        return Evaluation(len(noisy), sigma, blind, levels, None)
    seen, unseen = _spread(spreads.seen), _spread(spreads.unseen)
    return Evaluation(len(noisy), sigma, blind, levels, seen, spreads.consistency, unseen)


def evaluate_blind(
    restorer: Restorer, noisy: Measurements, seed: int = 0, progress: Progress | None = None
) -> Evaluation:
    """Everything here that needs no truth."""
    blind = _blind(restorer, noisy, seed, progress)
    return Evaluation(len(noisy), _level(restorer, noisy), blind, [], None)


def _level(restorer: Restorer, noisy: Measurements) -> float:
    """The noise level to report: σ_n, or the root mean square of those of the images."""
    if noisy.sigmas is None:
        return restorer.problem.sigma
    levels = [noisy.sigma_of(i, restorer.problem.sigma) for i in range(len(noisy))]
    return math.sqrt(sum(level**2 for level in levels) / len(levels))


def _spread(calibration: Calibration) -> Spread | None:
    if calibration.pixels == 0:
        return None
    return Spread(
        calibration.n,
        calibration.ratio,
        calibration.psnr_drop,
        calibration.coverage(),
        calibration.reliability(),
    )


@torch.no_grad()
def _blind(
    restorer: Restorer, noisy: Measurements, seed: int, progress: Progress | None = None
) -> Blind:
    """SURE, and law 3: E‖x − D‖² = σ² E[div D] for the MMSE denoiser."""
    estimated, predicted, values = 0.0, 0.0, 0.0
    for i in range(len(noisy)):
        own = noisy.sigma_of(i, restorer.problem.sigma)
        y, problem = restorer.measured(noisy.image(i))
        sigma, alpha = restorer.levels(1, own)
        y, variance, shrunk = expand(alpha) * y, sigma.square(), alpha.item() ** 2
        probe = Draws(seed, f"blind {noisy.name(i)}", 1, y.device).normal_like(y)
        denoiser = restorer.denoiser_of(problem)
        value, divergence = monte_carlo(
            lambda u, s, p=problem, d=denoiser: p.A(d(u, s)),  # type: ignore[misc]
            y,
            sigma,
            problem.mask_noise(probe),
        )
        m = problem.measured(y).item()
        residual = (y - value).square().sum()
        estimated += (residual + 2 * variance * divergence - m * variance).item() / shrunk
        predicted += (variance * divergence).item() / shrunk
        values += m
        if progress is not None:
            progress(i + 1, len(noisy))
    return Blind(decibels(estimated / values), decibels(predicted / values))
