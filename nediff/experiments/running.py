"""Runs the pieces that are not finished: one after another, or several processes at once."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from nediff.errors import NediffError
from nediff.experiments.pieces import Piece, Workspace, run_piece, unfinished


class Watcher(Protocol):
    """Who shows how far it is."""

    def begin(self, piece: Piece) -> None:
        """A piece is taken up."""

    def end(self, piece: Piece) -> None:
        """It is finished."""

    def tick(self) -> None:
        """Time has passed."""


def run_here(pieces: Sequence[Piece], workspace: Workspace, watcher: Watcher) -> None:
    """In this process, in order: what a piece needs stands before it."""
    for piece in unfinished(pieces, workspace):
        watcher.begin(piece)
        run_piece(piece, workspace)
        watcher.end(piece)


def run_in_processes(
    pieces: Sequence[Piece],
    workspace: Workspace,
    watcher: Watcher,
    jobs: int,
    command: Callable[[Piece], list[str]],
) -> None:
    """``jobs`` at a time, each a process by ``command``; what a piece needs is done first.

    What a process says goes to runs/logs. One that fails does not stop the others.
    """
    waiting = unfinished(pieces, workspace)
    running: dict[str, tuple[Piece, subprocess.Popen[bytes]]] = {}
    failed: list[str] = []
    try:
        while waiting or running:
            for piece in _ready(waiting, workspace, jobs - len(running)):
                waiting.remove(piece)
                watcher.begin(piece)
                running[piece.key] = piece, _start(command(piece), log_of(piece, workspace))
            if not running:
                break  # what is left needs a piece that failed
            time.sleep(0.2)
            watcher.tick()
            for piece, process in [r for r in running.values() if r[1].poll() is not None]:
                del running[piece.key]
                watcher.end(piece)
                if process.returncode != 0:
                    failed.append(piece.key)
    finally:
        _stop([process for _, process in running.values()])
    if failed:
        logs = workspace.runs / "logs"
        raise NediffError(f"These pieces failed: {', '.join(failed)}; see their logs in {logs}.")


def log_of(piece: Piece, workspace: Workspace) -> Path:
    """Where what its process says is kept."""
    return workspace.runs / "logs" / f"{piece.key}.log"


def _ready(waiting: list[Piece], workspace: Workspace, places: int) -> list[Piece]:
    """The next pieces that can be begun."""
    able = [p for p in waiting if all(workspace.finished(key) for key in p.needs)]
    return able[: max(0, places)]


def _start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ask them to stop, and wait until they have."""
    for process in processes:
        process.terminate()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        if process.poll() is None:
            process.kill()
