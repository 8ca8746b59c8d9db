"""The noise level: from the user's units to the unit range, and whether it is believable."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from nediff.data.measurements import Measurements
from nediff.data.ranges import IntensityRange
from nediff.data.stabilise import StabilisedRange
from nediff.errors import NediffError

Units = Literal["fraction", "data"]
"""Fractions of the intensity range, or the units of the pixels."""

_SMALLEST = 1e-5
_SLACK = 1.2


def sigma_to_unit(sigma: float, units: Units, range: IntensityRange) -> float:
    """σ in unit range: "fraction" is that already, "data" is in the units of the pixels."""
    return sigma if units == "fraction" else sigma / range.scale


def check_sigma(sigma: float, measurements: Measurements) -> None:
    """Refuse a σ (unit range) that cannot be the noise of these measurements."""
    if measurements.sigmas is not None:
        _check_each(sigma, measurements)
        return
    if not math.isfinite(sigma) or sigma <= 0:
        raise NediffError(f"The noise level σ must be a positive number, not {sigma:g}.")
    if isinstance(measurements.range, StabilisedRange):
        _check_stabilised(sigma, measurements)
        return
    span = f"the intensity range {measurements.range.low:g} to {measurements.range.high:g}"
    if sigma > 1:
        as_data = sigma / measurements.range.scale
        plausible = as_data >= _SMALLEST and as_data**2 <= _SLACK * measurements.within_variance
        hint = "if it is in the units of the pixels, say --units data" if plausible else "check it"
        raise NediffError(f"The noise level σ = {sigma:g} is larger than {span}; {hint}.")
    if sigma < _SMALLEST:
        raise NediffError(
            f"The noise level σ = {sigma:g} is below {_SMALLEST:g} of {span}, practically no "
            "noise; check its units."
        )
    if sigma**2 > _SLACK * measurements.within_variance:
        total = math.sqrt(measurements.within_variance)
        raise NediffError(
            f"The noise level σ = {sigma:g} cannot be right: the noise cannot be larger than the "
            f"total variation of the data, which is {total:.3g} of {span} (standard deviation "
            "within an image); give a smaller σ."
        )


def _check_stabilised(sigma: float, measurements: Measurements) -> None:
    """Refuse photon noise that cannot be that of these measurements."""
    if sigma > 1 or sigma**2 > _SLACK * measurements.within_variance:
        raise NediffError(
            "The noise that gain and read noise say would be larger than the total variation of "
            "the data. Are they in the units of the pixels, or is there hardly a photon in a pixel?"
        )


def _check_each(largest: float, measurements: Measurements) -> None:
    """Refuse an image whose σ is larger than its own variation; only suspects are read again."""
    sigmas = measurements.sigmas
    assert sigmas is not None
    if not math.isclose(largest, sigmas.largest, rel_tol=1e-6):
        raise NediffError(
            f"The σ of the problem is {largest:g}, but the largest of the images is "
            f"{sigmas.largest:g}; give the problem that one."
        )
    for i in range(len(measurements)):
        sigma = measurements.sigma_of(i, largest)
        if not _SMALLEST <= sigma <= 1:
            raise NediffError(
                f"The noise level σ = {sigma:g} of {measurements.name(i)} is not between "
                f"{_SMALLEST:g} and 1, fractions of the intensity range."
            )
        if sigma**2 <= _SLACK * measurements.within_variance:
            continue
        total = float(np.sqrt(measurements.image(i).var(axis=(1, 2), dtype=np.float64).mean()))
        if sigma**2 > _SLACK * total**2:
            raise NediffError(
                f"The noise level σ = {sigma:g} of {measurements.name(i)} cannot be right: the "
                "noise cannot be larger than the total variation of the image, which is "
                f"{total:.3g} (fractions of the intensity range)."
            )
