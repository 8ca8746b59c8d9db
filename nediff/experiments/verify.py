"""Are the tables those of the pieces, and the pieces those of the networks kept with them?"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nediff.errors import NediffError
from nediff.experiments import examples, scoring
from nediff.experiments.models import Model
from nediff.experiments.pieces import Experiment, Result, Workspace, other_settings
from nediff.restorer import Restorer

IMAGES = 16
"""So many are restored again by each network …"""
TOLERANCE = 0.02
"""… and their PSNR compared, dB: another processor adds up in another order."""


def verify(experiments: Sequence[Experiment], workspace: Workspace) -> list[str]:
    """The tables that were checked; raises with those that differ or are missing.

    Needs no images and no networks: the pieces hold the scores of every image.
    """
    if not (workspace.out / "pieces").is_dir():
        raise NediffError(f"There are no results to verify in {workspace.out}.")
    _check_settings(experiments, workspace)
    checked, wrong = [], []
    with tempfile.TemporaryDirectory() as folder:
        again = replace(workspace, out=Path(folder), source=workspace.out)
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


def _check_settings(experiments: Sequence[Experiment], workspace: Workspace) -> None:
    """Refuse pieces that were not made with the settings of the plan, and say which."""
    wrong = []
    for piece in (piece for experiment in experiments for piece in experiment.pieces(workspace)):
        record = workspace.record(piece.key)
        other = [] if record is None else other_settings(piece, record)
        if other:
            wrong.append(f"{workspace.piece_path(piece.key)} ({'; '.join(other)})")
    if wrong:
        raise NediffError(f"Not made with the settings planned: {', '.join(dict.fromkeys(wrong))}.")


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


def verify_pictures(experiments: Sequence[Experiment], workspace: Workspace) -> list[str]:
    """The kept models that were shown the photograph of their set again, one step and samples;
    raises with those whose pieces of `fig-examples` say something else.

    Needs no images: below the `paper` scale the photographs come with scikit-image.
    """
    keys = {piece.key for experiment in experiments for piece in experiment.pieces(workspace)}
    kept = sorted(key for key in keys if workspace.kept_model(key).is_dir())
    shown = [key for key in kept if workspace.finished(f"examples-{key}")]
    wrong = []
    for key in shown:
        restorer = Restorer.load(workspace.kept_model(key))
        model = Model.of(_record(key, workspace)["settings"])
        found = examples.psnr_again(model, restorer, workspace)
        told: dict[str, float] = (workspace.result(f"examples-{key}") or {})["psnr"]
        if found.keys() != told.keys() or any(abs(found[k] - told[k]) > TOLERANCE for k in told):
            wrong.append(str(workspace.piece_path(f"examples-{key}")))
    if wrong:
        raise NediffError(f"Not what the networks kept beside them give: {', '.join(wrong)}.")
    return shown


def _record(key: str, workspace: Workspace) -> Result:
    """Of a network that is kept."""
    record = workspace.record(key)
    if record is None:
        raise NediffError(f"{workspace.kept_model(key)} is a network without a piece.")
    return record


def _gives(key: str, workspace: Workspace) -> bool:
    """Whether the network restores the first images as well as its piece says."""
    record = _record(key, workspace)
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
