"""Signal-dependent noise: photons and read noise, made white by a curved intensity map.

y = gain · Poisson((x − offset)/gain) + offset + N(0, read²) in data units, so that
var(y) = gain · x + constant with constant = read² − gain · offset. In photons, u = (y − offset)/
gain and s = read/gain, the generalised Anscombe transform f(u) = 2 √(u + 3/8 + s²) has noise of
standard deviation 1, whatever the signal (down to a few photons).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nediff.data.layout import Array
from nediff.data.ranges import IntensityRange
from nediff.errors import NediffError

Values = NDArray[np.float64]

_TABULATED = 400.0
"""Up to so many photons E[f | λ] is summed over the Poisson law, beyond by its expansion."""
_NODES = 800
_GAUSSIAN = 10.0
"""With read noise of more photons than this, the expansion holds down to no light."""
_SMOOTH = 9.0
"""So many standard deviations of read noise from the kink of f, it is smooth enough."""
_PERCENTILES, _MARGIN = (0.1, 99.9), 0.02
TOO_DARK = 0.05
"""Of the pixels darker than the noise can make them: with more, it is not theirs."""


@dataclass(frozen=True)
class PhotonNoise:
    """Poisson noise of ``gain`` (data units per photon) and Gaussian ``read_noise`` (data units).

    ``offset`` is what the instrument records without light.
    """

    gain: float
    read_noise: float = 0.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gain) and self.gain > 0):
            raise NediffError(
                f"The gain (data units per photon) must be positive, not {self.gain:g}."
            )
        if not (math.isfinite(self.read_noise) and self.read_noise >= 0):
            raise NediffError(f"The read noise must be 0 or more, not {self.read_noise:g}.")
        if not math.isfinite(self.offset):
            raise NediffError(f"The offset must be a finite number, not {self.offset:g}.")

    @property
    def constant(self) -> float:
        """b of var(y) = a E[y] + b."""
        return self.read_noise**2 - self.gain * self.offset

    @property
    def darkest(self) -> float:
        """Photons and read noise make hardly any pixel darker than this."""
        return self.offset - 0.375 * self.gain - 5 * self.read_noise

    @property
    def s(self) -> float:
        """The read noise in photons."""
        return self.read_noise / self.gain

    def photons(self, values: Array) -> Values:
        """Data units → photons, which may be negative in what was read."""
        return (np.asarray(values, dtype=np.float64) - self.offset) / self.gain

    def stabilise(self, values: Array) -> Values:
        """f of a measurement: noise of standard deviation 1. Below the root's domain it is 0."""
        return 2 * np.sqrt(np.maximum(self.photons(values) + 0.375 + self.s**2, 0.0))

    def unstabilise(self, values: Array) -> Values:
        """f⁻¹: for measurements only. It is biased for means, which `mean_inverse` is for."""
        photons = np.square(np.maximum(values, 0.0) / 2) - 0.375 - self.s**2
        return photons * self.gain + self.offset

    def stabilised_mean(self, x: Array) -> Values:
        """E[f(y) | x], increasing in x; x below the offset counts as no light."""
        return _table(self.s).mean(np.maximum(self.photons(x), 0.0))

    def mean_inverse(self, means: Array) -> Values:
        """x from E[f(y) | x]: the exact unbiased inverse; no light for less than that gives."""
        photons = _table(self.s).inverse(np.asarray(means, dtype=np.float64))
        return photons * self.gain + self.offset


def photon_noise(gain: float, constant: float, offset: float | None = None) -> PhotonNoise:
    """The noise with var(y) = gain · E[y] + constant, as estimators report it.

    f depends on these two alone. How much of ``constant`` is read noise and how much offset
    matters only for the inverse below a few photons; where the ``offset`` is not known, it is 0
    or, if ``constant`` is negative, the one at which there is no read noise.
    """
    if offset is None:
        offset = max(0.0, -constant / gain) if gain > 0 else 0.0
    variance = constant + gain * offset
    if variance < -1e-9 * abs(constant):
        raise NediffError(
            f"With the offset {offset:g} the variance without light would be negative "
            f"({variance:g}); check the gain, the offset and the read noise."
        )
    return PhotonNoise(gain, math.sqrt(max(variance, 0.0)), offset)


@dataclass(frozen=True)
class StabilisedRange(IntensityRange):
    """Data units → f → unit range: ``low`` becomes 0 and ``high`` 1, white noise in between.

    A restored value is an estimate (or a sample) of E[f(y) | x], so `from_unit` is the inverse
    of that. With ``means`` the data are clean, and `to_unit` is E[f(y) | x] itself.
    """

    noise: PhotonNoise
    means: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.span > 0:
            raise NediffError(
                f"The intensity range {self.low:g} to {self.high:g} lies below the signal without "
                f"light, {self.noise.offset:g}; check the offset and the range."
            )

    @property
    def sigma(self) -> float:
        """The noise in unit range, everywhere the same."""
        return 1 / self.span

    @property
    def span(self) -> float:
        """f(high) − f(low), in standard deviations of the noise."""
        low, high = self.noise.stabilise(np.array([self.low, self.high]))
        return float(high - low)

    def transform(self, values: Array) -> Values:
        """f, or E[f | x] of clean values."""
        noise = self.noise
        return noise.stabilised_mean(values) if self.means else noise.stabilise(values)

    def to_unit(self, values: Array) -> NDArray[np.float32]:
        """Measured (or clean) values → unit range."""
        start = float(self.noise.stabilise(np.array(self.low)))
        return ((self.transform(values) - start) / self.span).astype(np.float32)

    def from_unit(self, values: Array) -> NDArray[np.float64]:
        """Restored values or samples → data units, each without the bias of f."""
        start = float(self.noise.stabilise(np.array(self.low)))
        return self.noise.mean_inverse(np.asarray(values, np.float64) * self.span + start)

    def too_dark(self, measured: Array) -> float:
        """The share of measured values, in unit range, that are darker than noise makes them.

        They have all become the darkest value of the transform, and nothing brings them back.
        """
        start = float(self.noise.stabilise(np.array(self.low)))
        darkest = float(self.noise.stabilise(np.array(self.noise.darkest)))
        values = np.asarray(measured, np.float64) * self.span + start
        return float(np.mean(values <= darkest + 1e-4))

    def straight(self, values: Array) -> NDArray[np.float32]:
        """Restored values in unit range → fractions of low to high in data units."""
        return ((self.from_unit(values) - self.low) / self.scale).astype(np.float32)

    def of_means(self) -> StabilisedRange:
        """The same map for clean images."""
        return replace(self, means=True)

    def of_measurements(self) -> StabilisedRange:
        """The same map for noisy images."""
        return replace(self, means=False)


def choose_stabilised(
    noise: PhotonNoise, sample: Array, given: tuple[float, float] | None = None
) -> tuple[StabilisedRange, str]:
    """The range of data whose stabilised values are ``sample``, and one line on how it was chosen.

    ``given`` is (low, high) in data units.
    """
    by = f"stabilised for a gain of {noise.gain:g}, read noise {noise.read_noise:g}, offset "
    by += f"{noise.offset:g}"
    if given is not None:
        return StabilisedRange(float(given[0]), float(given[1]), noise), f"as given, {by}"
    bottom, top = (float(q) for q in np.percentile(sample, _PERCENTILES))
    if bottom == top:
        raise NediffError(
            "Stabilised, nearly all pixels of the data have the same value; there is nothing to "
            "learn. Are the gain and the offset in the units of the pixels?"
        )
    margin = _MARGIN * (top - bottom)
    low, high = noise.unstabilise(np.array([max(bottom - margin, 0.0), top + margin]))
    how = f"from the {_PERCENTILES[0]:g} and {_PERCENTILES[1]:g} percentiles, {by}"
    return StabilisedRange(float(low), float(high), noise), how


class Watch:
    """Counts, while values pass on to ``then``, those that no stabilisation can make right."""

    def __init__(self, noise: PhotonNoise, then: Callable[[Array], Array]) -> None:
        self.noise, self.then = noise, then
        self.values, self.below, self.top, self.at_top = 0, 0, -math.inf, 0

    def __call__(self, values: Array) -> Array:
        """``then(values)``."""
        self.values += values.size
        self.below += int((values < self.noise.darkest).sum())
        top = float(values.max())
        if top > self.top:
            self.top, self.at_top = top, 0
        if top == self.top:
            self.at_top += int((values == top).sum())
        return self.then(values)

    def warnings(self) -> list[str]:
        """What the user should know of them."""
        found = []
        if self.below > 1e-3 * self.values:
            found.append(
                f"{self.below / self.values:.1%} of the pixels are darker than photons and read "
                "noise can make them; are offset and read noise right?"
            )
        if self.at_top > 1e-3 * self.values:
            found.append(
                f"{self.at_top / self.values:.1%} of the pixels have the largest value, "
                f"{self.top:g}; where these are saturated their noise is not what was said, and "
                "restored values and error bars are too low."
            )
        return found


# --- E[f | λ] and its inverse, in photons ---------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    """E[f(u) | λ] at nodes λ, and its slope; beyond the last node, an expansion in 1/λ."""

    s: float
    photons: Values
    means: Values
    slopes: Values

    def mean(self, photons: Values) -> Values:
        """E[f | λ]."""
        from scipy.interpolate import CubicHermiteSpline

        spline = CubicHermiteSpline(self.photons, self.means, self.slopes)
        inside = spline(np.minimum(photons, self.photons[-1]))
        return np.where(photons <= self.photons[-1], inside, _expansion(photons, self.s)[0])

    def inverse(self, means: Values) -> Values:
        """λ, 0 at least."""
        from scipy.interpolate import CubicHermiteSpline

        spline = CubicHermiteSpline(self.means, self.photons, 1 / self.slopes)
        inside = spline(np.clip(means, self.means[0], self.means[-1]))
        beyond = np.maximum(means, self.means[-1])
        photons = np.square(beyond / 2) - 0.125 - self.s**2
        for _ in range(3):  # Newton, from an inverse that is right to 1/λ
            value, slope = _expansion(photons, self.s)
            photons = photons - (value - beyond) / slope
        out: Values = np.maximum(np.where(means <= self.means[-1], inside, photons), 0.0)
        return out


@lru_cache(maxsize=8)
def _table(s: float) -> _Table:
    """For read noise of s photons. Nodes are dense where few photons bend the curve."""
    last = _TABULATED + 25 * min(s, _GAUSSIAN) ** 2
    photons = np.linspace(0.0, math.sqrt(last), _NODES) ** 2
    if s > _GAUSSIAN:  # the kink is far away even without light
        before, after = (_expansion(photons + h, s)[0] for h in (-1.0, 1.0))
        return _Table(s, photons, _expansion(photons, s)[0], (after - before) / 2)
    counts = np.arange(float(int(last + 12 * math.sqrt(last) + 30)))
    smoothed = _smoothed_root(counts + 0.375 + s**2, s)
    weights = _poisson(counts[:-1], photons[:, None])
    means, slopes = weights @ smoothed[:-1], weights @ np.diff(smoothed)
    return _Table(s, photons, means, slopes)


def _poisson(counts: Values, photons: Values) -> Values:
    """The probabilities of so many counts."""
    from scipy.special import gammaln, xlogy

    out: Values = np.exp(xlogy(counts, photons) - photons - gammaln(counts + 1.0))
    return out


def _smoothed_root(w: Values, s: float) -> Values:
    """E[2 √max(w + s n, 0)] over n ~ N(0, 1), for each w ≥ s² + 3/8."""
    if s == 0:
        return 2 * np.sqrt(w)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    far: Values = 2 * np.sqrt(np.maximum(w[:, None] + s * nodes, 0)) @ (weights / weights.sum())
    near = w < _SMOOTH * s
    if near.any():
        # with t = √(w + s n) the kink is gone: ∫₀^∞ 4 t²/s φ((t² − w)/s) dt, an even integrand
        t = np.linspace(0.0, math.sqrt(2 * _SMOOTH * s), 4001)
        z = (np.square(t) - w[near][:, None]) / s
        integrand = 4 * np.square(t) / s * np.exp(-np.square(z) / 2) / math.sqrt(2 * math.pi)
        far[near] = integrand.sum(axis=1) * (t[1] - t[0])
    return far


def _expansion(photons: Values, s: float) -> tuple[Values, Values]:
    """(E[f | λ], its slope) for many photons, by the moments of u about M = λ + 3/8 + s²."""
    variance = photons + s**2
    m = photons + 0.375 + s**2
    fourth = 3 * np.square(variance) + photons
    bend = 1 - variance / (8 * m**2) + photons / (16 * m**3) - 5 * fourth / (128 * m**4)
    return 2 * np.sqrt(m) * bend, 1 / np.sqrt(m)
