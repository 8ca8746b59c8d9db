"""docs/benchmarks.md from the parts that are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.speed.timing import words

OUT = Path("docs/results/speed")
PAGE = Path("docs/benchmarks.md")
Part = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return ["| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows]]


def steps(part: Part) -> list[str]:
    """Sizes, recipes, the loops of others."""
    rows = []
    for size in part["sizes"]:
        for name, row in size["rows"].items():
            rows.append(
                [
                    size["size"],
                    name,
                    f"{row['images_per_second']:.0f}",
                    f"{row['operations_per_image'] / 1e6:.0f}",
                    words(row["share_of_peak"]),
                    words(row["seconds_of_ours_sure"]),
                ]
            )
    waits = [w for size in part["sizes"] for w in size.get("seconds_to_compile", {}).items()]
    peaks = ", ".join(f"{s['peak_gflops']:.0f} GFLOP/s ({s['peak']})" for s in part["sizes"])
    head = ["network", "loss", "images/s", "MFLOP/image", "share of peak", "time, ours SURE = 1"]
    return [
        "Steps of 16 crops of 40×40 pixels of `bsd400_gray`, one thread. The peak is the best "
        f"convolution of a sweep, run in turns with the steps: {peaks}. Default, paper, sure and "
        "supervised are our recipes in our loop; deepinv is its `SureGaussianLoss` in its "
        "`Trainer`, on the same network and crops." + _compiling(waits),
        "",
        *table(head, rows),
    ]


def _compiling(waits: list[tuple[str, float]]) -> str:
    """A sentence, where it was measured."""
    if not waits:
        return ""
    each = ", ".join(f"{seconds:.0f} s ({row})" for row, seconds in waits)
    return f" Compiled is with `--compile`; before the first step this took {each} on the clock."


NEARLY = 0.1
"""dB below the best of deepinv."""


def quality(part: Part) -> list[str]:
    """PSNR by minutes."""
    from benchmarks.speed.quality import minutes_to

    targets = [part["target"] - less for less in (NEARLY, 0.0)]
    rows = []
    for name, curve in part["curves"].items():
        reached = [minutes_to(target, dict(curve)) for target in targets]
        cells = [f"{value:.2f} ({minutes:.2g})" for minutes, value in curve]
        rows.append([name, *cells, *("never" if m is None else f"{m:.2g}" for m in reached)])
    head = [f"minutes to {target:.2f} dB" for target in targets]
    head = ["", *(f"{m:g} min" for m in part["minutes"]), *head]
    return [
        f"PSNR in dB at σ_n = 0.075 on {part['images']} squares of `bsd68_gray`, trained on noisy "
        "`bsd400_gray` for about so many minutes of one core, each a run of its own (in brackets "
        "those it took, looks at held-out images and the choice of weights included). The last "
        f"column is to the best of deepinv, the one before to {NEARLY:g} dB less; it is given our "
        "network, the rate and the 16 crops a step of our Adam runs, and what our short runs have: "
        f"twice the rate, half the crops. Noisy: {part['noisy']:.2f} dB; BM3D, told σ_n: "
        f"{part['bm3d']:.2f} dB." + part.get("note", ""),
        "",
        *table(head, rows),
    ]


def sampling(part: Part) -> list[str]:
    """Calls until right."""
    rows = []
    for name, row in part["rows"].items():
        cells = [name]
        closed, real = row["gaussian"], row["images"]
        cells.append("never" if closed["calls"] is None else str(closed["calls"]))
        cells.append(f"{100 * closed['error']:.1f} %")
        cells.append("never" if real["calls"] is None else str(real["calls"]))
        cells.append(f"{real['spread']:.2f}")
        cells.append("" if real["calls"] is None else f"{1000 * real['seconds']:.0f}")
        rows.append(cells)
    head = ["solver", "calls, closed form", "variance error", "calls, images", "error²/variance"]
    return [
        "The fewest network calls, each solver with any γ and σ_min of the same lists (shorter for "
        "images), after which the variance is within 5 % for Gaussian priors, and error²/variance "
        "within 10 % on "
        f"{part['images']} squares of {part['side']}² pixels of `bsd68_gray` ({part['samples']} "
        "samples each). `paper` is Algorithm 1 as printed, with 49 calls in the paper.",
        "",
        *table([*head, "ms a sample"], rows),
    ]


def restoring(part: Part) -> list[str]:
    """Megapixels a second and memory."""
    rows = []
    for name, found in part["rows"].items():
        for row in found:
            rate = row["megapixels"] / row["seconds"]
            size = f"{row['megapixels']:g}"
            rows.append(
                [name, size, f"{row['seconds']:.1f}", f"{rate:.3f}", f"{row['peak_mb']:.0f}"]
            )
        if name in part["given_up"]:
            rows.append([name, part["given_up"][name], "", "", ""])
    head = ["", "megapixels", "seconds", "megapixels/s", "peak memory, MB"]
    return [
        "One grey image, one core. Ours is `nediff restore` of a 16-bit TIFF from start to end; "
        "the others without reading and writing.",
        "",
        *table(head, rows),
    ]


def growth(part: Part) -> list[str]:
    """Exponents."""
    rows = [
        [
            family,
            ", ".join(str(n) for n in row["quantities"]),
            ", ".join(f"{1000 * s:.0f}" for s in row["seconds"]),
            f"{row['exponent']:.2f}",
        ]
        for family, row in part["rows"].items()
    ]
    return [
        "Seconds ∝ quantity^p, the network `small`, one thread.",
        "",
        *table(["", "quantity", "milliseconds", "p"], rows),
    ]


PARTS = {
    "steps": ("Training step", steps),
    "quality": ("Time to quality", quality),
    "sampling": ("Sampling", sampling),
    "restoring": ("Restoring", restoring),
    "growth": ("Growth", growth),
}


def text() -> str:
    """The page, of the parts that are there."""
    lines = [
        "# How fast",
        "",
        "Made by `make bench` (`NEDIFF_DATA` names the folder with `bsd400_gray` and "
        "`bsd68_gray`); every number is in `docs/results/speed`. Candidates take turns "
        "in one run; figures in brackets are quartiles over the rounds. Times are of the "
        "processor, one thread.",
    ]
    for name, (title, show) in PARTS.items():
        path = OUT / f"{name}.json"
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf-8"))
            by = found["machine"]
            made = (
                f"{by['processor']}, {by['instructions']}, {by['cores']} cores, torch {by['torch']}"
            )
            lines += ["", f"## {title}", "", *show(found["result"]), "", f"({made}.)"]
    return "\n".join(lines) + "\n"


def write() -> None:
    """The page into the documentation."""
    PAGE.write_text(text(), encoding="utf-8")
