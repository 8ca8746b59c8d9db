"""From a denoiser to posterior samples (METHOD.md §4)."""

from nediff.sampling.posterior import PAPER_SETTINGS, SamplerSettings, sample_posterior
from nediff.sampling.schedule import noise_levels
from nediff.sampling.solvers import SOLVERS, solve

__all__ = [
    "PAPER_SETTINGS",
    "SOLVERS",
    "SamplerSettings",
    "noise_levels",
    "sample_posterior",
    "solve",
]
