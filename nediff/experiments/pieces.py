"""Pieces of work whose results are kept: an experiment is a list of them and a way to show them.

A piece is a function of its settings alone and ends in one JSON file. What is finished is never
run again; a training that was interrupted goes on where it was. So a run of many hours can be
killed at any moment and restarted, and ends in the same tables.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nediff import __version__
from nediff.config import RecipeConfig
from nediff.data import atomic_path
from nediff.errors import NediffError
from nediff.experiments.scales import Scale
from nediff.training.schedule import ema_of

if TYPE_CHECKING:
    from nediff.training.loop import Observer

Result = dict[str, Any]
UNSAID: Result = {"optimizer": "muon", "learning_rate": 1e-3, "warmup": 50}
"""How every network was trained as long as pieces did not say it."""


class _Part(Result):
    """Of the file of a piece: what is asked for and is not in it is a sentence."""

    def __init__(self, path: Path, part: Result) -> None:
        super().__init__(part)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise NediffError(
            f"{self.path} has no '{name}', which a table needs; remove it to run this piece again."
        )


@dataclass(frozen=True)
class Workspace:
    """Where an experiment finds its images and leaves what it makes."""

    scale: Scale
    out: Path
    """Results: pieces/, tables and figures; small, to be kept with the code."""
    runs: Path
    """Trained networks and their states; large, for this machine only."""
    data: Path | None = None
    weights: Path | None = None
    """The networks of LPIPS and FID-768; without them …"""
    download: bool = False
    """… let torchmetrics download those of LPIPS and FID, or leave these metrics out."""
    observer: Observer | None = None
    """Hears of the steps of a training."""
    source: Path | None = None
    """Where the pieces are, if not in ``out``: tables are made elsewhere to be compared."""

    def piece_path(self, key: str) -> Path:
        """The file of a finished piece."""
        return (self.source or self.out) / "pieces" / f"{key}.json"

    def kept_model(self, key: str) -> Path:
        """The folder of a model that is kept with the results."""
        return self.out / "models" / key

    def finished(self, key: str) -> bool:
        """Whether that file is there."""
        return self.piece_path(key).is_file()

    @property
    def perceptual(self) -> bool:
        """Whether LPIPS and FID can be had."""
        return self.weights is not None or self.download

    def record(self, key: str) -> Result | None:
        """The file of a finished piece; None while it is not."""
        if not self.finished(key):
            return None
        path = self.piece_path(key)
        try:
            record: Result = json.loads(
                path.read_text(encoding="utf-8"), object_hook=lambda part: _Part(path, part)
            )
            missing = {"settings", "perceptual", "result"} - record.keys()
        except (ValueError, AttributeError):
            missing = {"everything"}
        if missing:
            raise NediffError(f"{path} is damaged; remove it to run this piece again.")
        return record

    def result(self, key: str) -> Result | None:
        """What a finished piece found; None while it is not."""
        record = self.record(key)
        return None if record is None else record["result"]


@dataclass(frozen=True)
class Piece:
    """One unit of work. ``minutes`` are those of one core of a laptop, for the plan."""

    key: str
    minutes: float
    settings: Result
    run: Callable[[Workspace], Result]
    needs: tuple[str, ...] = ()
    """Pieces that have to be finished first: they train what this one uses."""
    perceptual: bool = False
    """Whether it has LPIPS and FID, if their networks are at hand."""


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the paper, or one that its reader would ask for."""

    name: str
    words: str
    """One line for the list of experiments."""
    pieces: Callable[[Workspace], list[Piece]]
    show: Callable[[Workspace], list[Path]]
    """Write the tables and figures from the pieces that are finished; returns the files."""

    def write(self, workspace: Workspace) -> list[Path]:
        """``show``, if any piece is finished."""
        begun = any(workspace.finished(piece.key) for piece in self.pieces(workspace))
        return self.show(workspace) if begun else []


def run_piece(piece: Piece, workspace: Workspace) -> None:
    """Do the work and write the file, whole or not at all; nothing if it is there.

    One thread: the last digits of a sum depend on their number, and small networks gain nothing.
    """
    import torch

    if not unfinished([piece], workspace):
        return
    torch.set_num_threads(1)
    started = time.process_time()
    result = piece.run(workspace)
    record = {
        "key": piece.key,
        "scale": workspace.scale.name,
        "settings": piece.settings,
        "perceptual": piece.perceptual and workspace.perceptual,
        "result": result,
        "cpu_minutes": round((time.process_time() - started) / 60, 2),
        "made_by": provenance(),
    }
    write_text(workspace.piece_path(piece.key), as_json(record))


def as_json(record: Result) -> str:
    """Readable, with a list of numbers on one line."""
    return _indented(record, "") + "\n"


def _indented(value: Any, margin: str) -> str:
    inner = margin + " "
    if isinstance(value, dict) and value:
        lines = [f"{json.dumps(k)}: {_indented(v, inner)}" for k, v in value.items()]
        brackets = "{}"
    elif isinstance(value, list) and any(isinstance(v, (dict, list, str)) for v in value):
        lines, brackets = [_indented(v, inner) for v in value], "[]"
    else:
        return json.dumps(value, allow_nan=False)
    body = f",\n{inner}".join(lines)
    return f"{brackets[0]}\n{inner}{body}\n{margin}{brackets[1]}"


def rounded(value: Any, digits: int = 6) -> Any:
    """Floats to so many significant digits, in lists and dicts too."""
    if isinstance(value, dict):
        return {k: rounded(v, digits) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(v, digits) for v in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def write_text(path: Path, text: str) -> Path:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def unfinished(pieces: Sequence[Piece], workspace: Workspace) -> list[Piece]:
    """Each piece once, in order, without those that are done as they would be done now."""
    once = {piece.key: piece for piece in pieces}
    return [piece for piece in once.values() if not _done(piece, workspace)]


def _with_all_fields(settings: Result) -> Result:
    """Settings of an older version: what it could not say yet, as it was then."""
    if "recipe" not in settings:
        return settings
    recipe = RecipeConfig.model_validate(settings["recipe"])
    training = UNSAID | {"ema": ema_of(settings["steps"])}
    return {"training": training} | settings | {"recipe": recipe.model_dump(mode="json")}


def other_settings(piece: Piece, record: Result) -> list[str]:
    """Where a finished piece has other settings than it would be made with now, in words."""
    return _differences(
        _with_all_fields(record["settings"]), json.loads(json.dumps(piece.settings))
    )


def _differences(then: Result, now: Result) -> list[str]:
    """Where two settings differ, also within those that have parts."""
    out = []
    for name in sorted({*then, *now}):
        old, new = then.get(name, "none"), now.get(name, "none")
        if isinstance(old, dict) and isinstance(new, dict):
            out += [f"{name}: {words}" for words in _differences(old, new)]
        elif old != new:
            out.append(f"{name} {old} instead of {new}")
    return out


def _done(piece: Piece, workspace: Workspace) -> bool:
    """Whether it is finished: with these settings, and with all metrics there are."""
    record = workspace.record(piece.key)
    if record is None:
        return False
    other = other_settings(piece, record)
    if other:
        raise NediffError(
            f"{workspace.piece_path(piece.key)} was made with other settings than this version "
            f"has ({'; '.join(other)}); remove it, and what it trained, to make it anew."
        )
    return bool(record["perceptual"]) or not (piece.perceptual and workspace.perceptual)


def provenance() -> dict[str, str]:
    """The code and the versions that made a result."""
    import torch

    return {
        "nediff": __version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "deepinv": version("deepinv"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def _commit() -> str:
    """The commit of the checkout this code runs from; empty for an installed package."""
    here = Path(sys.modules["nediff"].__file__ or "").parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return found.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", ".")
        return git("rev-parse", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return ""
