"""What has to be known of a result to make it again: the metadata of its file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tifffile

from nediff.data.ranges import IntensityRange
from nediff.data.stabilise import StabilisedRange


def about_result(
    version: str,
    model: str,
    source: str,
    range: IntensityRange,
    sigmas: Sequence[float],
    settings: Mapping[str, object],
) -> dict[str, Any]:
    """Model, file, units and noise (σ in unit range, of each image if they differ), and settings.

    TIFF files have it in their description, as JSON under ``nediff``, which is where tifffile and
    ImageJ show it.
    """
    return {
        "software": f"nediff {version}",
        "model": model,
        "source": source,
        "intensity_range": [range.low, range.high],
        **_noise_told(range, list(dict.fromkeys(sigmas))),
        **settings,
    }


def _noise_told(r: IntensityRange, sigmas: list[float]) -> dict[str, Any]:
    """σ, also in the data's units; where it is not one number there, what it depends on."""
    if isinstance(r, StabilisedRange):
        known = {"gain": r.noise.gain, "read_noise": r.noise.read_noise, "offset": r.noise.offset}
        return {"sigma_of_stabilised_range": _one(sigmas), **known}
    in_data = [sigma * r.scale for sigma in sigmas]
    return {"sigma_of_range": _one(sigmas), "sigma_in_data_units": _one(in_data)}


def _one(values: list[float]) -> float | list[float]:
    return values[0] if len(values) == 1 else values


def read_about(path: Path) -> dict[str, Any]:
    """What was written about the result in a TIFF file."""
    with tifffile.TiffFile(path) as file:
        found: dict[str, Any] = json.loads(file.pages[0].description)["nediff"]
    return found
