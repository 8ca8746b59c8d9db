"""A small network that comes with the package, for the first minute.

It was trained on noisy photographs alone (`python -m benchmarks.pretrained`); README.md beside the
weights says on which, how good it is, and what it is not good for.
"""

from __future__ import annotations

from pathlib import Path

from nediff.data import IntensityRange
from nediff.networks.denoiser import ChannelwiseDenoiser
from nediff.problem import Problem
from nediff.restorer import Restorer

FOLDER = Path(__file__).parent / "grey"
"""A run folder like any other."""
COLOURS = 3
"""Channels that `ChannelwiseDenoiser` turns into brightness and two differences."""


def load_pretrained(channels: int = 1, range: IntensityRange | None = None) -> Restorer:
    """A Restorer for images of so many channels, in their own intensity range.

    The network knows grey images in unit intensities. ``range`` says what these are in the data;
    σ is given to it as a fraction of that range, at most twice the 0.2 of the training. Channels
    are denoised one after another, those of a colour image after a turn (`ChannelwiseDenoiser`).
    """
    grey = Restorer.load(FOLDER)
    config = grey.config
    changes: dict[str, object] = {"channels": channels}
    if range is not None:
        changes |= {"low": range.low, "high": range.high, "range_chosen": "that of the images"}
    config = config.model_copy(update={"data": config.data.model_copy(update=changes)})
    if channels == 1:
        return Restorer(grey.problem, grey.denoiser, config, correction=grey.correction)
    denoiser = ChannelwiseDenoiser(grey.denoiser, channels).to(grey.device)
    problem = Problem.denoising(grey.problem.sigma, channels)
    # the correction is that of grey images; turned colours have error bars that need none
    correction = None if channels == COLOURS else grey.correction
    return Restorer(problem, denoiser, config, correction=correction)
