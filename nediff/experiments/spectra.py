"""Radial spectra of truth, one-step estimates and samples at three noise levels (AFHQ)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nediff.experiments.denoisers import denoiser_piece
from nediff.experiments.drawing import COLOURS, INK, charts, label, legend
from nediff.experiments.models import Model
from nediff.experiments.pieces import Experiment, Piece, Workspace
from nediff.experiments.tables import markdown, write_table

NAME = "fig-spectra"
IMAGES, SIGMAS = "afhq", (0.05, 0.075, 0.1)
LINES = {
    "MMSE (supervised)": ("supervised", None),
    "MMSE (ours)": ("default", None),
    "ours, samples": ("default", "default"),
    "ours as in the paper, samples": ("paper", "paper"),
    "CD, samples": ("cd", "paper"),
    "EDM (supervised), samples": ("supervised", "paper"),
}


def pieces(workspace: Workspace) -> list[Piece]:
    """Those of table 1."""
    methods = dict.fromkeys(method for method, _ in LINES.values())
    return [
        denoiser_piece(Model(IMAGES, sigma, method), workspace)
        for sigma in SIGMAS
        for method in methods
    ]


def rows(workspace: Workspace) -> list[dict[str, Any]]:
    """Spectra, and their distance from the truth's: RMS of 10 log₁₀ of the ratio, in dB.

    ``high`` is the distance over the upper half of the frequencies, with its sign: the mean.
    """
    out = []
    for sigma in SIGMAS:
        for words, (method, sampler) in LINES.items():
            result = workspace.result(Model(IMAGES, sigma, method).key)
            if result is None:
                continue
            found = result if sampler is None else result["samplers"][sampler]
            spectrum, truth = np.array(found["spectrum"]), np.array(result["spectrum_truth"])
            ratio = 10 * np.log10(spectrum[1:] / truth[1:])
            row = {"sigma": sigma, "line": words, "distance": float(np.sqrt(np.mean(ratio**2)))}
            row["high"] = float(np.mean(ratio[len(ratio) // 2 :]))
            out.append(row | {"spectrum": spectrum.tolist(), "truth": truth.tolist()})
    return out


def table(workspace: Workspace) -> str:
    """Markdown: distances by noise level."""
    found = rows(workspace)
    body = []
    for words in LINES:
        mine = {r["sigma"]: r for r in found if r["line"] == words}
        cells = [
            f"{mine[s]['distance']:.2f} ({mine[s]['high']:+.2f})" if s in mine else ""
            for s in SIGMAS
        ]
        body.append([words, *cells])
    head = ["", *(f"σ_n = {s:g}" for s in SIGMAS)]
    intro = (
        "Distance of the radial spectrum from the truth's, in dB (RMS over the frequencies); in "
        "brackets the mean over the upper half of them: below zero is too smooth, above too noisy."
    )
    return "\n".join([intro, "", *markdown(head, body)]) + "\n"


def figure(workspace: Workspace, path: Path) -> None:
    """One chart for each noise level."""
    found = rows(workspace)
    with charts(path, 1, len(SIGMAS)) as axes:
        for column, sigma in enumerate(SIGMAS):
            chart, mine = axes[0][column], [r for r in found if r["sigma"] == sigma]
            if not mine:
                continue
            frequency = np.linspace(0, 0.5, len(mine[0]["truth"]))[1:]
            chart.semilogy(frequency, mine[0]["truth"][1:], color=INK, linewidth=2, label="truth")
            for row in mine:
                colour = COLOURS[list(LINES).index(row["line"])]
                style = "--" if row["line"].startswith("MMSE") else "-"
                line = row["spectrum"][1:]
                chart.semilogy(frequency, line, style, color=colour, linewidth=1, label=row["line"])
            label(chart, f"σ_n = {sigma:g}", "cycles per pixel", "power" if column == 0 else "")
        legend(axes[0][0], 6.5)


def show(workspace: Workspace) -> list[Path]:
    """The table and the figure."""
    chart = workspace.out / "figures" / f"{NAME}.svg"
    figure(workspace, chart)
    return [write_table(workspace, NAME, table(workspace), rows(workspace)), chart]


EXPERIMENT = Experiment(NAME, "radial spectra of estimates and samples", pieces, show)
