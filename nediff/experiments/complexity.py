"""Sample complexity: the error against the number of noisy training images."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nediff.experiments.denoisers import denoiser_piece
from nediff.experiments.drawing import COLOURS, SOFT, charts, label, legend
from nediff.experiments.models import METHODS, Model
from nediff.experiments.pieces import Experiment, Piece, Workspace
from nediff.experiments.tables import markdown, write_table

NAME = "fig-sample-complexity"
IMAGES, SIGMA = "afhq", 0.05
COMPARED = ("paper", "default")
LEVELS = (0.02, 0.035, 0.05, 0.075, 0.1)
"""On both sides of σ_n."""


def model_of(workspace: Workspace, method: str, count: int | None) -> Model:
    """As many steps for every count."""
    name = f"complexity-{method}"
    steps = workspace.scale.count_steps
    return Model(IMAGES, SIGMA, method, count=count, steps=steps, name=name)


def pieces(workspace: Workspace) -> list[Piece]:
    """The supervised network on all images, then each method on each count, extremes first."""
    counts = workspace.scale.counts
    order = [counts[-1], counts[0], *counts[1:-1]]
    models = [model_of(workspace, "supervised", None)]
    models += [model_of(workspace, method, count) for method in COMPARED for count in order]
    return [denoiser_piece(model, workspace, "levels") for model in models]


def rows(workspace: Workspace) -> list[dict[str, Any]]:
    """Excess MSE over supervised training on all images: method, N, σ.

    ``lost`` is the excess over the same method on all images (None while these are to come): what
    the number of images costs, without what the method and the length of the training do.
    """
    best = workspace.result(model_of(workspace, "supervised", None).key)
    out: list[dict[str, Any]] = []
    for method in COMPARED:
        whole = workspace.result(model_of(workspace, method, None).key)
        for count in workspace.scale.counts:
            result = workspace.result(model_of(workspace, method, count).key)
            if result is None or best is None:
                continue
            for sigma in LEVELS:
                found, least = _mse(result["levels"], sigma), _mse(best["levels"], sigma)
                row = {"method": method, "count": result["training_images"], "sigma": sigma}
                row |= {"mse": found, "excess": found - least, "supervised": least}
                row["best_step"] = result["trained"].get("best_step")  # not in older pieces
                own = None if whole is None else found - _mse(whole["levels"], sigma)
                out.append(row | {"lost": own})
    return out


def _mse(levels: dict[str, Any], sigma: float) -> float:
    return float(np.mean(10 ** (-np.array(levels[f"{sigma:g}"]["psnr"]) / 10)))


class Slope(NamedTuple):
    """Of a line through logarithms, and its standard error by how far the points are off it."""

    value: float
    error: float


def slope(counts: list[int], excess: list[float]) -> Slope | None:
    """Of log(excess) against log(N); −1/2 is the paper's claim.

    None for fewer than three points, or if there is no excess at one of them: a line through the
    others alone would be steeper or flatter than what was found.
    """
    if len(counts) < 3 or min(excess) <= 0:
        return None
    x, y = np.log(counts), np.log(excess)
    value, height = np.polyfit(x, y, deg=1)
    off = y - value * x - height
    scatter = float(np.square(off).sum()) / (len(x) - 2) / float(np.square(x - x.mean()).sum())
    return Slope(float(value), scatter**0.5)


def own_slope_of_root_n(counts: list[int]) -> float:
    """What `own slope` is where the error is a constant + 1/√N: the excess ends at zero."""
    lost = [n**-0.5 - max(counts) ** -0.5 for n in sorted(counts)[:-1]]
    found = slope(sorted(counts)[:-1], lost)
    return float("nan") if found is None else found.value


def curve(
    found: list[dict[str, Any]], method: str, sigma: float, over: str = "excess"
) -> tuple[list[int], list[float]]:
    """N and the excess; that over the same method, "lost", without its end, which is zero."""
    mine = [r for r in found if (r["method"], r["sigma"]) == (method, sigma)]
    mine = [r for r in mine if r[over] is not None]
    mine = mine[:-1] if over == "lost" else mine
    return [r["count"] for r in mine], [r[over] for r in mine]


def table(workspace: Workspace) -> str:
    """Markdown: 10⁴ × excess MSE, and its slope."""
    found = rows(workspace)
    counts = sorted({r["count"] for r in found})
    body = []
    for method in COMPARED:
        for sigma in LEVELS:
            values = dict(zip(*curve(found, method, sigma), strict=True))
            cells = [f"{1e4 * values[n]:.3f}" if n in values else "" for n in counts]
            steep = [_slope_words(found, method, sigma, over) for over in ("excess", "lost")]
            body.append([METHODS[method].words, f"{sigma:g}", *cells, *steep])
        best = {r["count"]: r["best_step"] for r in found if r["method"] == method}
        cells = ["" if best.get(n) is None else str(best[n]) for n in counts]
        body.append([METHODS[method].words, "best after step", *cells, "", ""])
    head = ["trained with", "test σ", *(f"N = {n}" for n in counts), "slope", "own slope"]
    intro = (
        f"10⁴ × (MSE − MSE of supervised training on all images), one step, σ_n = {SIGMA:g}, "
        f"{workspace.scale.count_steps} training steps for every N; the slope of its logarithm "
        "against log N (−0.5 for σ²/√N) with its standard error, and that of the excess over the "
        "same method on all images, which leaves out what the short training itself costs (an "
        f"exact 1/√N has {own_slope_of_root_n(counts):.2f} there, because the excess ends at "
        "zero); none where one of the points has no excess. A tenth of the N images is "
        "held out to choose the best moment of the run, without truth; where that is long before "
        "the last step, the rest overfits. Above σ_n by D(αy, ασ)/α with ασ = σ_n."
    )
    return "\n".join([intro, "", *markdown(head, body)]) + "\n"


def _slope_words(found: list[dict[str, Any]], method: str, sigma: float, over: str) -> str:
    steep = slope(*curve(found, method, sigma, over))
    return "" if steep is None else f"{steep.value:.2f} ± {steep.error:.2f}"


def figure(workspace: Workspace, path: Path) -> None:
    """A column for each method, a line for each test level; above the excess over supervised
    training, below that over the same method on all images.
    """
    found = rows(workspace)
    words = {
        "excess": "excess MSE over supervised",
        "lost": "excess MSE over the same,\nall images",
    }
    with charts(path, len(words), len(COMPARED), width=3.8) as axes:
        for column, method in enumerate(COMPARED):
            for row, (over, y) in enumerate(words.items()):
                chart = axes[row][column]
                _draw(chart, found, method, over)
                title, x = (METHODS[method].words, "") if row == 0 else ("", "noisy images N")
                label(chart, title, x, y if column == 0 else "")
        legend(axes[0][-1], 7, beside=True)


def _draw(chart: Any, found: list[dict[str, Any]], method: str, over: str) -> None:
    """One chart; where there is no excess, which a logarithm cannot show, a mark at the bottom."""
    chart.set_xscale("log")
    chart.set_yscale("log")
    top = 0.0
    for place, (sigma, colour) in enumerate(zip(LEVELS, COLOURS, strict=False)):
        counts, excess = (np.array(v) for v in curve(found, method, sigma, over))
        some, look = excess > 0, {"color": colour, "markersize": 3}
        chart.plot(counts[some], excess[some], "o-", label=f"σ = {sigma:g}", **look)
        bottom = np.full(int(np.sum(~some)), 0.02 + 0.025 * place)
        chart.plot(counts[~some], bottom, "v", transform=chart.get_xaxis_transform(), **look)
        top = max([top, *excess[:1]])
    if top > 0:
        _guide(chart, found, top, over)
    chart.plot([], [], "v", color=SOFT, markersize=3, label="no excess")


def _guide(chart: Any, found: list[dict[str, Any]], top: float, over: str) -> None:
    """What falls like 1/√N, from above the curves; over the same method it ends at zero, as they
    do.
    """
    counts = np.array(sorted({r["count"] for r in found}), float)
    shape = counts**-0.5
    if over == "lost":
        counts, shape = counts[:-1], (shape - shape[-1])[:-1]
    line = 1.5 * top * shape / shape[0]
    chart.plot(counts, line, ":", color=SOFT, linewidth=1.5, label="1/√N")


def show(workspace: Workspace) -> list[Path]:
    """The table and the figure."""
    chart = workspace.out / "figures" / f"{NAME}.svg"
    figure(workspace, chart)
    return [write_table(workspace, NAME, table(workspace), rows(workspace)), chart]


EXPERIMENT = Experiment(NAME, "the error against the number of noisy images", pieces, show)
