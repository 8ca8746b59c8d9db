"""Is the noise of neighbouring pixels independent? Its autocorrelation, from flat blocks.

For stationary noise with autocovariance r the energies of the cosine coefficients are linear in r:

    V(u, v) = Σ_(i, j) r(i, j) a_u(i) a_v(j),    a_u(i) = Σ_k φ_u(k) φ_u(k + i)   (both signs of i)

so r, together with what texture is left, c f^(−p), follows from the spectrum of flat blocks by
least squares. The two diagonal directions of a lag cannot be told apart: r is their mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.fft import dct, fft2, ifft2

from nediff.data import Measurements
from nediff.noise.blocks import SIDE, Blocks, Floats, gather_blocks
from nediff.noise.floor import (
    DOUBTFUL_EXPONENTS,
    EXPONENT,
    FLAT_SHARES,
    FREQUENCY,
    Estimate,
    FloorSpectrum,
    flattest,
    from_frequency,
    jackknife,
)

LAGS = 3
"""Up to so many pixels in each direction."""
MATERIAL = 0.08
"""Correlations below do no harm."""
STRONG = 0.25
"""As much in the fit with all lags, which is less sure."""
SIGNIFICANT = 4.0
"""Standard errors; of three lags a false alarm in 5,000, were the errors not estimates too."""
_LOWEST = 2.0  # frequencies below are the image's


@dataclass(frozen=True)
class Whiteness:
    """Autocorrelation (4, 4) of lags 0 to 3 down and across, 1 at (0, 0), and its errors.

    ``errors`` hold both the spread between parts of the data and the doubt about texture.
    ``nearest`` and ``nearest_errors`` (2, 2): the same if lags of 2 and 3 are taken as zero. So
    few unknowns are far surer of weak correlations; strong ones reach further, and show in the
    other.
    ``variance`` is r(0, 0), the variance of the noise whatever its correlation (unit range).
    """

    correlation: Floats
    errors: Floats
    nearest: Floats
    nearest_errors: Floats
    variance: float

    @property
    def known(self) -> bool:
        """Whether the noise stands out of the texture, so that its correlation can be told."""
        errors = max(self.nearest_errors[0, 1], self.nearest_errors[1, 0])
        return not self.white or bool(errors <= STRONG)

    @property
    def white(self) -> bool:
        """No lag has a correlation that is both material and significant."""
        return not (self._far or _beyond(self.nearest, self.nearest_errors, MATERIAL))

    @property
    def _far(self) -> bool:
        """Whether the fit with all lags says by itself that the noise is correlated."""
        return _beyond(self.correlation, self.errors, STRONG)

    @property
    def verdict(self) -> str:
        """In a word."""
        if not self.known:
            return "unknown"
        return "white" if self.white else "correlated"

    @property
    def neighbours(self) -> tuple[float, float]:
        """The correlation of neighbours across and down."""
        found = self.told
        return float(found[0, 1]), float(found[1, 0])

    @property
    def told(self) -> Floats:
        """(4, 4): by the fit that the verdict is by; of the surer one, zero beyond lag 1."""
        if self._far:
            return self.correlation
        return np.pad(self.nearest, (0, LAGS - 1))

    @property
    def kernel(self) -> Floats:
        """(7, 7), of squares that sum to one: white noise convolved with it is so correlated.

        Only |its Fourier transform| can be known; this is the symmetric one.
        """
        lags = np.abs(np.fft.fftfreq(4 * LAGS, 1 / (4 * LAGS))).astype(int)
        inside = lags <= LAGS
        wide = np.zeros((4 * LAGS, 4 * LAGS))
        wide[np.ix_(inside, inside)] = self.told[np.ix_(lags[inside], lags[inside])]
        power = np.maximum(fft2(wide).real, 0)
        kernel = np.roll(ifft2(np.sqrt(power)).real, (LAGS, LAGS), axis=(0, 1))
        cut = kernel[: 2 * LAGS + 1, : 2 * LAGS + 1]
        scaled: Floats = cut / np.sqrt(np.square(cut).sum())
        return scaled


def _beyond(correlation: Floats, errors: Floats, material: float) -> bool:
    found = np.nan_to_num(np.abs(correlation))  # what cannot be told is not beyond anything
    found[0, 0] = 0
    return bool(((found > material) & (found > SIGNIFICANT * errors)).any())


def estimate_whiteness(measurements: Measurements, seed: int = 0) -> Whiteness:
    """The autocorrelation of the noise."""
    return whiteness_of(gather_blocks(measurements, seed))


def whiteness_of(blocks: Blocks) -> Whiteness:
    """The same of blocks already gathered."""
    few, more = (flattest(blocks, _LOWEST, share) for share in FLAT_SHARES[:2])
    variance = total_variance(blocks).value
    return Whiteness(*_correlation(few, more, LAGS), *_correlation(few, more, 1), variance)


def _correlation(few: FloorSpectrum, more: FloorSpectrum, lags: int) -> tuple[Floats, Floats]:
    """Autocorrelation and errors, (lags + 1, lags + 1), from the flattest blocks."""
    found = _normalised(few.mean, EXPONENT, lags)
    low, high = (_normalised(few.mean, p, lags) for p in DOUBTFUL_EXPONENTS)
    # noise is the same in all flat blocks, what is left of texture is not
    texture = found - _normalised(more.mean, EXPONENT, lags)
    spread = jackknife(np.stack([_normalised(row, EXPONENT, lags) for row in few.left_out]))
    errors: Floats = np.sqrt(spread**2 + np.square((high - low) / 2) + texture**2)
    errors[~np.isfinite(errors)] = np.inf
    return found, errors


def total_variance(blocks: Blocks) -> Estimate:
    """The variance of the noise of the blocks, correlated or not: r(0, 0)."""
    spectrum = flattest(blocks, _LOWEST)
    value = _autocovariance(spectrum.mean, EXPONENT)[0, 0]
    low, high = (_autocovariance(spectrum.mean, p)[0, 0] for p in DOUBTFUL_EXPONENTS)
    left_out = np.stack([_autocovariance(row, EXPONENT)[0, 0] for row in spectrum.left_out])
    error = float(jackknife(left_out))
    return Estimate(float(max(value, 0)), error, float(abs(high - low)) / 2)


def _normalised(spectrum: Floats, exponent: float, lags: int) -> Floats:
    """NaN where no variance is left for the noise: all may be texture."""
    covariance = _autocovariance(spectrum, exponent, lags)
    if not covariance[0, 0] > 0:
        return np.full_like(covariance, np.nan)
    correlation: Floats = covariance / covariance[0, 0]
    return correlation


def _responses() -> Floats:
    """a_u(i): (8, LAGS + 1)."""
    basis = dct(np.eye(SIDE), axis=0, norm="ortho")
    columns = [(basis * basis).sum(axis=1)]
    columns += [2 * (basis[:, i:] * basis[:, :-i]).sum(axis=1) for i in range(1, LAGS + 1)]
    return np.stack(columns, axis=1)


def _autocovariance(spectrum: Floats, exponent: float, lags: int = LAGS) -> Floats:
    """r (lags + 1, lags + 1) by least squares with weights 1/V², texture c ≥ 0."""
    fitted = from_frequency(_LOWEST)
    values = spectrum[fitted]
    one = _responses()[:, : lags + 1]
    design = np.einsum("ui,vj->uvij", one, one).reshape(SIDE * SIDE, -1)[fitted]
    texture = (FREQUENCY[fitted, None] / SIDE) ** -exponent
    weight = 1 / np.maximum(values, 1e-6 * values.mean() + 1e-30)[:, None]
    full = np.concatenate([design, texture], axis=1)
    found = np.linalg.lstsq(full * weight, values * weight[:, 0], rcond=None)[0]
    if found[-1] < 0:
        found = np.linalg.lstsq(design * weight, values * weight[:, 0], rcond=None)[0]
    covariance: Floats = found[: (lags + 1) ** 2].reshape(lags + 1, lags + 1)
    return covariance
