"""Trainings that the page has started: each is a `nediff train` in a process of its own.

What the page does is what one would type, so a run begun here can be gone on with in a terminal,
and the other way round. What is seen of a run is read from its folder.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

from nediff.data import Measurements, is_claimed, open_measurements
from nediff.diagnosis import Diagnosis, diagnose
from nediff.errors import NediffError
from nediff.restorer import Restorer
from nediff.runs import CONFIG_FILE, WEIGHTS_FILE, load_config
from nediff.training.metrics import METRICS_FILE, read_metrics

PREVIEW = 192
"""Side of the square that previews show."""
MOST_MINUTES = 60 * 24 * 7
ENDED_WELL = (0, 130, 143, -signal.SIGINT, -signal.SIGTERM)
"""Done, or stopped by Ctrl-C or the page: 128 + n from `nediff train`, −n before it listens."""
LAST_WORDS = 2.0
"""Seconds to wait for what a process that has ended wrote last."""


Kind = Literal["found", "even", "photons", "correlated"]
"""What the noise of a training is said to be; "found" leaves it to the images."""
KINDS: list[tuple[str, Kind]] = [
    ("As the images say", "found"),
    ("The same in bright and dark places", "even"),
    ("Grows with the signal, as that of photons", "photons"),
    ("Goes on from pixel to pixel", "correlated"),
]
_UNTOLD = {
    "even": ["--sigma", "auto"],
    "photons": ["--gain", "auto"],
    "correlated": ["--sigma", "correlated"],
}
"""Where the user says other than the diagnosis, `train` estimates how strong it is."""


@dataclass(frozen=True)
class Look:
    """What was found in a folder of noisy images, and a square of one of them to watch."""

    source: str
    found: Diagnosis

    @property
    def advised(self) -> Kind:
        """The kind of noise that the diagnosis recommends to train for."""
        first, second = self.options()[:2]
        if first == "--gain":
            return "photons"
        return "correlated" if second == "correlated" else "even"

    @property
    def words(self) -> str:
        """Of the noise, for the page."""
        (words,) = [words for words, kind in KINDS if kind == self.advised]
        return (
            f"This is what the images say of themselves. Their noise: {words[0].lower()}{words[1:]}"
            ". Training takes it so, unless you say otherwise under “Noise”."
        )

    def options(self, kind: Kind = "found") -> list[str]:
        """How `train` is told of the noise: as the diagnosis advises, or of another kind."""
        if kind != "found" and kind != self.advised:
            return _UNTOLD[kind]
        words = shlex.split(self.found.command)  # nediff train DATA ... --out runs/restorer
        return words[3:-2]

    def command(self, out: str, minutes: float | None, kind: Kind = "found") -> str:
        """What one would type for the training of the page."""
        words = ["nediff", "train", self.source, *self.options(kind), "--out", out.strip()]
        return shlex.join([*words, "--minutes", f"{minutes or 0.0:g}"])


def look(source: str) -> Look:
    """Diagnose the images of a folder, a glob or a file."""
    if not source.strip():
        raise NediffError("Name a folder of noisy images first.")
    return Look(source.strip(), diagnose(open_measurements(source.strip()), source.strip()))


@dataclass
class _Running:
    process: subprocess.Popen[str]
    words: list[str] = field(default_factory=list)
    """The lines it has written, the newest last."""
    stopped: bool = False
    listener: threading.Thread | None = None
    """Reads these lines."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs; then its last words have been read."""
        code = self.process.poll()
        if code is not None and self.listener is not None:
            self.listener.join(LAST_WORDS)
        return code


@dataclass(frozen=True)
class State:
    """How a run is: its curve, the steps it will have, and whether it is under way."""

    running: bool
    steps: int
    rows: list[tuple[int, float, float]]
    """(step, seconds, estimated PSNR)."""
    words: str
    since: float = 0.0
    """Seconds since the last row."""
    exit_code: int | None = None
    """Of the process, if it was one of the page and has ended."""
    every: int = 0
    """Steps between two checks on held-out images."""

    @property
    def failed(self) -> bool:
        """Whether its process ended by a mistake, and not because it was done or stopped."""
        return self.exit_code is not None and self.exit_code not in ENDED_WELL

    @property
    def step(self) -> int:
        """The last step that was validated."""
        return self.rows[-1][0] if self.rows else 0

    @property
    def about(self) -> int:
        """The step it should be at by now, at the rate it had, but not past its next validation."""
        if not self.running or not self.rows:
            return self.step
        step, seconds, _ = self.rows[-1]
        between = step - self.rows[-2][0] if len(self.rows) > 1 else step
        gone = int(self.since * step / max(seconds, 1e-9))
        return min(step + min(gone, between), self.steps)

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return not self.running and 0 < self.steps <= self.step


class Trainings:
    """By run folder. They go on when the page is closed, and are stopped, and saved, at exit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Path, _Running] = {}

    def start(self, source: str, out: str, minutes: float, options: list[str]) -> None:
        """Begin a run; raises what `nediff train` would say of the folder."""
        folder = _folder(out)
        if (folder / CONFIG_FILE).exists():
            raise NediffError(f"{folder} already holds a run; resume it, or name another folder.")
        if not 0 < minutes <= MOST_MINUTES:
            raise NediffError(f"Train for more than 0 and at most {MOST_MINUTES} minutes.")
        told = ["--minutes", f"{minutes:g}", *options]
        self._run(folder, ["train", "--out", str(folder), *told, "--", source])

    def resume(self, source: str, out: str) -> None:
        """Go on with a run that was stopped."""
        folder = _folder(out)
        load_config(folder)
        self._run(folder, ["train", "--out", str(folder), "--resume", "--", source])

    def _run(self, folder: Path, words: list[str]) -> None:
        command = [sys.executable, "-m", "nediff", *words]
        with self._lock:
            known = self._known.get(folder)
            if known is not None and known.process.poll() is None:
                raise NediffError(f"A training in {folder} is under way already.")
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C in the terminal is for the app, which stops it
                env=os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"},
            )
            running = _Running(process)
            self._known[folder] = running
        assert process.stderr is not None
        listener = threading.Thread(target=_listen, args=(process.stderr, running), daemon=True)
        listener.start()
        running.listener = listener

    def stop(self, out: str) -> bool:
        """Ask a run to save itself and end; False if none is under way there."""
        with self._lock:
            known = self._known.get(_folder(out))
        if known is None or known.process.poll() is not None:
            return False
        if not known.stopped:  # a second signal would not wait for the files
            known.stopped = True
            known.process.send_signal(signal.SIGTERM)
        return True

    def state(self, out: str) -> State | None:
        """Of the run in a folder, whoever trains it; None where there is none."""
        folder = _folder(out)
        with self._lock:
            known = self._known.get(folder)
        exit_code = None if known is None else known.exit_code
        running = known is not None and exit_code is None
        if known is None and not (folder / CONFIG_FILE).exists():
            return None
        running = running or is_claimed(folder)  # by a terminal, perhaps
        steps = every = 0
        if (folder / CONFIG_FILE).exists():
            training = load_config(folder).training
            steps, every = training.steps, min(training.validate_every, training.steps)
        rows = [
            (int(r["step"]), float(r["seconds"]), float(r["estimated_psnr"]))
            for r in read_metrics(folder)
        ]
        words = known.words[-1] if known is not None and known.words else ""
        if known is not None and known.stopped and running:
            words = "stopping: it finishes the step at hand and saves"
        ended = None if running else exit_code
        return State(running, steps, rows, words, _age(folder / METRICS_FILE), ended, every)

    def close(self, patience: float = 60.0) -> None:
        """Stop all, and wait until they are saved."""
        with self._lock:
            folders = [f for f, known in self._known.items() if known.process.poll() is None]
        for folder in folders:
            self.stop(str(folder))
        for folder in folders:
            try:
                self._known[folder].process.wait(patience)
            except subprocess.TimeoutExpired:
                self._known[folder].process.kill()


def _age(file: Path) -> float:
    """Seconds since a file was written; 0 where there is none."""
    try:
        return max(time.time() - file.stat().st_mtime, 0.0)
    except OSError:
        return 0.0


def _listen(stream: IO[str], running: _Running, kept: int = 200) -> None:
    for line in stream:
        if line.strip():
            running.words.append(line.strip())
            del running.words[:-kept]


def _folder(out: str) -> Path:
    if not out.strip():
        raise NediffError("Name a folder for the run first.")
    return Path(out.strip()).expanduser().absolute()


def preview(source: str, out: str) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """A square of the first image, noisy and as the run restores it now (C, h, w), unit range.

    None while the run has no weights yet, or for measurements that are no images.
    """
    folder = _folder(out)
    if not (folder / WEIGHTS_FILE).exists():
        return None
    restorer = Restorer.load(folder)
    if restorer.problem.kind != "denoising":
        return None
    images = open_measurements(source, range=restorer.range, axes=restorer.config.data.axes)
    noisy = _square(images)
    sigmas = restorer.config.data.sigmas
    sigma = None if sigmas is None else restorer.problem.sigma
    return noisy, restorer.restore(noisy, sigma)


def _square(images: Measurements) -> NDArray[np.float32]:
    height, width = images.size(0)
    high, wide = min(height, PREVIEW), min(width, PREVIEW)
    return images.crop(0, (height - high) // 2, (width - wide) // 2, high, wide)
