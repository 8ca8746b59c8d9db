"""`nediff` commands in processes that can be killed at a chosen moment.

Most are forks of this process, which has PyTorch imported already; they run the command itself
(nediff.cli.main.main). A share are real processes, `python -m nediff`.
"""

from __future__ import annotations

import csv
import mmap
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import torch
from safetensors.torch import load_file

SIGMA = 0.1
STEPS = 6
CALM, SAVING = 0, 1


class Deadline:
    """When a part of the campaign begins nothing new; what it did until then counts."""

    def __init__(self, minutes: float) -> None:
        self._until = time.monotonic() + 60 * minutes

    def over(self) -> bool:
        """Whether it has come."""
        return time.monotonic() > self._until


NEVER = Deadline(10**6)


@dataclass(frozen=True)
class End:
    """How a session ended: its exit code (negative for a signal), and what it said."""

    code: int
    said: str
    while_saving: bool = False


class Session:
    """One command in a process of its own."""

    def __init__(self, log: Path, *arguments: object, fork: bool = True, patch: Any = None) -> None:
        self._log, self._phase = log, mmap.mmap(-1, 16)
        words = ["nediff", *map(str, arguments)]
        self._process = None
        if fork:
            self.pid = os.fork()
            if self.pid == 0:
                _become(words, log, self._phase, patch)
        else:
            command = [sys.executable, "-m", *words]
            with log.open("wb") as out:
                self._process = subprocess.Popen(command, stdout=out, stderr=out)
            self.pid = self._process.pid

    @property
    def steps(self) -> int:
        """Of training, or networks applied, since it began, up to 255 (known of forks only)."""
        return self._phase[1]

    @property
    def saving(self) -> bool:
        """Whether it is writing its state just now (known of forks only)."""
        return self._phase[0] == SAVING

    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def wait_for(self, ready: Callable[[], bool], most: float = 120.0) -> None:
        """Until it is ready or has ended."""
        until = time.monotonic() + most
        while self.alive() and not ready() and time.monotonic() < until:
            time.sleep(0.002)

    def kill(self) -> None:
        """SIGKILL, which nothing can catch."""
        os.kill(self.pid, signal.SIGKILL)

    def end(self, most: float = 600.0) -> End:
        """Wait for it; one that hangs is killed and reported as -1000."""
        until = time.monotonic() + most
        while self.alive() and time.monotonic() < until:
            time.sleep(0.02)
        hangs = self.alive()
        if hangs:
            self.kill()
        saving = self.saving
        _, status = os.waitpid(self.pid, 0)
        if self._process is not None:
            self._process.returncode = 0  # it has been waited for
        code = -1000 if hangs else os.waitstatus_to_exitcode(status)
        return End(code, self._log.read_text(encoding="utf-8", errors="replace"), saving)


def _become(words: list[str], log: Path, phase: mmap.mmap, patch: Any) -> None:
    """In the fork: run the command with its output in a file, and end without a trace of us."""
    code = 70
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        _watch(phase)
        if patch is not None:
            patch()
        sys.argv = words
        from nediff.cli.main import main

        main()
        code = 0
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _watch(phase: mmap.mmap) -> None:
    """Let the parent see when files are being written."""
    from nediff.data import write
    from nediff.training.loop import Trainer

    def marked(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            phase[0] = SAVING
            try:
                return function(*args, **options)
            finally:
                phase[0] = CALM

        return run

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            phase[1] = min(phase[1] + 1, 255)
            return function(*args, **options)

        return run

    Trainer.step = counted(Trainer.step)  # type: ignore[method-assign]
    Trainer._save = marked(Trainer._save)  # type: ignore[method-assign]
    write.Sheet.finish = marked(write.Sheet.finish)  # type: ignore[method-assign]
    from nediff.cli import restore

    restore.Restorer.restore = counted(restore.Restorer.restore)  # type: ignore[method-assign]
    restore.LargeFile._page = counted(restore.LargeFile._page)  # type: ignore[method-assign]
    restore.write_form = marked(restore.write_form)  # type: ignore[attr-defined]


def run(log: Path, *arguments: object, **options: Any) -> End:
    """A command to its end."""
    return Session(log, *arguments, **options).end()


# --- a small run --------------------------------------------------------------------------------


def warm_up() -> None:
    """Import what the commands need, once, before anything is forked.

    Optimizers import torch._dynamo when they are made: three quarters of the time of a tiny run.
    """
    import accelerate  # noqa: F401
    import filelock  # noqa: F401
    import torch._dynamo
    import torch.utils.tensorboard

    import nediff.card
    import nediff.cli.calibrate
    import nediff.cli.main
    import nediff.cli.restore
    import nediff.cli.train  # noqa: F401

    torch.set_num_threads(1)


def picture(index: int, height: int = 24, width: int = 26) -> np.ndarray[Any, Any]:
    """A noisy one, float32."""
    y, x = np.mgrid[0:height, 0:width] / 6.0
    noise = np.random.default_rng(index).standard_normal((height, width))
    values = 0.5 + 0.3 * np.sin(x + index) * np.cos(y - 2 * index) + SIGMA * noise
    return values.astype(np.float32)


def make_data(folder: Path, count: int = 3, **size: int) -> Path:
    """TIFF files, and a CSV with the noise level of each beside the folder."""
    folder.mkdir(parents=True)
    with folder.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("name", "sigma"))
        for i in range(count):
            tifffile.imwrite(folder / f"a{i}.tif", picture(i, **size))
            writer.writerow((f"a{i}.tif", SIGMA * (1 - 0.1 * i)))
    return folder


def begin(data: Path, run: Path, steps: int = STEPS, coloured: bool = False) -> tuple[object, ...]:
    """Plan a tiny run that saves after every step; returns the command that goes on with it.

    With a noise level for each image or, ``coloured``, with correlated noise: so there is a
    sigmas.csv, or an operator.safetensors.
    """
    from nediff.data import open_measurements, read_sigmas
    from nediff.problem import Problem
    from nediff.training.fitting import Plan, plan_run, start_folder

    measurements = open_measurements(data, range=(0, 1))
    problem = Problem.denoising(SIGMA, 1)
    if coloured:
        from nediff.operators import Colour, Coloured

        frequency = np.linspace(0, 0.75, 8)
        power = (1.5 - frequency)[:, None, None] / 1.2
        problem = Problem(SIGMA, 1, Coloured(Colour(frequency, power)))
    else:
        names = [(name, name) for name in (f.name for f in measurements.files)]
        measurements = measurements.with_sigmas(read_sigmas(data.with_suffix(".csv"), names))
    plan = Plan(steps=steps, size="tiny", crop=16, batch=2)
    config = plan_run(measurements, problem, plan, str(data))
    training = config.training.model_copy(update={"validate_every": 1})
    config = config.model_copy(update={"training": training})
    start_folder(run, config, problem, measurements.sigmas)
    return ("train", data, "--out", run, "--resume")


def contents(run: Path) -> dict[str, Any]:
    """What must be equal of two runs: all tensors, and the metrics but for the clock."""
    names = ("model.safetensors", "state/state.safetensors", "state/previous.safetensors")
    found: dict[str, Any] = {name: load_file(run / name) for name in names}
    with (run / "metrics.csv").open(newline="") as file:
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    return found | {"metrics": rows}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Bit for bit."""
    if a.keys() != b.keys() or a["metrics"] != b["metrics"]:
        return False
    files = [name for name in a if name != "metrics"]
    return all(
        a[f].keys() == b[f].keys() and all(torch.equal(a[f][k], b[f][k]) for k in a[f])
        for f in files
    )


def leftovers(folder: Path) -> list[str]:
    """Files that a finished command should not leave behind."""
    hidden = (p for p in folder.rglob(".*") if p.name != ".nediff-restored")
    return [str(p.relative_to(folder)) for p in hidden]
