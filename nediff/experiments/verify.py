"""Are the tables those of the pieces, and the pieces those of the networks kept with them?"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nediff.errors import NediffError
from nediff.experiments import scoring
from nediff.experiments.models import Model
from nediff.experiments.pieces import Experiment, Workspace
from nediff.restorer import Restorer

IMAGES = 16
"""So many are restored again by each network …"""
TOLERANCE = 0.02
"""… and their PSNR compared, dB: another processor adds up in another order."""


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


def verify_models(experiments: Sequence[Experiment], workspace: Workspace) -> list[str]:
    """The kept models that were run again; raises with those whose pieces say something else.

    One step at σ_n on the first validation images. Needs the images of the scale.
    """
    keys = {piece.key for experiment in experiments for piece in experiment.pieces(workspace)}
    kept = sorted(key for key in keys if workspace.kept_model(key).is_dir())
    wrong = [str(workspace.piece_path(key)) for key in kept if not _gives(key, workspace)]
    if wrong:
        raise NediffError(f"Not what the networks kept beside them give: {', '.join(wrong)}.")
    return kept


def _gives(key: str, workspace: Workspace) -> bool:
    """Whether the network restores the first images as well as its piece says."""
    record = workspace.record(key)
    if record is None:
        raise NediffError(f"{workspace.kept_model(key)} is a network without a piece.")
    model, result = Model.of(record["settings"]), record["result"]
    scores = result["levels"][f"{model.sigma:g}"] if "levels" in result else result["estimate"]
    found = _psnr_again(model, workspace)
    return bool(np.abs(np.subtract(found, scores["psnr"][: len(found)])).max() <= TOLERANCE)


def _psnr_again(model: Model, workspace: Workspace) -> list[float]:
    """One step at σ_n on the first validation images, by the kept weights."""
    restorer = Restorer.load(workspace.kept_model(model.key))
    everything = model.measurements(workspace, "val")
    noisy = everything.select(range(min(IMAGES, len(everything))))
    y = np.stack([noisy.image(i) for i in range(len(noisy))])
    estimate = scoring.estimates(restorer, y, model.sigma)
    psnr: list[float] = scoring.image_scores(estimate, scoring.truth_of(noisy), None)["psnr"]
    return psnr
