"""Radial spectra of truth, one-step estimates and samples at three noise levels (AFHQ)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nediff.experiments.denoisers import denoiser_piece
from nediff.experiments.drawing import COLOURS, INK, charts, label, legend
from nediff.experiments.models import Model
from nediff.experiments.pieces import Experiment, Piece, Workspace
from nediff.experiments.tables import markdown, write_table

NAME = "fig-spectra"
IMAGES, SIGMAS = "afhq", (0.05, 0.075, 0.1)
VARIANTS = {"default": "our defaults", "paper": "recipe and sampler of the paper"}
"""One sampler for all methods in each, as in table 1."""
LINES = ("MMSE (self-supervised)", "ours", "CD", "MMSE (supervised)", "EDM (supervised)")


def _source(line: str, variant: str) -> tuple[str, str | None]:
    """The method that trained the network of a line, and its sampler (None: one step)."""
    sources: dict[str, tuple[str, str | None]] = {
        "MMSE (self-supervised)": (variant, None),
        "ours": (variant, variant),
        "CD": ("cd", variant),
        "MMSE (supervised)": ("supervised", None),
        "EDM (supervised)": ("supervised", variant),
    }
    return sources[line]


def pieces(workspace: Workspace) -> list[Piece]:
    """Those of table 1."""
    return [
        denoiser_piece(Model(IMAGES, sigma, method), workspace)
        for sigma in SIGMAS
        for method in ("default", "paper", "cd", "supervised")
    ]


def rows(workspace: Workspace) -> list[dict[str, Any]]:
    """Spectra, and their distance from the truth's: RMS of 10 log₁₀ of the ratio, in dB.

    ``high`` is the distance over the upper half of the frequencies, with its sign: the mean.
    """
    out = []
    for variant in VARIANTS:
        for sigma in SIGMAS:
            for line in LINES:
                method, sampler = _source(line, variant)
                result = workspace.result(Model(IMAGES, sigma, method).key)
                if result is not None:
                    found = result if sampler is None else result["samplers"][sampler]
                    row = {"variant": variant, "sigma": sigma, "line": line}
                    out.append(row | _compared(found["spectrum"], result["spectrum_truth"]))
    return out


def _compared(spectrum: list[float], truth: list[float]) -> dict[str, Any]:
    over = ratio({"spectrum": spectrum, "truth": truth})
    return {
        "distance": float(np.sqrt(np.mean(over**2))),
        "high": float(np.mean(over[len(over) // 2 :])),
        "spectrum": spectrum,
        "truth": truth,
    }


def table(workspace: Workspace) -> str:
    """Markdown: distances by noise level."""
    found, body = rows(workspace), []
    for variant, words in VARIANTS.items():
        for line in LINES:
            mine = {r["sigma"]: r for r in found if (r["variant"], r["line"]) == (variant, line)}
            cells = [
                f"{mine[s]['distance']:.2f} ({mine[s]['high']:+.2f})" if s in mine else ""
                for s in SIGMAS
            ]
            body.append([words, line, *cells])
    head = ["with", "", *(f"σ_n = {s:g}" for s in SIGMAS)]
    intro = (
        "Distance of the radial spectrum from the truth's, in dB (RMS over the frequencies); in "
        "brackets the mean over the upper half of them: below zero is too smooth, above too noisy."
    )
    return "\n".join([intro, "", *markdown(head, body)]) + "\n"


def figure(workspace: Workspace, path: Path) -> None:
    """Noise levels across, our defaults above, as in the paper below."""
    found = rows(workspace)
    with charts(path, len(VARIANTS), len(SIGMAS)) as axes:
        for row, (variant, words) in enumerate(VARIANTS.items()):
            for column, sigma in enumerate(SIGMAS):
                mine = [r for r in found if (r["variant"], r["sigma"]) == (variant, sigma)]
                _draw(axes[row][column], mine)
                title = "" if row else f"σ_n = {sigma:g}"
                power = "" if column else f"{words}:\ndB over the truth"
                label(axes[row][column], title, "cycles per pixel" if row else "", power)
        legend(axes[0][0], 6.5)


def ratio(row: dict[str, Any]) -> NDArray[np.float64]:
    """Its spectrum over the truth's, in dB, at all frequencies but zero."""
    decades = np.log10(np.array(row["spectrum"][1:]) / np.array(row["truth"][1:]))
    return np.asarray(10 * decades)


def _draw(chart: Any, mine: list[dict[str, Any]]) -> None:
    """Each method over the truth; estimates dashed. The spectra themselves are all but one line."""
    if not mine:
        return
    frequency = np.linspace(0, 0.5, len(mine[0]["truth"]))[1:]
    chart.axhline(0, color=INK, linewidth=1.5, label="truth")
    for row in mine:
        colour = COLOURS[LINES.index(row["line"])]
        style = "--" if row["line"].startswith("MMSE") else "-"
        chart.plot(frequency, ratio(row), style, color=colour, linewidth=1, label=row["line"])


def show(workspace: Workspace) -> list[Path]:
    """The table and the figure."""
    chart = workspace.out / "figures" / f"{NAME}.svg"
    figure(workspace, chart)
    return [write_table(workspace, NAME, table(workspace), rows(workspace)), chart]


EXPERIMENT = Experiment(NAME, "radial spectra of estimates and samples", pieces, show)
