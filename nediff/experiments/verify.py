"""Are the tables those of the pieces? Made anew from them, and compared."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nediff.errors import NediffError
from nediff.experiments.pieces import Experiment, Workspace


def verify(experiments: Sequence[Experiment], workspace: Workspace) -> list[str]:
    """The tables that were checked; raises with those that differ or are missing.

    Needs no images and no networks: the pieces hold the scores of every image.
    """
    pieces = workspace.out / "pieces"
    if not pieces.is_dir():
        raise NediffError(f"There are no results to verify in {workspace.out}.")
    checked, wrong = [], []
    with tempfile.TemporaryDirectory() as folder:
        again = replace(workspace, out=Path(folder))
        shutil.copytree(pieces, again.out / "pieces")
        for experiment in experiments:
            experiment.write(again)
        for table in _tables(experiments, again, workspace):
            kept = workspace.out / "tables" / table.name
            checked.append(table.name)
            same = kept.is_file() and table.is_file() and kept.read_bytes() == table.read_bytes()
            wrong += [] if same else [str(kept)]
    if not checked:
        raise NediffError(f"{workspace.out} has no pieces of this experiment yet.")
    if wrong:
        raise NediffError(
            f"Not what the pieces say: {', '.join(wrong)}. Run the experiment without --verify to "
            "write the tables anew."
        )
    return checked


def _tables(
    experiments: Sequence[Experiment], again: Workspace, workspace: Workspace
) -> list[Path]:
    """Those made anew, and those of these experiments that are kept without pieces."""
    kept = [
        again.out / "tables" / path.name
        for path in (workspace.out / "tables").glob("*")
        if path.stem in {experiment.name for experiment in experiments}
    ]
    return sorted({*(again.out / "tables").glob("*"), *kept})
