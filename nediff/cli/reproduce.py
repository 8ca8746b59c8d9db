"""`nediff reproduce`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rich.progress import Progress, TaskID
from rich.table import Table

from nediff.cli.console import bar, console, refuse_json_folder, results, say, write_json
from nediff.cli.train import TrainingBar
from nediff.errors import NediffError
from nediff.experiments.catalogue import EXPERIMENTS, all_pieces, experiments_named
from nediff.experiments.pieces import Experiment, Piece, Workspace, run_piece, unfinished
from nediff.experiments.running import log_of, run_here, run_in_processes
from nediff.experiments.scales import scale_named
from nediff.experiments.scoring import check_metrics
from nediff.experiments.verify import verify, verify_models, verify_pictures


@dataclass(frozen=True)
class ReproduceRequest:
    """What the user asked for."""

    name: str | None
    scale: str
    out: Path | None
    runs: Path | None
    data: Path | None
    weights: Path | None
    download: bool
    jobs: int
    plan: bool
    verify: bool
    piece: str | None
    tables: bool
    json_file: Path | None = None
    """For --plan."""

    def workspace(self) -> Workspace:
        """Where everything is."""
        scale = scale_named(self.scale)
        out = self.out or Path("reproduced") / scale.name
        runs = self.runs or out / "runs"
        return Workspace(scale, out, runs, self.data, self.weights, self.download)


class Overview:
    """One bar for all pieces, one below it for each that is running."""

    def __init__(self, progress: Progress, pieces: list[Piece], workspace: Workspace) -> None:
        self.progress, self.workspace = progress, workspace
        left = unfinished(pieces, workspace)
        done = len(pieces) - len(left)
        self.minutes = sum(piece.minutes for piece in left)
        self.all = progress.add_task("pieces", total=len(pieces), completed=done, note="")
        self.running: dict[str, TaskID] = {}

    def begin(self, piece: Piece) -> None:
        """A line for it."""
        self.running[piece.key] = self.progress.add_task(piece.key, total=None, note="")
        if not console.is_terminal:
            say(f"{piece.key} (about {piece.minutes:.3g} minutes)")
        self.tick()

    def end(self, piece: Piece, well: bool) -> None:
        """The line goes, the first bar moves."""
        self.progress.remove_task(self.running.pop(piece.key))
        self.minutes -= piece.minutes
        self.progress.advance(self.all, 1 if well else 0)
        if not well:
            say(f"{piece.key} failed: see {log_of(piece, self.workspace)}")
        self.tick()

    def tick(self) -> None:
        """Say how much work is left."""
        self.progress.update(self.all, note=f"≈ {max(self.minutes, 0):.3g} core-minutes left")

    def bar_of(self, key: str) -> TrainingBar:
        """For the steps of its training."""
        return TrainingBar(self.progress, self.running[key])


class _Steps:
    """Passes the steps of a training to the line of the piece that is running."""

    def __init__(self, overview: Overview) -> None:
        self.overview = overview
        self.bars: dict[str, TrainingBar] = {}

    def _bar(self) -> TrainingBar:
        key = next(reversed(self.overview.running))
        return self.bars.setdefault(key, self.overview.bar_of(key))

    def on_step(self, step: int, steps: int) -> None:
        self._bar().on_step(step, steps)

    def on_validation(self, step: int, estimated_psnr: float, best: bool) -> None:
        if console.is_terminal:
            self._bar().on_validation(step, estimated_psnr, best)

    def on_spread(self, step: int, steps: int) -> None:
        """No line of its own."""


def run_reproduce(request: ReproduceRequest) -> None:
    """Run what is not finished, then write the tables and figures."""
    refuse_json_folder(request.json_file)
    if request.json_file is not None and not request.plan:
        raise NediffError("--json is for --plan; results are in the tables' JSON files in OUT.")
    if request.name is None:
        return list_experiments()
    workspace = request.workspace()
    experiments = experiments_named(request.name)
    if request.verify:
        return verify_results(experiments, workspace)
    pieces = all_pieces(experiments, workspace)
    if request.plan:
        return show_plan(pieces, workspace, request.json_file)
    if request.piece is not None:
        return _run_one(request.piece, pieces, workspace)
    if request.tables:
        return _write(experiments, workspace)
    check_metrics(pieces, workspace)
    failed: list[str] = []
    with bar() as progress:
        overview = Overview(progress, pieces, workspace)
        if request.jobs == 1:
            run_here(pieces, replace(workspace, observer=_Steps(overview)), overview)
        else:
            command = _command(request, workspace)
            failed = run_in_processes(pieces, workspace, overview, request.jobs, command)
    _write(experiments, workspace)
    if failed:
        raise NediffError(f"These pieces failed, and what needs them: {', '.join(failed)}.")
    return None


def _write(experiments: list[Experiment], workspace: Workspace) -> None:
    """The tables and figures of the pieces that are finished."""
    for experiment in experiments:
        for path in experiment.write(workspace):
            say(str(path), results)


def verify_results(experiments: list[Experiment], workspace: Workspace) -> None:
    """The tables against the pieces and, if the images are at hand, these against networks."""
    for table in verify(experiments, workspace):
        say(f"{table}: as the pieces say", results)
    if workspace.data is None and workspace.scale.name == "paper":
        say("The networks kept with the results were not run: that needs --data.", results)
        return
    if workspace.scale.name != "paper":
        for model in verify_pictures(experiments, workspace):
            say(f"{model}: pictures as the network gives", results)
    if workspace.data is None and workspace.scale.folders:
        say("The networks were not run on the images of the set: that needs --data.", results)
        return
    for model in verify_models(experiments, workspace):
        say(f"{model}: as the network gives", results)


def list_experiments() -> None:
    """Names and what they are."""
    table = Table("experiment", "what it shows")
    for experiment in EXPERIMENTS.values():
        table.add_row(experiment.name, experiment.words)
    table.add_row("all", "everything above, what they share once")
    results.print(table)


def show_plan(pieces: list[Piece], workspace: Workspace, json_file: Path | None = None) -> None:
    """What is finished and what is left, with the minutes of one core."""
    left = {piece.key for piece in unfinished(pieces, workspace)}
    rows = [{"piece": p.key, "minutes": p.minutes, "finished": p.key not in left} for p in pieces]
    write_json({"scale": workspace.scale.name, "pieces": rows}, json_file)
    table = Table("piece", "minutes of one core", "state")
    for piece in pieces:
        state = "to do" if piece.key in left else "finished"
        table.add_row(piece.key, f"{piece.minutes:.3g}", state)
    results.print(table)
    minutes = sum(piece.minutes for piece in pieces)
    to_do = sum(piece.minutes for piece in pieces if piece.key in left)
    say(
        f"{len(pieces)} pieces, {minutes / 60:.3g} core-hours; left: {len(left)} pieces, "
        f"{to_do / 60:.3g} core-hours.",
        results,
    )


def _run_one(key: str, pieces: list[Piece], workspace: Workspace) -> None:
    """A single piece, for one of several processes."""
    found = [piece for piece in pieces if piece.key == key]
    if not found:
        raise NediffError(f"There is no piece '{key}' in this experiment; see --plan.")
    missing = [need for need in found[0].needs if not workspace.finished(need)]
    if missing:
        raise NediffError(f"{key} needs these pieces first: {', '.join(missing)}.")
    check_metrics(found, workspace)
    run_piece(found[0], workspace)


def _command(request: ReproduceRequest, workspace: Workspace) -> Callable[[Piece], list[str]]:
    """How to run one piece in a process of its own."""
    base = [sys.executable, "-m", "nediff", "reproduce", str(request.name)]
    base += ["--scale", request.scale, "--out", str(workspace.out), "--runs", str(workspace.runs)]
    for option, value in (("--data", request.data), ("--weights", request.weights)):
        base += [] if value is None else [option, str(value)]
    base += ["--download"] if request.download else []
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return lambda piece: [*base, "--piece", piece.key]
