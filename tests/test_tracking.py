"""Trackers are told the settings and every row of metrics.csv, and nothing of where data lie."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nediff.errors import NediffError
from nediff.training.metrics import read_metrics
from nediff.training.tracking import check_trackers
from tests.command import SIGMA, TINY, float_folder, succeeded


class Stub:
    """In place of Accelerate's WandBTracker: remembers what it was told."""

    made: list[Stub]

    def __init__(self, project: str, **settings: Any) -> None:
        self.project, self.settings = project, settings
        self.told: dict[str, Any] = {}
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.events: list[str] = []
        Stub.made.append(self)

    def start(self) -> None:
        self.events.append("start")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.told = values

    def log(self, values: dict[str, float], step: int) -> None:
        self.rows.append((step, values))

    def finish(self) -> None:
        self.events.append("finish")


def test_wandb_is_told_what_metrics_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import accelerate.tracking

    Stub.made = []
    monkeypatch.setattr(accelerate.tracking, "WandBTracker", Stub)
    monkeypatch.setattr("nediff.training.tracking.find_spec", lambda name: object())
    data = float_folder(tmp_path / "secret" / "cells")
    command = ("train", data, "--sigma", SIGMA, "--out", tmp_path / "run", "--steps", 12, *TINY)
    succeeded(*command, "--track", "wandb")
    (tracker,) = Stub.made
    rows = read_metrics(tmp_path / "run")
    assert [step for step, _ in tracker.rows] == [int(row["step"]) for row in rows] == [10, 12]
    for (_, values), row in zip(tracker.rows, rows, strict=True):
        assert values["loss"] == float(row["loss"])
        assert values["estimated_psnr"] == float(row["estimated_psnr"])
    assert tracker.told["data.sigma"] == SIGMA
    assert tracker.told["training.steps"] == 12
    assert "secret" not in json.dumps(tracker.told)
    assert tracker.events == ["start", "finish"]
    assert all(isinstance(value, (str, int, float, bool)) for value in tracker.told.values())
    # a run that is gone on with is the same run there
    succeeded(*command, "--track", "wandb", "--resume")
    again = Stub.made[-1]
    assert again.settings["id"] == tracker.settings["id"]
    assert again.settings["resume"] == "allow"


def test_tensorboard_is_told_the_settings(tmp_path: Path) -> None:
    import yaml

    data = float_folder(tmp_path / "data")
    command = ("train", data, "--sigma", SIGMA, "--out", tmp_path / "run", "--steps", 2, *TINY)
    succeeded(*command, "--track", "tensorboard")
    (settings,) = (tmp_path / "run").rglob("hparams.yml")
    assert yaml.safe_load(settings.read_text())["training.steps"] == 2


def test_what_is_not_there_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nediff.training.tracking.find_spec", lambda name: None)
    with pytest.raises(NediffError, match=r"nediff\[tracking\]"):
        check_trackers(("wandb",))
    with pytest.raises(NediffError, match="no tracker 'mlflow'"):
        check_trackers(("mlflow",))


def test_wandb_itself_offline(tmp_path: Path) -> None:
    """The real thing, without a network: it leaves a run on the disk."""
    if find_spec("wandb") is None:
        pytest.skip("needs wandb (pip install nediff[tracking])")
    data = float_folder(tmp_path / "data")
    options = ("--sigma", SIGMA, "--out", tmp_path / "run", "--steps", 2, "--track", "wandb")
    done = subprocess.run(
        [sys.executable, "-m", "nediff", "train", data, *map(str, options), *TINY],
        env=os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
