"""`nediff train`."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.progress import Progress, TaskID

from nediff.cli.console import bar, console, counting
from nediff.config import RunConfig
from nediff.data import IntensityRange, Measurements, Units, open_measurements, sigma_to_unit
from nediff.errors import NediffError
from nediff.networks import build_denoiser, count_parameters
from nediff.problem import Problem
from nediff.recipes import recipe_named
from nediff.runs import CONFIG_FILE, load_config
from nediff.training.fit import Plan, plan_run, run_training, start_folder


@dataclass(frozen=True)
class TrainRequest:
    """What the user asked for."""

    data: str
    out: Path
    sigma: float | None
    units: Units
    simulate: float | None
    range: tuple[float, float] | None
    axes: str | None
    resume: bool
    plan: Plan


class Stopper:
    """Ctrl-C and SIGTERM ask the loop to stop after the step at hand."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Remember the signal; a second one is not waited for."""
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number

    @contextmanager
    def listening(self) -> Iterator[Stopper]:
        """Catch the signals while the loop runs."""
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(kind, self.handle) for kind in kinds]
        try:
            yield self
        finally:
            for kind, handler in zip(kinds, before, strict=True):
                signal.signal(kind, handler)


class TrainingBar:
    """Shows steps, rate, time left, and the PSNR estimated from held-out noisy images."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self.progress, self.task = progress, task
        self.started, self.first = time.monotonic(), -1
        self.psnr = ""

    def on_step(self, step: int, steps: int, loss: float) -> None:
        """Move the bar."""
        if self.first < 0:
            self.first = step - 1
        rate = (step - self.first) / max(time.monotonic() - self.started, 1e-9)
        note = f"{rate:.1f} steps/s {self.psnr}"
        self.progress.update(self.task, completed=step, total=steps, note=note)

    def on_validation(self, step: int, estimated_psnr: float, best: bool) -> None:
        """Show the newest estimate; off a terminal, a line each."""
        self.psnr = f"· held-out ≈ {estimated_psnr:.2f} dB"
        if not console.is_terminal:
            mark = " (best)" if best else ""
            console.print(f"step {step}: estimated PSNR {estimated_psnr:.2f} dB{mark}")


def run_train(request: TrainRequest) -> int:
    """Train or resume; returns the exit code."""
    refuse_conflicts(request)
    existing = (request.out / CONFIG_FILE).exists()
    if existing and not request.resume:
        raise NediffError(
            f"{request.out} already holds a run; add --resume to go on with it, or choose "
            "another folder with --out."
        )
    config, measurements = _resumed(request) if existing else _planned(request)
    if not existing:
        start_folder(request.out, config)
    return train_with_bar(config, measurements, request.out)


def refuse_conflicts(request: TrainRequest) -> None:
    """Options that contradict each other, before any data is read."""
    plan = request.plan
    if plan.minutes is not None and plan.steps is not None:
        raise NediffError("Give --minutes or --steps, not both.")
    if request.sigma is None and request.simulate is None:
        raise NediffError(
            "How strong is the noise? Give its standard deviation with --sigma, as a fraction of "
            "the intensity range, or in the data's units with --units data."
        )
    if recipe_named(plan.recipe).loss == "supervised" and request.simulate is None:
        raise NediffError(
            "The supervised recipe needs clean images: give them as DATA, with --simulate."
        )


def _open(request: TrainRequest, fixed: IntensityRange | None) -> Measurements:
    with counting("reading images") as report:
        measurements = open_measurements(
            request.data, range=fixed or request.range, axes=request.axes, progress=report
        )
    if request.simulate is None:
        return measurements
    level = sigma_to_unit(request.simulate, request.units, measurements.range)
    return measurements.simulate(level, request.plan.seed)


def _planned(request: TrainRequest) -> tuple[RunConfig, Measurements]:
    measurements = _open(request, None)
    r = measurements.range
    console.print(
        f"{len(measurements)} images, {measurements.channels} channel(s); intensity range "
        f"[{r.low:g}, {r.high:g}]: {measurements.range_chosen}"
    )
    sigma = request.sigma if request.sigma is not None else request.simulate
    assert sigma is not None  # refuse_conflicts
    level = sigma_to_unit(sigma, request.units, r)
    console.print(f"noise σ = {level:.4g} of the range, {level * r.scale:.4g} in the data's units")
    problem = Problem.denoising(level, measurements.channels)
    if request.plan.steps is None:
        console.print("measuring the training rate …")
    config = plan_run(measurements, problem, request.plan, request.data, request.axes)
    return config, measurements


def _resumed(request: TrainRequest) -> tuple[RunConfig, Measurements]:
    config = load_config(request.out)
    measurements = _open(request, IntensityRange(config.data.low, config.data.high))
    found = (len(measurements), measurements.channels, measurements.simulated)
    recorded = (config.data.images, config.data.channels, config.data.simulate)
    for name, now, then in zip(("images", "channels", "--simulate"), found, recorded, strict=True):
        if now != then:
            raise NediffError(
                f"{request.out} was trained on other data ({name}: {then} then, {now} now); "
                "resume with the same DATA and options."
            )
    console.print(f"going on with {request.out} as recorded in its {CONFIG_FILE}")
    return config, measurements


def train_with_bar(config: RunConfig, measurements: Measurements, out: Path) -> int:
    """The loop under a progress bar that Ctrl-C stops cleanly; returns the exit code."""
    parameters = count_parameters(build_denoiser(config.network))
    console.print(
        f"training '{config.network.size}' ({parameters / 1e3:.0f} k parameters), recipe "
        f"'{config.recipe.name}', {config.training.steps} steps"
    )
    stopper = Stopper()
    with stopper.listening(), bar() as progress:
        task = progress.add_task("training", total=config.training.steps, note="")
        _, finished = run_training(config, measurements, out, TrainingBar(progress, task), stopper)
    if finished:
        console.print(f"done: {out} (use it with: nediff restore {out} IMAGES --out restored)")
        return 0
    console.print(f"stopped and saved in {out}; go on with the same command and --resume")
    return 128 + (stopper.signal or 0)
