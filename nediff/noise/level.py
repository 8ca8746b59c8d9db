"""The strength of white noise, from noisy images alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nediff.data import Measurements
from nediff.noise.blocks import Blocks, gather_blocks
from nediff.noise.floor import Estimate, as_sigma, white_variance


@dataclass(frozen=True)
class NoiseLevel:
    """σ in unit range: of all channels, and of each; ``blocks`` is how many were looked at."""

    sigma: Estimate
    channels: tuple[Estimate, ...]
    blocks: int
    clipped: float
    """The share of blocks with values at the ends of the data, which tell nothing."""


def estimate_level(measurements: Measurements, seed: int = 0) -> NoiseLevel:
    """The standard deviation of white Gaussian noise, y = x + σ η.

    From the flattest blocks of the images, see `floor`. The seed chooses the images of a big set.
    """
    return level_of(gather_blocks(measurements, seed))


def level_of(blocks: Blocks) -> NoiseLevel:
    """The same of blocks already gathered."""
    present = np.unique(blocks.channel)
    channels = [as_sigma(white_variance(blocks.select(blocks.channel == c))) for c in present]
    whole = channels[0] if len(channels) == 1 else as_sigma(white_variance(blocks))
    return NoiseLevel(whole, tuple(channels), len(blocks), blocks.clipped)
