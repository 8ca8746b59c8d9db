"""A restored image beside the truth: the whole of it, what was measured, what was not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nediff.evaluation.calibration import Calibration
from nediff.evaluation.metrics import psnr, ssim
from nediff.losses import decibels
from nediff.randomness import derive_key, normal_field
from nediff.restorer import Restorer

Image = NDArray[np.float32]


class Scores(NamedTuple):
    """Of one image at one level, in the order of `Level`."""

    psnr_noisy: float
    psnr: float
    ssim: float
    psnr_unmeasured: float | None


def mean_scores(rows: Sequence[Scores]) -> Scores:
    """Means over images."""
    first, second, third = np.mean([row[:3] for row in rows], axis=0).tolist()
    unmeasured = [row.psnr_unmeasured for row in rows if row.psnr_unmeasured is not None]
    return Scores(first, second, third, float(np.mean(unmeasured)) if unmeasured else None)


class View:
    """One true image x, and the instrument as it measured it: with noise ``sigma``, or σ_n.

    Everything is judged in fractions of the intensity range in data units, which unit intensities
    are, too, unless they are stabilised (data/stabilise.py).
    """

    def __init__(
        self,
        restorer: Restorer,
        clean: Image,
        size: tuple[int, int],
        sigma: float | None = None,
    ) -> None:
        whole = restorer.problem
        self.size = size
        self.straight = restorer.range.straight
        here = whole.operator.window(0, 0, *size).to("cpu")
        self.problem = replace(whole, operator=here, sigma=whole.sigma if sigma is None else sigma)
        self.operator = self.problem.operator
        self.x = self.operator.as_image(torch.from_numpy(clean)[None])
        known = self.operator.known(self.x)[0].numpy() > 0
        inside = torch.zeros_like(self.x, dtype=torch.bool)
        self.operator.frame(inside, *size)[:] = True
        self.unmeasured = inside[0].numpy() & ~known
        self.by_pixels = bool(known.any())  # a blur or MRI measures no pixel as such

    def measure(self, level: float, name: str, seed: int) -> Image:
        """Measure the truth anew at another noise level, as the instrument stores it."""
        clean = self.operator.A(self.x)
        key = derive_key("evaluate", seed, name)
        noise = self.operator.noise(normal_field([key], *clean.shape[1:]))
        y = clean + level * noise
        if self.problem.raw:
            y = y.sum(dim=1, keepdim=True)
        out: Image = y[0].numpy()
        return out

    def score(self, y: Image, estimate: Image) -> Scores:
        """PSNR of the fill and of the estimate, SSIM, and PSNR where nothing was measured."""
        filled = self.operator.fill(self.problem.lift(torch.from_numpy(y)[None]))[0].numpy()
        estimate, x = self.straight(estimate), self.straight(self.x[0].numpy())
        truth, first = self._picture(x), self._picture(self.straight(filled))
        shown = self._picture(estimate)
        missed = None
        if self.by_pixels and self.unmeasured.any():
            missed = decibels(float(np.square(estimate - x)[self.unmeasured].mean()))
        return Scores(psnr(first, truth), psnr(shown, truth), ssim(shown, truth), missed)

    def _picture(self, image: Image) -> Image:
        """What one looks at: the magnitude of complex images, the frame of the measurement."""
        framed = self.operator.frame(torch.from_numpy(image), *self.size).numpy()
        if self.problem.kind == "mri":
            magnitude: Image = np.sqrt(np.square(framed).sum(axis=0, keepdims=True))
            return magnitude
        return framed

    def seen(self, image: Tensor) -> Image:
        """The measured values of A image, straight, (..., m)."""
        flat = image.reshape(-1, *image.shape[-3:])
        there = self.operator.mask_noise(torch.ones_like(self.operator.A(self.x)))[0] > 0
        values: Image = self.operator.A(flat)[:, there].reshape(*image.shape[:-3], -1).numpy()
        return self.straight(values)


class SampleScores:
    """Calibration of samples: of what was measured, A x, and of what was not."""

    def __init__(self, n: int) -> None:
        self.seen, self.unseen = Calibration(n), Calibration(n)
        self._misfits: list[float] = []

    def add(self, view: View, y: Image, samples: Image, estimate: Image) -> None:
        """One image: its measurement, n samples (n, C, H, W) and the MMSE estimate."""
        drawn, mmse = torch.from_numpy(samples), torch.from_numpy(estimate)
        self.seen.add(view.seen(view.x[0]), view.seen(drawn), view.seen(mmse))
        if view.unmeasured.any():
            where = view.unmeasured
            unseen = (view.x[0].numpy()[where], samples[:, where], estimate[where])
            self.unseen.add(*(view.straight(part) for part in unseen))
        lifted = view.problem.lift(torch.from_numpy(y)[None])
        misfit = view.operator.A(drawn) - lifted
        values = view.problem.measured(lifted).item() * len(samples)
        self._misfits.append(float(misfit.square().sum()) / values / view.problem.sigma**2)

    @property
    def consistency(self) -> float:
        """‖A x − y‖²/(m σ_n²), mean over samples and images."""
        return float(np.mean(self._misfits))
