"""What noisy images alone say about their noise."""

from __future__ import annotations

from nediff.noise.blocks import Blocks, gather_blocks
from nediff.noise.colour import (
    ColouredNoise,
    estimate_colour,
    level_by_restoring,
    levels_by_colour,
    middle_of,
)
from nediff.noise.floor import Estimate
from nediff.noise.level import NoiseLevel, estimate_level
from nediff.noise.signal import PoissonGaussian, estimate_signal_dependence
from nediff.noise.typical import EvenNoise, typical_level
from nediff.noise.variation import Variation, estimate_by_channel, estimate_by_position
from nediff.noise.whiteness import Whiteness, estimate_whiteness

__all__ = [
    "Blocks",
    "ColouredNoise",
    "Estimate",
    "EvenNoise",
    "NoiseLevel",
    "PoissonGaussian",
    "Variation",
    "Whiteness",
    "estimate_by_channel",
    "estimate_by_position",
    "estimate_colour",
    "estimate_level",
    "estimate_signal_dependence",
    "estimate_whiteness",
    "gather_blocks",
    "level_by_restoring",
    "levels_by_colour",
    "middle_of",
    "typical_level",
]
