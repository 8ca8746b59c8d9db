"""Judge a Restorer: against the truth where there is one, and from noisy images alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nediff.data import Measurements
from nediff.evaluation.blind import Blind, BlindScores
from nediff.evaluation.calibration import Calibration
from nediff.evaluation.parts import parts_to_judge
from nediff.evaluation.views import SampleScores, Scores, View, mean_scores
from nediff.randomness import derive_key
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
    pairs: bool = False,
) -> Evaluation:
    """PSNR, SSIM and calibration against ``clean``, which lists the same images in order.

    With ``pairs``, samples are judged by noisy measurements as well, which takes as many again.
    ``lower_levels`` are noise levels below σ_n, at which the clean images are corrupted anew.
    Where the noisy images have levels of their own, σ_n in the result is their root mean square.
    """
    sigma = _level(restorer, noisy)
    scores: dict[float, list[Scores]] = {s: [] for s in (*sorted(set(lower_levels)), sigma)}
    spreads = SampleScores(samples) if samples >= 2 else None
    blind = BlindScores(restorer, samples, seed)
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
        drawn = _drawn(restorer, y, own, samples, derive_key("evaluate", seed, noisy.name(i)))
        blind.add(y, noisy.name(i), own, drawn, clean.image(i), pairs)
        if spreads is not None and drawn is not None:
            spreads.add(view, y, drawn, estimate)
            if keep is not None:
                keep(i, y, estimate, drawn)
        if progress is not None:
            progress(i + 1, len(noisy))
    levels = [Level(s, *mean_scores(rows)) for s, rows in scores.items()]
    if spreads is None:
        return Evaluation(len(noisy), sigma, blind.result(), levels, None)
    seen, unseen = _spread(spreads.seen), _spread(spreads.unseen)
    found = blind.result()
    return Evaluation(len(noisy), sigma, found, levels, seen, spreads.consistency, unseen)


def evaluate_blind(
    restorer: Restorer,
    noisy: Measurements,
    samples: int = 8,
    seed: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Everything here that needs no truth; of large images by squares (parts.py)."""
    blind, images = BlindScores(restorer, samples, seed), len(noisy)
    noisy = parts_to_judge(noisy, restorer.problem, seed)
    for i in range(len(noisy)):
        y, name = noisy.image(i), noisy.name(i)
        own = noisy.sigma_of(i, restorer.problem.sigma)
        drawn = _drawn(restorer, y, own, samples, derive_key("evaluate", seed, name))
        blind.add(y, name, own, drawn, pairs=True)
        if progress is not None:
            progress(i + 1, len(noisy))
    found = blind.result()
    return Evaluation(images, _level(restorer, noisy), found, [], None, found.consistency)


def _drawn(restorer: Restorer, y: Image, sigma: float, samples: int, seed: int) -> Image | None:
    """Posterior samples (n, C, H, W) of an image; None if fewer than two."""
    return restorer.sample(y, samples, seed, sigma) if samples >= 2 else None


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
