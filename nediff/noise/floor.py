"""The noise under the image: spectra of the flattest blocks, and what of them is white.

The blocks with the least energy in some coefficients S are taken as flat, and the mean energy of
*other* coefficients T is measured in them. For white Gaussian noise S and T are independent, so
choosing by S does not bias the noise in T; texture, which goes through both, is left behind. What
remains of it falls with frequency, and is removed by fitting

    V(f) = σ² + c f^(−p),    c ≥ 0

to the mean energies V over the frequencies f.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nediff.noise.blocks import GROUPS, SIDE, Blocks, Floats

FLAT_SHARES = (0.02, 0.05, 0.1, 0.2)
"""Of the blocks, the flattest are looked at: the first share, and at least LEAST_FLAT; the next
ones only where they agree with it and are surer."""
LEAST_FLAT = 64
EXPONENT = 3.0
"""p: between 2 (images as such) and 4 (the smoothest places of them)."""
DOUBTFUL_EXPONENTS = (2.0, 4.0)

_ROWS, _COLUMNS = (axis.reshape(-1) for axis in np.indices((SIDE, SIDE)))
Mask = NDArray[np.bool_]
FREQUENCY: Floats = np.hypot(_ROWS, _COLUMNS)
"""(64,): 0 for the mean, 7√2 for the finest checkerboard."""
_EVEN = (_ROWS + _COLUMNS) % 2 == 0
_LOWEST = 4.0  # frequencies below are mostly the image's, even in flat blocks
_ROUNDS = 4  # of reweighting


class Spectrum(Protocol):
    """What the noise (and what is left of texture) has at each of the 64 coefficients."""

    @property
    def mean(self) -> Floats:
        """(64,), zero where nothing was measured."""

    @property
    def left_out(self) -> Floats:
        """(groups, 64): the same without each group in turn."""


@dataclass(frozen=True)
class FloorSpectrum:
    """Mean energies of flat blocks; ``energy`` and ``count`` (GROUPS, 64) are sums by group."""

    energy: Floats
    count: Floats

    @property
    def mean(self) -> Floats:
        """(64,), zero where nothing was measured."""
        return self._ratio(self.energy.sum(axis=0), self.count.sum(axis=0))

    @property
    def left_out(self) -> Floats:
        """(groups, 64): the same without each group in turn; groups without blocks are skipped."""
        there = self.count.sum(axis=1) > 0
        energy = self.energy.sum(axis=0) - self.energy[there]
        return self._ratio(energy, self.count.sum(axis=0) - self.count[there])

    @staticmethod
    def _ratio(energy: Floats, count: Floats) -> Floats:
        ratio: Floats = energy / np.maximum(count, 1)
        return ratio


def from_frequency(lowest: float) -> Mask:
    """(64,): coefficients of at least this frequency that shading does not reach.

    A slope across the block has coefficients of all frequencies u, but only with v = 0.
    """
    return (lowest <= FREQUENCY) & (np.minimum(_ROWS, _COLUMNS) >= 1)


def flattest(
    blocks: Blocks, lowest: float = _LOWEST, share: float = FLAT_SHARES[0]
) -> FloorSpectrum:
    """The spectrum, for frequencies from ``lowest``, of the flattest ``share`` of the blocks.

    Coefficients of even u + v are measured in the blocks chosen by all others, and vice versa.
    """
    energy, count = np.zeros((2, GROUPS, SIDE * SIDE))
    for measured, flat in flat_blocks(blocks.energy, lowest, share):
        group = blocks.group[flat]
        for column in np.flatnonzero(measured):
            values = blocks.energy[flat, column].astype(np.float64)
            energy[:, column] = np.bincount(group, values, minlength=GROUPS)
            count[:, column] = np.bincount(group, minlength=GROUPS)
    return FloorSpectrum(energy, count)


def flat_blocks(
    energy: NDArray[np.float32], lowest: float, share: float
) -> Iterator[tuple[Mask, NDArray[np.intp]]]:
    """Coefficients (64,) to measure and the blocks to measure them in, chosen by all others."""
    number = min(len(energy), max(LEAST_FLAT, round(share * len(energy))))
    for parity in (_EVEN, ~_EVEN):
        measured = parity & from_frequency(lowest)
        told_by = ~measured & (FREQUENCY > 0)
        texture = energy @ told_by.astype(np.float32)
        yield measured, np.argpartition(texture, number - 1)[:number]


def white_part(spectrum: Floats, exponent: float = EXPONENT) -> Floats:
    """σ² of V(f) = σ² + c f^(−p) with c ≥ 0 and σ² ≥ 0, for spectra (..., 64) → (...).

    Least squares with weights 1/V², as suits mean energies, whose spread goes with V.
    """
    fitted = from_frequency(_LOWEST)
    values = spectrum[..., fitted]
    texture = (FREQUENCY[fitted] / SIDE) ** -exponent
    weight = 1 / np.maximum(values.mean(axis=-1, keepdims=True), 1e-30) ** 2 + 0 * values
    level = np.zeros(values.shape[:-1])
    for _ in range(_ROUNDS):
        level, slope = _line(texture, values, weight)
        model = level[..., None] + slope[..., None] * texture
        weight = 1 / np.maximum(model, 1e-30) ** 2
    return level


def _line(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Weighted least squares of y = a + c x with a, c ≥ 0; y and weight (..., n)."""
    total = weight.sum(axis=-1)
    x_mean, y_mean = (weight * x).sum(axis=-1) / total, (weight * y).sum(axis=-1) / total
    spread = (weight * np.square(x - x_mean[..., None])).sum(axis=-1)
    both = (weight * (x - x_mean[..., None]) * (y - y_mean[..., None])).sum(axis=-1)
    slope = np.maximum(both / spread, 0)
    level = y_mean - slope * x_mean
    through_zero = (weight * x * y).sum(axis=-1) / (weight * x * x).sum(axis=-1)
    slope = np.where(level < 0, through_zero, slope)
    return np.maximum(level, 0), slope


@dataclass(frozen=True)
class Estimate:
    """A figure, its standard error, and its ``doubt``: how much the model of texture matters.

    The standard error is a jackknife over parts of the data; the doubt is half the difference
    between the answers with p = 2 and p = 4.
    """

    value: float
    error: float
    doubt: float

    @property
    def total_error(self) -> float:
        """Both together."""
        return float(np.hypot(self.error, self.doubt))


Measure = Callable[[Blocks], Estimate]
"""Of the noise variance of blocks: `white_variance`, or `total_variance` of correlated noise."""


def jackknife(left_out: Floats) -> Floats:
    """Standard error of a figure from its values with each of g groups left out, (g, ...)."""
    number = len(left_out)
    if number < 2:
        return np.full(left_out.shape[1:], np.inf)
    error: Floats = np.sqrt((number - 1) * left_out.var(axis=0))
    return error


def white_variance(blocks: Blocks) -> Estimate:
    """σ² of the noise of the blocks."""
    return widest_agreeing(lambda share: flattest(blocks, share=share))


def widest_agreeing(spectrum_of: Callable[[float], Spectrum]) -> Estimate:
    """σ² of the spectra of the flattest shares of some blocks.

    More blocks make it surer but let in more texture: as many as change it by less than its error.
    """
    found = _white_variance(spectrum_of(FLAT_SHARES[0]))
    for share in FLAT_SHARES[1:]:
        wider = _white_variance(spectrum_of(share))
        if abs(wider.value - found.value) > found.error or wider.total_error >= found.total_error:
            break
        found = wider
    return found


def _white_variance(spectrum: Spectrum) -> Estimate:
    low, high = (float(white_part(spectrum.mean, p)) for p in DOUBTFUL_EXPONENTS)
    error = float(jackknife(white_part(spectrum.left_out)))
    return Estimate(float(white_part(spectrum.mean)), error, abs(high - low) / 2)


def as_sigma(variance: Estimate) -> Estimate:
    """σ of an estimate of σ²: errors over 2σ."""
    sigma = float(np.sqrt(variance.value))
    slope = 1 / (2 * sigma) if sigma > 0 else 0.0
    if sigma == 0:  # then the errors of σ² say how large it may be
        return Estimate(0.0, float(np.sqrt(variance.error)), float(np.sqrt(variance.doubt)))
    return Estimate(sigma, variance.error * slope, variance.doubt * slope)
