"""What a command is given: the run, and measurements beside its instrument (data/settle.py)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from nediff.cli.console import counting
from nediff.data import ImageFile, Measurements, Scan, Sigmas, StabilisedRange, settle
from nediff.data.scan import Progress
from nediff.errors import NediffError
from nediff.problem import Problem
from nediff.restorer import Restorer
from nediff.runs import holds_run


def load_run(run: Path, images: str) -> Restorer:
    """The run that is named before the images, or a sentence where it is named after them."""
    if holds_run(Path(images)) and not holds_run(run):
        raise NediffError(
            f"{images} is a run folder and {run} is not: name the run first, then the images."
        )
    return Restorer.load(run)


def refuse_misfits(files: Sequence[ImageFile], problem: Problem) -> Scan | None:
    """Refuse files that the instrument cannot have measured; see `settle.refuse_misfits`."""
    with _comparing(problem) as report:
        return settle.refuse_misfits(files, problem, report)


def settle_range(
    images: Measurements, problem: Problem, given: settle.Given, clean: bool
) -> Measurements:
    """The data in a range that fits the instrument; see `settle.settle_range`."""
    with nullcontext() if clean else _comparing(problem) as report:
        return settle.settle_range(images, problem, given, clean, report)


def simulated(
    images: Measurements, sigma: float | Sigmas, seed: int, problem: Problem
) -> Measurements:
    """Clean images measured once by the instrument; in a stabilised range, with photon noise."""
    instrument = None if problem.kind == "denoising" else settle.on_cpu(problem)
    if isinstance(images.range, StabilisedRange):
        return images.simulate_photons(seed, instrument)
    return images.simulate(sigma, seed, instrument)


def _comparing(problem: Problem) -> AbstractContextManager[Progress | None]:
    return counting("comparing with the mask") if settle.has_gaps(problem) else nullcontext()
