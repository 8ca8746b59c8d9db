"""`nediff train --sigma correlated`."""

from __future__ import annotations

from nediff.cli.console import say
from nediff.data import Measurements
from nediff.errors import NediffError
from nediff.problem import Problem


def correlated_noise(
    images: Measurements, problem: Problem, simulated: bool
) -> tuple[Measurements, Problem]:
    """The images with the level of each, and the instrument with the colour of their noise."""
    from nediff.noise import estimate_colour

    if problem.kind != "denoising" or simulated:
        raise NediffError(
            "--sigma correlated estimates the noise of complete noisy images; with --operator or "
            "--simulate, give the level of white noise."
        )
    found = estimate_colour(images)
    across = found.colour.correlation
    say(
        f"correlated noise, estimated from the data: correlation of neighbours {across:+.2f}; its "
        "level is kept for each image (sigmas.csv of the run), which `restore` needs with --sigma"
    )
    largest = max(found.sigmas)
    return images.with_sigmas(found.sigmas), Problem.denoising(
        largest, problem.channels, found.colour
    )
