"""What the paper prints, to be set beside what we find: PSNR, SSIM, LPIPS and FID.

Its networks have 55.7 M parameters and its images 128 × 128 pixels, so only differences between
methods can be compared with those of another scale, not the figures themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Printed(NamedTuple):
    """A row of the paper's tables."""

    psnr: float
    ssim: float
    lpips: float
    fid: float


TABLE1: dict[tuple[str, float], dict[str, Printed]] = {
    ("ffhq", 0.075): {
        "MMSE (self-supervised)": Printed(33.68, 0.937, 0.024, 29.82),
        "ours": Printed(32.76, 0.921, 0.015, 22.57),
        "CD": Printed(28.92, 0.756, 0.057, 59.37),
        "MMSE (supervised)": Printed(34.20, 0.944, 0.023, 32.79),
        "EDM (supervised)": Printed(33.06, 0.920, 0.012, 19.91),
    },
    ("nbu", 0.075): {
        "MMSE (self-supervised)": Printed(32.58, 0.863, 0.111, 79.20),
        "ours": Printed(32.05, 0.851, 0.085, 34.01),
        "CD": Printed(32.02, 0.836, 0.076, 53.75),
        "MMSE (supervised)": Printed(33.08, 0.877, 0.110, 103.18),
        "EDM (supervised)": Printed(32.02, 0.841, 0.057, 18.21),
    },
    ("afhq", 0.05): {
        "MMSE (self-supervised)": Printed(34.52, 0.949, 0.020, 10.09),
        "ours": Printed(33.89, 0.942, 0.011, 5.08),
        "CD": Printed(32.48, 0.903, 0.015, 10.74),
        "MMSE (supervised)": Printed(34.77, 0.952, 0.019, 9.83),
        "EDM (supervised)": Printed(34.01, 0.942, 0.010, 3.62),
    },
    ("afhq", 0.075): {
        "MMSE (self-supervised)": Printed(32.41, 0.923, 0.034, 11.56),
        "ours": Printed(31.71, 0.911, 0.021, 7.12),
        "CD": Printed(29.44, 0.818, 0.034, 17.08),
        "MMSE (supervised)": Printed(32.72, 0.928, 0.034, 12.55),
        "EDM (supervised)": Printed(31.80, 0.910, 0.017, 5.66),
    },
    ("afhq", 0.1): {
        "MMSE (self-supervised)": Printed(30.96, 0.898, 0.053, 13.80),
        "ours": Printed(30.38, 0.888, 0.034, 8.88),
        "CD": Printed(27.01, 0.732, 0.064, 20.65),
        "MMSE (supervised)": Printed(31.34, 0.906, 0.049, 14.37),
        "EDM (supervised)": Printed(30.26, 0.879, 0.024, 7.82),
    },
}

COMPARED = (
    ("MMSE (self-supervised)", "MMSE (supervised)"),
    ("ours", "MMSE (self-supervised)"),
    ("CD", "ours"),
    ("EDM (supervised)", "MMSE (supervised)"),
)
"""Pairs of solvers whose difference and ratio say what the paper claims."""


def differences(
    rows: Mapping[str, Mapping[str, float]],
) -> dict[str, tuple[float, float | None]]:
    """'a − b' → (PSNR of a − PSNR of b, LPIPS of a / LPIPS of b), of the pairs that are there."""
    found: dict[str, tuple[float, float | None]] = {}
    for a, b in COMPARED:
        if a in rows and b in rows:
            one, other = rows[a], rows[b]
            has = "lpips" in one and "lpips" in other
            ratio = one["lpips"] / other["lpips"] if has else None
            found[f"{a} − {b}"] = one["psnr"] - other["psnr"], ratio
    return found
