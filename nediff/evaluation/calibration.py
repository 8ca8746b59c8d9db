"""Laws 4 and 5 of METHOD.md §5: do posterior samples have the right spread?

If x and the n samples of an image are independent draws from the same posterior, then the
truth is, pixel by pixel, just one more sample. Everything here follows from that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class Calibration:
    """Sums over pixels, to which images of any size are added one by one.

    ``n`` is the number of samples per image, ``bins`` the number of classes of predicted
    standard deviation in the reliability curve, their edges equally spaced in log sd.
    """

    n: int
    low: float = 1e-4
    high: float = 1.0
    bins: int = 24
    pixels: int = 0
    squared_error: float = 0.0
    variance: float = 0.0
    sample_error: float = 0.0
    mmse_error: float = 0.0
    ranks: NDArray[np.int64] = field(init=False)
    bin_count: NDArray[np.int64] = field(init=False)
    bin_error: Array = field(init=False)
    bin_variance: Array = field(init=False)

    def __post_init__(self) -> None:
        if self.n < 2:
            raise ValueError("calibration needs at least 2 samples per image")
        self.ranks = np.zeros(self.n + 1, dtype=np.int64)
        self.bin_count = np.zeros(self.bins, dtype=np.int64)
        self.bin_error = np.zeros(self.bins)
        self.bin_variance = np.zeros(self.bins)

    def add(self, truth: NDArray[Any], samples: NDArray[Any], mmse: NDArray[Any]) -> None:
        """One image: truth and MMSE estimate (C, H, W), samples (n, C, H, W)."""
        truth, samples = truth.astype(np.float64), samples.astype(np.float64)
        error = np.square(truth - samples.mean(0))
        variance = samples.var(0, ddof=1)
        self.pixels += truth.size
        self.squared_error += float(error.sum())
        self.variance += float(variance.sum())
        self.sample_error += float(np.square(samples - truth).sum()) / self.n
        self.mmse_error += float(np.square(mmse.astype(np.float64) - truth).sum())
        self.ranks += np.bincount((samples < truth).sum(0).ravel(), minlength=self.n + 1)
        self._add_to_bins(truth, samples)

    def _add_to_bins(self, truth: Array, samples: Array) -> None:
        """Sort pixels by the spread of one half of the samples, judge them by the other half.

        With one half for both, a spread that is small by chance would look too small.
        """
        half = self.n // 2
        sorting, judging = (samples[:half], samples[half:]) if half >= 2 else (samples, samples)
        error = np.square(truth - judging.mean(0)).ravel() / (1 + 1 / len(judging))
        variance = judging.var(0, ddof=1).ravel()
        edges = 2 * np.log(np.geomspace(self.low, self.high, self.bins + 1)[1:-1])
        spread = np.maximum(sorting.var(0, ddof=1).ravel(), 1e-300)
        which = np.searchsorted(edges, np.log(spread))
        self.bin_count += np.bincount(which, minlength=self.bins)
        self.bin_error += np.bincount(which, weights=error, minlength=self.bins)
        self.bin_variance += np.bincount(which, weights=variance, minlength=self.bins)

    @property
    def ratio(self) -> float:
        """error²/variance = mean (x − x̄)² / ((1 + 1/n) mean s²): 1 is right, > 1 too narrow.

        Infinite for samples that do not differ at all.
        """
        if self.variance == 0:
            return math.inf
        return self.squared_error / ((1 + 1 / self.n) * self.variance)

    @property
    def psnr_drop(self) -> float:
        """How many dB a sample lies below the MMSE estimate: 10 log₁₀ 2 = 3.01 is right."""
        return float(10 * np.log10(self.sample_error / self.mmse_error))

    def coverage(self) -> list[tuple[float, float]]:
        """(promised, found) for the central intervals that leave out k samples at each end.

        The interval from the k-th lowest to the k-th highest of n samples holds the truth with
        probability (n + 1 − 2k)/(n + 1), whatever the posterior.
        """
        total, out = self.ranks.sum(), []
        for k in range(self.n // 2, 0, -1):
            found = self.ranks[k : self.n + 1 - k].sum() / total
            out.append(((self.n + 1 - 2 * k) / (self.n + 1), float(found)))
        return out

    def reliability(self, least: float = 0.002) -> list[tuple[float, float, float]]:
        """(predicted error, found error, share of pixels) by class of predicted sd.

        Both are root-mean-squares; the error found is that of the mean of n samples, freed of
        the part that n being finite adds. Classes with less than ``least`` of the pixels are
        left out.
        """
        out = []
        for count, error, variance in zip(
            self.bin_count, self.bin_error, self.bin_variance, strict=True
        ):
            if count >= max(1, least * self.pixels):
                predicted, found = np.sqrt(variance / count), np.sqrt(error / count)
                out.append((float(predicted), float(found), float(count / self.pixels)))
        return out
