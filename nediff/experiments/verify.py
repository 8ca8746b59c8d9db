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
        for table in sorted((again.out / "tables").glob("*")):
            kept = workspace.out / "tables" / table.name
            checked.append(table.name)
            if not kept.is_file() or kept.read_bytes() != table.read_bytes():
                wrong.append(str(kept))
    if wrong:
        raise NediffError(
            f"Not what the pieces say: {', '.join(wrong)}. Run the experiment without --verify to "
            "write the tables anew."
        )
    return checked
