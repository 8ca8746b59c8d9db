"""How noisy images are, by a run that found the colour of its noise by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nediff.data import Measurements
from nediff.noise import level_by_restoring, levels_by_colour, middle_of
from nediff.operators import Coloured
from nediff.restorer import Restorer

SIDE = 512
"""Of the part of a larger image that is looked at."""
LEAST = 1e-3
"""Times the largest level of the training: an image without any noise still has to have a level."""


def estimated_levels(
    restorer: Restorer, images: Measurements, progress: Callable[[int, int], None] | None = None
) -> tuple[float, ...]:
    """σ of each image, in unit intensities; ``progress`` hears (images done, images).

    By the spectrum that the run has found and, where its network has learned to doubt that, by
    the network, which is asked from there.
    """
    operator = restorer.problem.operator
    assert isinstance(operator, Coloured)
    levels = levels_by_colour(images, operator.colour)
    if not restorer.config.recipe.doubt:
        return levels
    largest = restorer.problem.sigma
    found = []
    for i, level in enumerate(levels):
        told = min(max(level, LEAST * largest), largest)
        looked = level_by_restoring(
            partial(restorer.restore, sigma=told),
            middle_of(images, i, SIDE),
            operator.colour,
            told,
        )
        found.append(max(looked, LEAST * largest))
        if progress is not None:
            progress(i + 1, len(images))
    return tuple(found)
