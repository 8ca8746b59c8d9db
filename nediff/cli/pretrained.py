"""`nediff restore --pretrained`: the network that comes along, in the range of the images."""

from __future__ import annotations

from pathlib import Path

from nediff.cli.console import counting, say
from nediff.cli.levels import middle_level
from nediff.data import Measurements, open_measurements
from nediff.errors import NediffError
from nediff.pretrained import FOLDER, load_pretrained
from nediff.restorer import Restorer


def paths_given(first: Path, second: str | None, pretrained: bool) -> tuple[Path | None, str]:
    """(RUN, IMAGES) of the arguments; with --pretrained there is no RUN, and IMAGES come first."""
    if pretrained:
        if second is not None:
            raise NediffError(f"With --pretrained give the images only, and no run ({first}).")
        return None, str(first)
    if second is None:
        raise NediffError(
            f"Give a run folder and the images: nediff restore RUN {first}; or, with the network "
            f"that comes along, nediff restore --pretrained {first}."
        )
    return first, second


def pretrained_for(images: str, axes: str | None) -> tuple[Path, Restorer, Measurements]:
    """The folder of the network for these images, it in their range, and the images."""
    with counting("reading images") as report:
        opened = open_measurements(images, axes=axes, progress=report)
    restorer = load_pretrained(opened.channels, opened.range)
    say(f"pretrained on noisy photographs; intensity range {opened.range_chosen}")
    return FOLDER, restorer, opened


def estimated(opened: Measurements, restorer: Restorer) -> float:
    """σ in unit range, where it was not given."""
    sigma = middle_level(opened)
    restorer.levels(1, sigma)
    return sigma
