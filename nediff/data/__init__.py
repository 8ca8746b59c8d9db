"""Images in and out: reading, intensity range, simulated noise, splitting, writing."""

from __future__ import annotations

from nediff.data.atomic import atomic_path
from nediff.data.files import ImageFile
from nediff.data.measurements import Measurements, open_measurements
from nediff.data.ranges import IntensityRange, choose_range
from nediff.data.scan import Scan, check_channels, scan
from nediff.data.sigma import Units, check_sigma, sigma_to_unit
from nediff.data.sources import list_files
from nediff.data.split import split
from nediff.data.write import write_like, write_tiff

__all__ = [
    "ImageFile",
    "IntensityRange",
    "Measurements",
    "Scan",
    "Units",
    "atomic_path",
    "check_channels",
    "check_sigma",
    "choose_range",
    "list_files",
    "open_measurements",
    "scan",
    "sigma_to_unit",
    "split",
    "write_like",
    "write_tiff",
]
