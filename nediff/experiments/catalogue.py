"""All experiments, most telling first."""

from __future__ import annotations

from nediff.errors import NediffError, did_you_mean
from nediff.experiments import (
    ablations,
    claims,
    complexity,
    examples,
    levels,
    patches,
    spectra,
    table1,
    table2,
    theorem,
)
from nediff.experiments.pieces import Experiment, Piece, Workspace

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        theorem,
        patches,
        levels,
        table1,
        table2,
        complexity,
        ablations,
        spectra,
        examples,
        claims,
    )
}


def experiments_named(name: str) -> list[Experiment]:
    """One experiment, or all; or a sentence that lists them."""
    if name == "all":
        return list(EXPERIMENTS.values())
    if name not in EXPERIMENTS:
        listed = ", ".join(EXPERIMENTS)
        raise NediffError(
            f"There is no experiment '{name}'; there are: {listed}, and all."
            + did_you_mean(name, [*EXPERIMENTS, "all"])
        )
    return [EXPERIMENTS[name]]


def all_pieces(experiments: list[Experiment], workspace: Workspace) -> list[Piece]:
    """The pieces of the experiments, each once; two of one name have to be the same."""
    found: dict[str, Piece] = {}
    for piece in (p for e in experiments for p in e.pieces(workspace)):
        known = found.setdefault(piece.key, piece)
        assert known.settings == piece.settings, piece.key
    return list(found.values())
