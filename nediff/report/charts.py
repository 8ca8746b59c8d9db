"""Line charts for the report, as SVG text."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from nediff.evaluation.evaluate import Level, Spread
from nediff.evaluation.revealed import Revealed

BLUE, ORANGE, GREY, INK = "#2563eb", "#d97706", "#94a3b8", "#1e293b"


def _axes(title: str, xlabel: str, ylabel: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=11, color=INK, loc="left", fontweight="bold")
    axes.set_xlabel(xlabel, fontsize=9.5, color=INK)
    axes.set_ylabel(ylabel, fontsize=9.5, color=INK)
    axes.tick_params(labelsize=8.5, colors=INK)
    axes.grid(True, color="#e2e8f0", linewidth=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)
    return figure, axes


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def psnr_curve(levels: Sequence[Level]) -> str:
    """PSNR against σ: restored, and the noisy input."""
    figure, axes = _axes("Quality against noise level", "noise level σ", "PSNR in dB")
    sigma = [level.sigma for level in levels]
    axes.plot(sigma, [v.psnr for v in levels], "o-", color=BLUE, label="restored", markersize=4.5)
    axes.plot(
        sigma, [v.psnr_noisy for v in levels], "s--", color=GREY, label="noisy input", markersize=4
    )
    axes.axvline(sigma[-1], color=ORANGE, linewidth=1, linestyle=":")
    axes.annotate(
        "the only level\nin the data",
        (sigma[-1], axes.get_ylim()[1]),
        xytext=(-6, -4),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=8.5,
        color=ORANGE,
    )
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=9, loc="lower left")
    return _svg(figure)


def coverage_curve(spread: Spread) -> str:
    """Promised against found coverage of the central intervals."""
    figure, axes = _axes(
        "Do the intervals hold the truth?", "promised share", "share of true pixels inside"
    )
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="perfect")
    promised, found = zip(*spread.coverage, strict=True)
    axes.plot(promised, found, "o-", color=BLUE, markersize=4.5, label="these samples")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    return _svg(figure)


def reliability_curve(spread: Spread) -> str:
    """Predicted against found error, by class of predicted standard deviation."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure, axes = _axes("Is the error bar the error?", "predicted error", "error found")
    predicted, found, share = zip(*spread.reliability, strict=True)
    low, high = min(*predicted, *found) * 0.8, max(*predicted, *found) * 1.25
    axes.plot([low, high], [low, high], color=GREY, linewidth=1, label="perfect")
    sizes = [12 + 160 * s for s in share]
    axes.plot(predicted, found, "-", color=BLUE, linewidth=1)
    axes.scatter(predicted, found, s=sizes, color=BLUE, zorder=3, label="pixels (area: how many)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    return _svg(figure)


def revealed_curve(pairs: Revealed) -> str:
    """Predicted against found error without truth, in units of the noise, with standard errors."""
    figure, axes = _axes("Is the error bar the error?", "predicted error / σ", "error found / σ")
    predicted = [math.sqrt(c.variance) for c in pairs.classes]
    found = [math.sqrt(max(c.ratio, 0.0) * c.variance) for c in pairs.classes]
    ends = [
        [math.sqrt(max(c.ratio + s * c.ratio_error, 0.0) * c.variance) for c in pairs.classes]
        for s in (-1, 1)
    ]
    bars = [[f - low for f, low in zip(found, ends[0], strict=True)]]
    bars.append([high - f for f, high in zip(found, ends[1], strict=True)])
    axes.errorbar(
        predicted, found, bars, fmt="o-", color=BLUE, markersize=4.5, label="these samples"
    )
    top = 1.1 * max(*predicted, *(e for e in ends[1] if math.isfinite(e)), 1e-6)
    axes.plot([0, top], [0, top], color=GREY, linewidth=1, label="perfect")
    axes.set_xlim(0, top)
    axes.set_ylim(0, top)
    axes.set_aspect("equal")
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    return _svg(figure)


def training_curve(steps: Sequence[int], estimated: Sequence[float]) -> str:
    """The PSNR estimated by SURE on held-out noisy images, during training."""
    figure, axes = _axes("Training, judged without truth", "step", "estimated PSNR in dB")
    axes.plot(steps, estimated, "o-", color=BLUE, markersize=3.5)
    return _svg(figure)
