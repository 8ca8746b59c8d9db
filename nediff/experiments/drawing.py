"""Figures one would put into a paper: plain axes, few colours, small files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nediff.data import atomic_path

INK, SOFT, LINES = "#1e293b", "#94a3b8", "#e2e8f0"
COLOURS = ("#475569", "#2563eb", "#0d9488", "#d97706", "#be123c", "#7c3aed")
"""For methods, in their order: supervised, ours, ours as printed, then baselines."""


@contextmanager
def charts(path: Path, rows: int, columns: int, width: float = 3.1) -> Iterator[Any]:
    """A grid of axes (rows, columns), written to ``path`` (.svg or .png) at the end."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, 2.5 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    yield axes
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Whole or not at all; the same figure is the same file."""
    from matplotlib import rc_context

    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix.lstrip(".")
    undated = {"Date": None} if kind == "svg" else None
    with atomic_path(path) as temporary, rc_context({"svg.hashsalt": "nediff"}):
        figure.savefig(temporary, format=kind, dpi=160, metadata=undated)


def label(axes: Any, title: str = "", x: str = "", y: str = "") -> None:
    """Words and plain lines."""
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)
    axes.tick_params(labelsize=8, colors=INK)
    axes.grid(True, color=LINES, linewidth=0.7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(SOFT)


def legend(axes: Any, size: float = 7.5, beside: bool = False) -> None:
    """If there is anything to name; inside the axes, or ``beside`` them on the right."""
    if axes.get_legend_handles_labels()[1]:
        place = {"loc": "upper left", "bbox_to_anchor": (1.02, 1)} if beside else {}
        axes.legend(frameon=False, fontsize=size, **place)
