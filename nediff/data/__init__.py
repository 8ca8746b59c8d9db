"""Images in and out: reading, intensity range, simulated noise, splitting, writing."""

from __future__ import annotations

from nediff.data.about import about_result, read_about
from nediff.data.atomic import atomic_path
from nediff.data.claim import claimed, is_claimed
from nediff.data.files import ImageFile
from nediff.data.measured import scan_measured
from nediff.data.measurements import Measurements, Window, open_measurements
from nediff.data.plain import read_plain
from nediff.data.ranges import IntensityRange, choose_range
from nediff.data.scan import Scan, check_channels, scan
from nediff.data.sigma import Units, check_sigma, sigma_to_unit
from nediff.data.sigmas import Sigmas, read_sigmas
from nediff.data.sources import list_files, would_read
from nediff.data.split import split
from nediff.data.stabilise import PhotonNoise, StabilisedRange, photon_noise
from nediff.data.write import Form, Sheet, float_form, form_like, write_form, write_like, write_tiff

__all__ = [
    "Form",
    "ImageFile",
    "IntensityRange",
    "Measurements",
    "PhotonNoise",
    "Scan",
    "Sheet",
    "Sigmas",
    "StabilisedRange",
    "Units",
    "Window",
    "about_result",
    "atomic_path",
    "check_channels",
    "check_sigma",
    "choose_range",
    "claimed",
    "float_form",
    "form_like",
    "is_claimed",
    "list_files",
    "open_measurements",
    "photon_noise",
    "read_about",
    "read_plain",
    "read_sigmas",
    "scan",
    "scan_measured",
    "sigma_to_unit",
    "split",
    "would_read",
    "write_form",
    "write_like",
    "write_tiff",
]
