"""Measurements beside the instrument: do they fit, and what is their intensity range?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from nediff.data.files import ImageFile
from nediff.data.layout import Array
from nediff.data.measured import scan_measured
from nediff.data.measurements import Measurements
from nediff.data.ranges import IntensityRange, choose_range
from nediff.data.scan import Progress, Scan, Transform
from nediff.data.stabilise import StabilisedRange, choose_stabilised
from nediff.errors import NediffError
from nediff.problem import Problem

Given = tuple[float, float] | IntensityRange | None

_MOST_IMAGES = 64
"""As many are looked at to find the range of k-space data."""

_POINTWISE = ("denoising", "inpainting", "demosaicing")

_HINTS = {
    "inpainting": "multiply it by the mask, or is the mask inverted?",
    "demosaicing": "is the Bayer pattern another one, or are these complete colour images?",
    "mri": "multiply it by the mask, or is the mask inverted?",
}


def has_gaps(problem: Problem) -> bool:
    """Whether some values of its measurements, as stored, are not measured."""
    return problem.kind in _HINTS and not problem.raw


def refuse_misfits(
    files: Sequence[ImageFile],
    problem: Problem,
    progress: Progress | None = None,
    transform: Transform | None = None,
) -> Scan | None:
    """Refuse files that the instrument cannot have measured: by size, or by what is missing.

    Returns what the measured values (or what ``transform`` makes of them) alone are like, where
    some are missing.
    """
    for file in files:
        try:
            problem.check_size(*file.size())
        except NediffError as error:
            raise NediffError(f"{file.name}: {error}") from error
    if not has_gaps(problem):
        return None
    return scan_measured(files, on_cpu(problem), _HINTS[problem.kind], progress, transform)


def settle_range(
    images: Measurements,
    problem: Problem,
    given: Given,
    clean: bool,
    progress: Progress | None = None,
) -> Measurements:
    """The data in a range that missing values or k-space have not spoilt; refuses misfits.

    Missing values are stored as zeros, which say nothing of the range. K-space has no offset,
    so its range begins at 0, and ends where the magnitudes of the zero-filled images do. With
    ``clean`` the images are yet to be measured.
    """
    refuse_curved(images.range, problem)
    if problem.kind == "mri":
        _refuse_offset(given)
    if clean:
        return _from_zero(images) if problem.kind == "mri" and given is None else images
    found = refuse_misfits(images.files, problem, progress, images.range.transform)
    if found is None:
        return images
    if isinstance(images.range, StabilisedRange):
        return _curved(images, images.range, found, given)
    if problem.kind == "mri" and given is None:
        chosen, how = _magnitudes(images, problem, "zero-filled images")
    else:
        extremes = (found.minimum, found.maximum)
        chosen, how = choose_range(found.sample, images.files[0].dtype, given, extremes)
    return images.with_range(chosen, how, found.within_variance)


def refuse_curved(range: IntensityRange, problem: Problem) -> None:
    """A curved map of single pixels fits only what is measured pixel by pixel."""
    if isinstance(range, StabilisedRange) and problem.kind not in _POINTWISE:
        raise NediffError(
            f"Signal-dependent noise (--gain) works for {', '.join(_POINTWISE)}, where each value "
            f"is measured by itself; with {problem.kind} values are mixtures, and stay mixtures "
            "only in the units of the data."
        )


def _curved(
    images: Measurements, range: StabilisedRange, found: Scan, given: Given
) -> Measurements:
    """As `settle_range`, by the stabilised values of what is measured."""
    if isinstance(given, StabilisedRange):
        return images.with_range(given, images.range_chosen, found.within_variance)
    ends = (given.low, given.high) if isinstance(given, IntensityRange) else given
    chosen, how = choose_stabilised(range.noise, found.sample, ends)
    return images.with_range(chosen, how, found.within_variance)


def _refuse_offset(given: Given) -> None:
    low, high = (given.low, given.high) if isinstance(given, IntensityRange) else given or (0, 0)
    if low != 0:
        raise NediffError(
            f"The intensity range of mri begins at 0, since k-space has no offset, not at {low:g}; "
            f"give the range 0 to {high:g} (--range 0 {high:g})."
        )


def _from_zero(images: Measurements) -> Measurements:
    """Clean images for MRI: their range, if it begins at 0, else that of their magnitudes."""
    if images.range.low == 0:
        return images
    chosen, how = _magnitudes(images, None, "images")
    variance = images.within_variance * images.range.scale**2
    return images.with_range(chosen, how, variance)


def _magnitudes(
    images: Measurements, problem: Problem | None, what: str
) -> tuple[IntensityRange, str]:
    """From 0 to the 99.9th percentile of the magnitudes of some images, or of those behind."""
    some = images.windows[:: -(-len(images) // _MOST_IMAGES)]
    values = [magnitude(window.file.read(window.page), problem) for window in some]
    high = float(np.percentile(np.concatenate(values), 99.9))
    if high <= 0:
        raise NediffError(f"All {what} are zero; there is nothing to learn.")
    how = f"0 to {high:g}, the 99.9th percentile of the magnitude of the {what}"
    return IntensityRange(0.0, high), how


def magnitude(values: Array, problem: Problem | None) -> Array:
    """The magnitudes, in a row, of an image (2, H, W), or of that behind the measurement."""
    tensor = torch.from_numpy(values.astype(np.float64))[None]
    if problem is not None:
        tensor = on_cpu(problem).A_adjoint(tensor)
    out: Array = tensor.square().sum(dim=1).sqrt().flatten().numpy()
    return out


def on_cpu(problem: Problem) -> Problem:
    """The instrument in the memory of the CPU, where files are read to."""
    return problem.with_operator(problem.operator.to("cpu"))
