"""Figure 1 of the paper: one-step denoisers at noise levels they were and were not trained for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nediff.experiments.denoisers import LEVELS, denoiser_piece
from nediff.experiments.drawing import COLOURS, charts, label, legend
from nediff.experiments.models import METHODS, Model
from nediff.experiments.pieces import Experiment, Piece, Workspace
from nediff.experiments.scales import SETS
from nediff.experiments.scoring import mean_of
from nediff.experiments.sets import WORDS
from nediff.experiments.tables import markdown, write_table

NAME = "fig-denoise-levels"
SIGMA = 0.075
COMPARED = ("supervised", "default", "paper", "cd", "sure")
SCORES = {"psnr": "PSNR (dB)", "ssim": "SSIM", "lpips": "LPIPS"}


def pieces(workspace: Workspace) -> list[Piece]:
    """One network for each set and method; the same ones that table 1 samples from."""
    return [
        denoiser_piece(
            Model(images, SIGMA, method), workspace, "levels" if method == "sure" else "samples"
        )
        for images in reversed(SETS)
        for method in COMPARED
    ]


def rows(workspace: Workspace) -> list[dict[str, Any]]:
    """Means over the validation images: set, method, σ, scores; ``where`` are those of each."""
    out = []
    for images in SETS:
        for method in COMPARED:
            key = Model(images, SIGMA, method).key
            result = workspace.result(key)
            if result is None:
                continue
            for sigma in (s for s in LEVELS if s <= SIGMA):
                where = [key, "levels", f"{sigma:g}"]
                scores = mean_of(result["levels"][f"{sigma:g}"])
                row = {"images": images, "method": method, "sigma": sigma, **scores}
                out.append(row | {"where": where})
    return out


def table(workspace: Workspace) -> str:
    """Markdown: one table for each set."""
    found, lines = rows(workspace), []
    levels = sorted({r["sigma"] for r in found})
    for images in SETS:
        body = []
        for method in COMPARED:
            mine = [r for r in found if (r["images"], r["method"]) == (images, method)]
            cells = [f"{r['psnr']:.2f} / {r['ssim']:.3f}{_lpips(r)}" for r in mine]
            if cells:
                body.append([METHODS[method].words, METHODS[method].given, *cells])
        head = ["trained with", "given", *(f"σ = {s:g}" for s in levels)]
        lines += ["", f"### {WORDS[images]}", "", *markdown(head, body)]
    intro = (
        f"One step, D(y, σ), by networks trained at σ_n = {SIGMA:g}: PSNR / SSIM / LPIPS, means "
        "over the validation images."
    )
    return "\n".join([intro, *lines]) + "\n"


def _lpips(row: dict[str, Any]) -> str:
    return f" / {row['lpips']:.3f}" if "lpips" in row else ""


def figure(workspace: Workspace, path: Path) -> None:
    """Three sets across, the scores down, one line for each method."""
    found = rows(workspace)
    shown = {k: w for k, w in SCORES.items() if any(k in row for row in found)}
    with charts(path, len(shown), len(SETS)) as axes:
        for row, (score, words) in enumerate(shown.items()):
            for column, images in enumerate(SETS):
                chart = axes[row][column]
                for method, colour in zip(COMPARED, COLOURS, strict=False):
                    mine = [r for r in found if (r["images"], r["method"]) == (images, method)]
                    sigmas, values = [r["sigma"] for r in mine], [r[score] for r in mine]
                    name = METHODS[method].words
                    chart.plot(sigmas, values, "o-", color=colour, label=name, markersize=3)
                title = WORDS[images] if row == 0 else ""
                label(chart, title, "test σ" if row == len(shown) - 1 else "", words)
        legend(axes[0][0])


def show(workspace: Workspace) -> list[Path]:
    """The table and the figure."""
    chart = workspace.out / "figures" / f"{NAME}.svg"
    figure(workspace, chart)
    return [write_table(workspace, NAME, table(workspace), rows(workspace)), chart]


EXPERIMENT = Experiment(
    NAME, "one-step denoisers at and below the noise they were trained with", pieces, show
)
