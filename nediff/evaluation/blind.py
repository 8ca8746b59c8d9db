"""Judge a Restorer by noisy measurements alone. What is not measured, it cannot see: only A x."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nediff.divergence import expand
from nediff.evaluation.revealed import Pair, Revealed, draw_pair, summarise_pairs
from nediff.evaluation.sure import Sure, estimate_error
from nediff.losses import rescale
from nediff.problem import Problem
from nediff.randomness import Draws
from nediff.restorer import Restorer

Image = NDArray[np.float32]
CONTRASTS = (0.75, 0.5, 0.25)
LEAST_SAMPLES = 4
"""Half of them sort, half of them judge."""


@dataclass(frozen=True)
class Blind:
    """What noisy images say without any truth, at σ_n."""

    estimated_psnr: float
    """−10 log₁₀ of the mean squared error over all measured values, estimated by SURE."""
    interval: tuple[float, float]
    """95 % confidence, for these very images."""
    predicted_psnr: float
    """From the network's own divergence, σ² div D / m: equal for the true MMSE denoiser."""
    equivariance: list[tuple[float, float]]
    """(contrast α, by how much D(αy + μA1, ασ) and αD(y, σ) + μ1 differ, as a share of the
    error of the latter; root mean square)."""
    error2_over_variance: float | None = None
    """The error that SURE estimates over the variance of the samples: 1 is right."""
    consistency: float | None = None
    """‖A x − y‖²/(m σ_n²) of the samples: about 1, as for the truth."""
    pairs: Revealed | None = None
    """Samples judged by recorrupted pairs, at a lower contrast."""
    noise_overstated: bool = False
    """The images differ from what is restored by less than their noise is said to be: the other
    figures mean nothing."""


class BlindScores:
    """Sums over images, which are added one by one."""

    def __init__(self, restorer: Restorer, samples: int, seed: int) -> None:
        self.restorer, self.samples, self.seed = restorer, samples, seed
        self._sure = Sure(0.0, 0.0, 0.0, 0.0)
        self._differences = [0.0] * len(CONTRASTS)
        self._variance = self._misfit = 0.0
        self._pairs: list[Pair] = []

    @torch.no_grad()
    def add(
        self,
        image: Image,
        name: str,
        sigma: float,
        drawn: Image | None,
        clean: Image | None = None,
        pairs: bool = False,
    ) -> None:
        """A measurement (C, h, w) with noise ``sigma``, and samples drawn from it (n, C, H, W).

        With ``pairs``, as many are drawn from a recorrupted pair, if there are at least four, and
        judged by the ``clean`` image as well where that is known.
        """
        stored = torch.from_numpy(image)
        y, problem = self.restorer.measured(stored)
        self._add_estimate(y, problem, sigma, name)
        if drawn is None or len(drawn) < LEAST_SAMPLES:
            return
        self._add_samples(y, problem, sigma, torch.from_numpy(drawn).to(y.device))
        if not pairs:
            return
        truth = None
        if clean is not None:
            x = problem.operator.as_image(torch.from_numpy(clean)[None].to(y.device))
            truth = problem.A(x)[0]
        pair = draw_pair(self.restorer, stored, sigma, len(drawn), name, self.seed, truth)
        self._pairs.append(pair)

    def _add_estimate(self, y: Tensor, problem: Problem, level: float, name: str) -> None:
        """SURE and law 3, and law 6 at some contrasts."""
        sigma, shrunk = self.restorer.levels(1, level)
        y = expand(shrunk) * y
        probe = Draws(self.seed, f"blind {name}", 1, y.device).normal_like(y)
        denoiser = self.restorer.denoiser_of(problem)
        sure = estimate_error(denoiser, y, sigma, problem.noise(probe), problem)
        self._sure += sure.scaled(1 / shrunk.item())
        here = denoiser(y, sigma)
        for k, contrast in enumerate(CONTRASTS):
            alpha = torch.full_like(sigma, contrast)
            mu = (1 - alpha) / 2  # grey in the middle: black and white stay within the range
            there = denoiser(rescale(y, alpha, mu, problem), alpha * sigma)
            off = problem.A((there - expand(mu)) / contrast - here)
            self._differences[k] += float(off.double().square().sum()) / shrunk.item() ** 2

    def _add_samples(self, y: Tensor, problem: Problem, sigma: float, samples: Tensor) -> None:
        """Their variance, and how well they agree with the measurement."""
        drawn = torch.stack([problem.A(sample[None])[0] for sample in samples]).double()
        self._variance += float(drawn.var(0).sum())
        self._misfit += float((drawn - y).square().sum()) / len(samples) / sigma**2

    def result(self) -> Blind:
        """All figures."""
        sure = self._sure
        error = max(sure.error, 1e-10 * sure.values)
        differences = [math.sqrt(d / error) for d in self._differences]
        equivariance = list(zip(CONTRASTS, differences, strict=True))
        blind = Blind(
            sure.psnr,
            sure.interval,
            sure.predicted_psnr,
            equivariance,
            noise_overstated=sure.overstated,
        )
        if self.samples < LEAST_SAMPLES:
            return blind
        found = None
        if self._pairs:
            found = summarise_pairs(self._pairs, self.samples)
        return replace(
            blind,
            error2_over_variance=sure.error / self._variance if self._variance else math.inf,
            consistency=self._misfit / sure.values,
            pairs=found,
        )
