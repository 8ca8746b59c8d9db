"""How strong the noise is, where nobody says that it is white or the same everywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nediff.data import IntensityRange, Measurements
from nediff.noise.blocks import Blocks, Floats, gather_blocks
from nediff.noise.floor import Estimate, Measure, as_sigma, white_variance
from nediff.noise.signal import PoissonGaussian, signal_of
from nediff.noise.whiteness import Whiteness, total_variance, whiteness_of


@dataclass(frozen=True)
class EvenNoise:
    """The noise with what the signal explains of it divided out.

    ``sigma`` in unit range: all of correlated noise, and of noise that depends on the signal the
    root of its mean variance over the data. ``variance`` is that of each block, ``blocks`` are
    those in which it is even, and ``measure`` is how it is told from them.
    """

    sigma: Estimate
    signal: PoissonGaussian
    whiteness: Whiteness
    variance: Floats
    blocks: Blocks
    measure: Measure


def even_out(blocks: Blocks, range: IntensityRange) -> EvenNoise:
    """What the blocks tell; σ of the flattest would be that of the darkest, if it grows."""
    whiteness = whiteness_of(blocks)
    measure = white_variance if whiteness.white else total_variance
    signal = signal_of(blocks, range, measure)
    sigma = as_sigma(measure(blocks))
    if not signal.dependent:
        variance = np.full(len(blocks), sigma.value**2)
        return EvenNoise(sigma, signal, whiteness, variance, blocks, measure)
    variance = signal.variance(range.from_unit(blocks.mean)) / range.scale**2
    blocks = blocks.divided(variance / variance.mean())
    even = as_sigma(measure(blocks))
    sigma = Estimate(math.sqrt(variance.mean()), even.error, even.doubt)
    return EvenNoise(sigma, signal, whiteness_of(blocks), variance, blocks, measure)


def typical_level(measurements: Measurements, seed: int = 0) -> EvenNoise:
    """The same of images; the seed chooses those of a big set that are looked at."""
    return even_out(gather_blocks(measurements, seed), measurements.range)
