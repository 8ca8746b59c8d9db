"""Curves for those who watch: Weights & Biases and TensorBoard, by Accelerate's trackers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nediff.config import RunConfig
from nediff.errors import NediffError

TRACKERS = ("tensorboard", "wandb")
PROJECT = "nediff"


def check_trackers(names: tuple[str, ...]) -> None:
    """Refuse, before any work, a tracker that is not known or not installed."""
    for name in names:
        if name not in TRACKERS:
            raise NediffError(f"There is no tracker '{name}'; there are {', '.join(TRACKERS)}.")
        if find_spec(name) is None:
            raise NediffError(f"--track {name} needs it: pip install 'nediff[tracking]'.")


class Tracking:
    """Tells the trackers of a run what it is, and how it goes. Without names it does nothing.

    A resumed run goes on in the same place: it is known to Weights & Biases by its settings and
    its folder. The curves of TensorBoard are written in any case (metrics.py).
    """

    def __init__(self, names: tuple[str, ...], config: RunConfig, folder: Path | None) -> None:
        check_trackers(names)
        self._names, self._config, self._folder = names, config, folder
        self._trackers: dict[str, Any] = {}

    def start(self) -> None:
        """Open them, with every setting of the run but where its data lie."""
        for name in self._names:
            tracker = self._made(name)
            if hasattr(tracker, "start"):  # since Accelerate 1.9
                tracker.start()
            tracker.store_init_configuration(settings_of(self._config))
            self._trackers[name] = tracker

    def _made(self, name: str) -> Any:
        from accelerate.tracking import TensorBoardTracker, WandBTracker

        folder = Path() if self._folder is None else self._folder
        if name == "tensorboard":
            return TensorBoardTracker("tensorboard", logging_dir=str(folder))
        run = folder.resolve().name
        return WandBTracker(
            PROJECT, name=run, dir=str(folder), id=self._identity(run), resume="allow"
        )

    def _identity(self, run: str) -> str:
        text = run + self._config.model_dump_json()
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """A point on each curve."""
        for name, tracker in self._trackers.items():
            if name != "tensorboard":
                tracker.log(dict(values), step=step)

    def finish(self) -> None:
        """Close them."""
        for tracker in self._trackers.values():
            tracker.finish()
        self._trackers = {}


def settings_of(config: RunConfig) -> dict[str, str | int | float | bool]:
    """Flat, by dotted names, in types that every tracker takes."""
    flat: dict[str, str | int | float | bool] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else key, inner)
        elif value is not None and prefix != "data.source":
            flat[prefix] = value if isinstance(value, (str, int, float, bool)) else str(value)

    add("", config.model_dump(mode="json"))
    return flat
