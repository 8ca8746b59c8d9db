"""`nediff train --sigma correlated`, and the noise levels of images for such a run."""

from __future__ import annotations

from nediff.cli.console import counting, say
from nediff.data import Measurements
from nediff.errors import NediffError
from nediff.problem import Problem
from nediff.restorer import Restorer


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
        f"correlated noise, estimated from the data: correlation of neighbours {across:+.2f}, "
        "with a level for each image (sigmas.csv of the run)"
    )
    problem = Problem.denoising(max(found.sigmas), problem.channels, found.colour)
    return images.with_sigmas(found.sigmas), problem


def with_estimated_levels(images: Measurements, restorer: Restorer) -> Measurements:
    """The images with the level of each, by the colour that the noise of the run has.

    A run that found out its noise by itself can do the same for new images.
    """
    from nediff.levels import estimated_levels

    with counting("looking at the noise") as report:
        found = images.with_sigmas(estimated_levels(restorer, images, report))
    assert found.sigmas is not None
    least, largest = (f"{s:.4g}" for s in (found.sigmas.least, found.sigmas.largest))
    level = least if least == largest else f"{least} to {largest}"
    say(
        f"noise of each image, by the colour that of the run has: σ = {level} of the range; "
        "--sigma tells it another"
    )
    return found
