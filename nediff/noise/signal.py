"""Does the noise grow with the signal? var(y) = a E[y] + b, as of photons and read-out.

Blocks are sorted by their mean into classes; in each, the noise is measured in the flattest
blocks, and a line is drawn through variance against mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from nediff.data import IntensityRange, Measurements, PhotonNoise, photon_noise
from nediff.errors import NediffError
from nediff.noise.blocks import Blocks, Floats, gather_blocks
from nediff.noise.floor import Measure, white_variance

CLASSES = 12
LEAST_BLOCKS = 400
"""In a class: fewer have no flat ones among them."""
LEAST_CLASSES = 4
SIGNIFICANCE = 1e-4
MATERIAL = 0.25
"""A variance that changes by less than this share over the data may as well be constant."""
_FROM_THE_ENDS = 3.0  # standard deviations; nearer, clipping narrows the noise
_SUREST = 0.01  # no class is trusted to better than this share of its variance
_HUBER = 1.5  # residuals beyond so many standard errors count less
_ROUNDS = 10
_SURELY = 3.0  # standard errors


@dataclass(frozen=True)
class PoissonGaussian:
    """var(y) = gain · E[y] + constant, in the units of the data.

    For a sensor with read-out noise and an offset, constant = read² − gain · offset.
    ``p_value``: of a line this steep if the noise did not depend on the signal. ``dependent``:
    that is less than SIGNIFICANCE and the variance changes by more than MATERIAL over the data.
    ``means``, ``variances``, ``errors``: the classes the line was drawn through, which may be too
    few to draw one: then gain is 0, its error infinite.
    """

    gain: float
    constant: float
    gain_error: float
    constant_error: float
    p_value: float
    change: float
    """Of the variance from the darkest to the brightest class, over its mean."""
    means: tuple[float, ...]
    variances: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def dependent(self) -> bool:
        """Whether the noise must be taken to depend on the signal."""
        return self.p_value < SIGNIFICANCE and abs(self.change) > MATERIAL

    @property
    def grows(self) -> bool:
        """Whether it can be the noise of photons."""
        return self.dependent and self.gain > 0

    def photons(self, offset: float | None = None) -> PhotonNoise:
        """The noise of an instrument with this line; the ``offset`` where it is known.

        A read noise whose square comes out negative by no more than the errors explain is 0.
        """
        if offset is None:
            return photon_noise(self.gain, self.constant)
        dark = self.gain * offset + self.constant
        error = math.hypot(self.gain_error * offset, self.constant_error)
        if dark < -_SURELY * error:
            raise NediffError(
                f"By these images the variance without light, at the offset {offset:g}, would be "
                f"{dark:.3g} ± {error:.2g}, which is negative; check the offset, or leave it out."
            )
        return PhotonNoise(self.gain, math.sqrt(max(dark, 0.0)), offset)

    def variance(self, mean: Floats) -> Floats:
        """a E[y] + b, at least a thousandth of that at the middle of the data."""
        middle = self.gain * float(np.mean(self.means)) + self.constant if self.means else 0.0
        values: Floats = np.maximum(self.gain * mean + self.constant, 1e-3 * abs(middle) + 1e-30)
        return values


def estimate_signal_dependence(measurements: Measurements, seed: int = 0) -> PoissonGaussian:
    """Gain and constant of the noise, with standard errors, in the units of the data."""
    return signal_of(gather_blocks(measurements, seed), measurements.range)


def signal_of(
    blocks: Blocks, range: IntensityRange, measure: Measure = white_variance
) -> PoissonGaussian:
    """The same of blocks already gathered.

    The flattest blocks of a class are also its darkest if the noise grows with the signal. So the
    line is drawn twice, the second time with energies in units of the first line's variance.
    """
    first = _through(*_classes(blocks, np.ones(len(blocks)), measure), range)
    if not (first.p_value < SIGNIFICANCE):
        return first
    expected = first.variance(range.from_unit(blocks.mean)) / range.scale**2
    return _through(*_classes(blocks, expected, measure), range)


def _through(
    means: Floats, variances: Floats, errors: Floats, range: IntensityRange
) -> PoissonGaussian:
    """The line through the classes, from unit range to the units of the data."""
    x, y, error = range.from_unit(means), variances * range.scale**2, errors * range.scale**2
    classes = [tuple(float(v) for v in row) for row in (x, y, error)]
    if len(x) < LEAST_CLASSES:
        level = float(y.mean()) if len(y) else 0.0
        return PoissonGaussian(0.0, level, np.inf, np.inf, 1.0, 0.0, *classes)
    line, covariance = _robust_line(x, y, error)
    gain, constant = (float(v) for v in line)
    gain_error, constant_error = (float(v) for v in np.sqrt(np.diag(covariance)))
    p_value = 2 * float(student.sf(abs(gain) / gain_error, df=len(x) - 2))
    change = gain * float(np.ptp(x)) / float(y.mean())
    return PoissonGaussian(gain, constant, gain_error, constant_error, p_value, change, *classes)


def _classes(blocks: Blocks, expected: Floats, measure: Measure) -> tuple[Floats, Floats, Floats]:
    """Mean, noise variance and its error in classes of equal width of the mean.

    ``expected`` (n,): the energies are measured in units of it, and its mean is put back.
    """
    low, high = np.quantile(blocks.mean, (0.005, 0.995))
    number = np.floor((blocks.mean - low) / max(high - low, 1e-12) * CLASSES)
    rows = []
    for k in range(CLASSES):
        inside = blocks.select(number == k)
        if len(inside) < LEAST_BLOCKS:
            continue
        found, unit = measure(inside.divided(expected[number == k])), expected[number == k].mean()
        mean, variance = float(inside.mean.mean()), found.value * unit
        room = min(mean - blocks.ends[0], blocks.ends[1] - mean)
        if variance > 0 and room > _FROM_THE_ENDS * np.sqrt(variance):
            rows.append((mean, variance, max(found.total_error * unit, _SUREST * variance)))
    table = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _robust_line(x: Floats, y: Floats, error: Floats) -> tuple[Floats, Floats]:
    """Slope and intercept of y against x by Huber's weights, and their covariance.

    The covariance is widened where the points lie off the line by more than their errors.
    """
    design = np.stack([x, np.ones_like(x)], axis=1)
    weight = 1 / error**2
    line = np.zeros(2)
    for _ in range(_ROUNDS):
        inverse = np.linalg.pinv(design.T @ (weight[:, None] * design), hermitian=True)
        line = inverse @ design.T @ (weight * y)
        off = np.abs(y - design @ line) / error
        weight = np.minimum(1, _HUBER / np.maximum(off, 1e-12)) / error**2
    excess = float((weight * np.square(y - design @ line)).sum()) / (len(x) - 2)
    return line, inverse * max(1.0, excess)
