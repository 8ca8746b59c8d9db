"""Histograms of patch norms: do the images come at all contrasts? (The paper's last figure.)

Scale invariance asks for p(αx) = p(x) up to a power of α: norms of patches spread over orders of
magnitude, with a flat or power-law density of their logarithm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nediff.experiments.drawing import COLOURS, charts, label, legend
from nediff.experiments.pieces import Experiment, Piece, Result, Workspace
from nediff.experiments.scales import SETS
from nediff.experiments.sets import WORDS, open_set
from nediff.experiments.tables import markdown, write_table

NAME = "fig-patch-norms"
SIDES = (4, 8, 16, 32)
MOST = 1000
EDGES = np.linspace(-3.5, 0.5, 81)
"""Of log₁₀ of the norm per pixel."""


def pieces(workspace: Workspace) -> list[Piece]:
    """One for each set; no network."""
    return [_piece(images, workspace) for images in SETS]


def _piece(images: str, workspace: Workspace) -> Piece:
    minutes = 0.1 * workspace.scale.judging(images, workspace.scale.side)
    settings: Result = {"images": images, "sides": list(SIDES), "most": MOST}
    return Piece(f"patches-{images}", minutes, settings, lambda w: histograms(w, images))


def norms(images: NDArray[np.floating[Any]], side: int, centred: bool) -> NDArray[np.float64]:
    """‖p‖/√n of the patches p (n values) of (N, C, H, W), without their mean if ``centred``."""
    number, channels, height, width = images.shape
    rows, columns = height // side, width // side
    kept = images[..., : rows * side, : columns * side].astype(np.float64)
    cut = kept.reshape(number, channels, rows, side, columns, side).transpose(0, 2, 4, 1, 3, 5)
    flat = cut.reshape(number * rows * columns, channels, side * side)
    if centred:
        flat = flat - flat.mean(axis=-1, keepdims=True)
    squared: NDArray[np.float64] = np.square(flat).mean(axis=(1, 2))
    return np.sqrt(squared)


def histograms(workspace: Workspace, images: str) -> Result:
    """Shares of patches by log₁₀ norm, with and without their mean; spread in decades."""
    clean = open_set(workspace, images, "train")
    pictures = np.stack([clean.image(i) for i in range(min(MOST, len(clean)))])
    out: Result = {"images": len(pictures), "edges": EDGES.tolist(), "patches": []}
    for side in (s for s in SIDES if s <= pictures.shape[-1]):
        for centred in (False, True):
            logs = np.log10(np.maximum(norms(pictures, side, centred), 1e-12))
            counts, _ = np.histogram(np.clip(logs, EDGES[0], EDGES[-1]), EDGES)
            low, high = np.quantile(logs, (0.05, 0.95))
            row = {"side": side, "centred": centred, "decades": float(high - low)}
            out["patches"].append(row | {"share": (counts / counts.sum()).tolist()})
    return out


def _results(workspace: Workspace) -> dict[str, Result]:
    found = {images: workspace.result(f"patches-{images}") for images in SETS}
    return {images: result for images, result in found.items() if result is not None}


def table(workspace: Workspace) -> str:
    """Markdown: how many decades hold nine tenths of the patches."""
    body = []
    for images, result in _results(workspace).items():
        for found in result["patches"]:
            kind = "contrast (mean taken off)" if found["centred"] else "norm"
            body.append([WORDS[images], str(found["side"]), kind, f"{found['decades']:.2f}"])
    head = ["images", "patch side", "of", "decades from the 5th to the 95th percentile"]
    intro = (
        "Spread of the norms of patches of clean images, in powers of ten. In the figure what is "
        f"below 10^{EDGES[0]:g} is counted at the left end: flat patches, of one value or black, "
        "which clipping or compression leaves."
    )
    return "\n".join([intro, "", *markdown(head, body)]) + "\n"


def figure(workspace: Workspace, path: Path) -> None:
    """Sets across; norms above, contrasts below; a line for each patch size."""
    middle = (EDGES[1:] + EDGES[:-1]) / 2
    with charts(path, 2, len(SETS)) as axes:
        for column, images in enumerate(SETS):
            found = _results(workspace).get(images, {"patches": []})["patches"]
            for line, side in enumerate(sorted({f["side"] for f in found})):
                for f in (f for f in found if f["side"] == side):
                    chart = axes[int(f["centred"])][column]
                    colour = COLOURS[line]
                    chart.plot(10**middle, f["share"], color=colour, label=f"{side}×{side}")
                    chart.set_xscale("log")
            label(axes[0][column], WORDS[images], "", "share of patches" if column == 0 else "")
            words = "share, means taken off" if column == 0 else ""
            x = "norm per pixel (leftmost: flat patches)"
            label(axes[1][column], "", x, words)
        legend(axes[0][0])


def show(workspace: Workspace) -> list[Path]:
    """The table and the figure."""
    chart = workspace.out / "figures" / f"{NAME}.svg"
    figure(workspace, chart)
    found = [{"set": images, **result} for images, result in _results(workspace).items()]
    return [write_table(workspace, NAME, table(workspace), found), chart]


EXPERIMENT = Experiment(
    NAME, "histograms of patch norms: how scale-invariant are the images?", pieces, show
)
