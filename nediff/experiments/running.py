"""Runs the pieces that are not finished: one after another, or several processes at once."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from nediff.experiments.pieces import Piece, Workspace, run_piece, unfinished


class Watcher(Protocol):
    """Who shows how far it is."""

    def begin(self, piece: Piece) -> None:
        """A piece is taken up."""

    def end(self, piece: Piece, well: bool) -> None:
        """It has ended, well or not."""

    def tick(self) -> None:
        """Time has passed."""


def run_here(pieces: Sequence[Piece], workspace: Workspace, watcher: Watcher) -> None:
    """In this process, in order: what a piece needs stands before it."""
    for piece in unfinished(pieces, workspace):
        watcher.begin(piece)
        run_piece(piece, workspace)
        watcher.end(piece, True)


def run_in_processes(
    pieces: Sequence[Piece],
    workspace: Workspace,
    watcher: Watcher,
    jobs: int,
    command: Callable[[Piece], list[str]],
) -> list[str]:
    """``jobs`` at a time, each a process by ``command``; what a piece needs is done first.

    What a process says goes to runs/logs. One that fails does not stop the others; their names
    are returned. Where there are several GPUs, each place has one of its own.
    """
    waiting = unfinished(pieces, workspace)
    running: dict[int, tuple[Piece, subprocess.Popen[bytes]]] = {}
    failed: list[str] = []
    try:
        while waiting or running:
            for piece in _ready(waiting, workspace, jobs - len(running)):
                waiting.remove(piece)
                watcher.begin(piece)
                place = min(set(range(jobs)) - running.keys())
                running[place] = piece, _start(command(piece), log_of(piece, workspace), place)
            if not running:
                break  # what is left needs a piece that failed
            time.sleep(0.2)
            watcher.tick()
            for place, (piece, process) in list(running.items()):
                if process.poll() is not None:
                    del running[place]
                    watcher.end(piece, process.returncode == 0)
                    failed += [piece.key] if process.returncode else []
    finally:
        _stop([process for _, process in running.values()])
    return failed


def log_of(piece: Piece, workspace: Workspace) -> Path:
    """Where what its process says is kept."""
    return workspace.runs / "logs" / f"{piece.key}.log"


def _ready(waiting: list[Piece], workspace: Workspace, places: int) -> list[Piece]:
    """The next pieces that can be begun."""
    able = [p for p in waiting if all(workspace.finished(key) for key in p.needs)]
    return able[: max(0, places)]


def _start(command: list[str], log: Path, place: int) -> subprocess.Popen[bytes]:
    import torch

    log.parent.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    gpus = torch.cuda.device_count()
    if gpus > 1 and "CUDA_VISIBLE_DEVICES" not in environment:
        environment["CUDA_VISIBLE_DEVICES"] = str(place % gpus)
    with open(log, "ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ask them to stop, and wait until they have."""
    for process in processes:
        process.terminate()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        if process.poll() is None:
            process.kill()
