"""`nediff train`."""

from __future__ import annotations

import math
import platform
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.progress import Progress, TaskID

from nediff.cli.console import bar, console, counting, refuse_json_folder, say, write_json
from nediff.cli.correlated import correlated_noise
from nediff.cli.inputs import settle_range, simulated
from nediff.cli.launch import use_all_devices
from nediff.cli.learn import LearningStopped, LearnRequest, learned_level
from nediff.cli.levels import (
    Level,
    Simulated,
    Told,
    estimated_level,
    image_names,
    in_words,
    sigmas_of,
    warn_if_correlated,
    with_levels,
)
from nediff.cli.operator import (
    OperatorOptions,
    problem_of,
    recipe_of,
    refuse_misplaced,
    refuse_missing,
    refuse_other_operator,
)
from nediff.cli.photons import UntoldPhotons, estimated_photons, refuse_too_dark
from nediff.cli.seen import say_what_is_seen
from nediff.cli.signals import WHOLE, Stopper, handling, leave
from nediff.config import RunConfig, SigmaConfig
from nediff.data import (
    IntensityRange,
    Measurements,
    PhotonNoise,
    Sigmas,
    StabilisedRange,
    Units,
    check_sigma,
    claimed,
    open_measurements,
    sigma_to_unit,
)
from nediff.data.shards import public_name
from nediff.errors import NediffError
from nediff.losses import NO_ERROR, decibels_in_words
from nediff.networks import build_denoiser, count_parameters
from nediff.problem import Problem
from nediff.processes import Processes, joined
from nediff.report.run import describe_run
from nediff.runs import CONFIG_FILE, holds_run, load_config, load_problem, load_sigmas, range_of
from nediff.training.fitting import (
    Plan,
    check_folder,
    check_measurements,
    check_minutes,
    plan_run,
    refuse_other_data,
    run_training,
    start_folder,
    write_inputs,
)
from nediff.training.loop import keeps_newest
from nediff.training.tracking import check_trackers

_WANTING = "--simulate photons needs --gain, a number, and --read-noise if there is any."

Range = tuple[float, float] | IntensityRange


@dataclass(frozen=True)
class TrainRequest:
    """What the user asked for."""

    data: str
    out: Path
    sigma: Told | None
    units: Units
    simulate: Simulated | None
    range: tuple[float, float] | None
    axes: str | None
    resume: bool
    plan: Plan
    operator: OperatorOptions = field(default_factory=OperatorOptions)
    photons: PhotonNoise | UntoldPhotons | None = None
    """Noise that depends on the signal, instead of ``sigma``."""
    json_file: Path | None = None
    track: tuple[str, ...] = ()
    """Names of trackers."""
    typed: frozenset[str] = frozenset()
    """Names of the parameters that were given: those left at their defaults say nothing."""

    @property
    def told(self) -> Level | None:
        """The noise level that was given, if it was; one to be estimated was not."""
        return None if isinstance(self.sigma, str) else self.sigma


class TrainingBar:
    """Shows steps, rate, time left, and the PSNR estimated from held-out noisy images."""

    def __init__(self, progress: Progress, task: TaskID, config: RunConfig | None = None) -> None:
        self.progress, self.task, self.config = progress, task, config
        self.started, self.first, self.done = time.monotonic(), -1, 0
        self.psnr, self.impossible, self.newest = "", False, False

    def on_step(self, step: int, steps: int) -> None:
        """Move the bar."""
        if self.first < 0:
            self.first = step - 1
        self.done = step
        rate = (step - self.first) / max(time.monotonic() - self.started, 1e-9)
        note = f"{rate:.1f} steps/s {self.psnr}"
        self.progress.update(self.task, completed=step, total=steps, note=note)

    def on_validation(self, step: int, estimated_psnr: float, best: bool) -> None:
        """Show the newest estimate; off a terminal, a line each."""
        self.psnr = f"· held-out ≈ {decibels_in_words(estimated_psnr)}"
        self.impossible = estimated_psnr >= NO_ERROR
        if self.config is not None and keeps_newest(self.config, step):
            if not self.newest:
                say(
                    "from now on the newest weights are kept: where the noise was estimated, "
                    "held-out images cannot say which are best"
                )
            self.newest = True
        if not console.is_terminal:
            kept = self.newest or self.impossible
            mark = " (kept)" if kept else " (best)" if best else ""
            say(f"step {step}: estimated PSNR {decibels_in_words(estimated_psnr)}{mark}")

    def on_spread(self, step: int, steps: int) -> None:
        """A bar of its own; off a terminal, one line."""
        if step == 1:
            what = "learning how uncertain unmeasured pixels are"
            if not console.is_terminal:
                say(what)
            self.task = self.progress.add_task(what, total=steps, note="")
        self.progress.update(self.task, completed=step)


def run_train(request: TrainRequest) -> int:
    """Train or resume; returns the exit code.

    What can differ between processes is settled by the main one.
    """
    refuse_json_folder(request.json_file)
    check_trackers(request.track)
    use_all_devices()
    processes = joined()
    processes.told(lambda: check_folder(request.out, new=not request.resume))
    with claimed(request.out):
        return _run_train(request, processes)


def _run_train(request: TrainRequest, processes: Processes) -> int:
    existing = _as_config(processes.told(lambda: _existing(request)))
    refuse_conflicts(request, existing)
    stopper, micro_batch, track = Stopper(), request.plan.micro_batch, request.track
    if existing is not None or request.sigma == "learn":  # which is kept as it goes
        leave(WHOLE)
    if existing is None:
        if request.resume:
            say(f"there is no run in {request.out} to go on with; a new one begins")
        try:
            config, measurements, problem = _planned(request)
        except LearningStopped as stopped:
            return stopped.exit_code
        planned = config.model_dump(mode="json")
        config = _as_config(processes.told(lambda: planned)) or config
        _refuse_other_files(measurements, config)
        sigmas = measurements.sigmas
        # from here on there is a run: whoever stops it now finds it saved
        with handling(stopper.handle):
            leave(WHOLE)
            processes.told(lambda: start_folder(request.out, config, problem, sigmas))
            code = train_with_bar(
                config, measurements, request.out, micro_batch, track=track, stopper=stopper
            )
    else:
        config, measurements = existing, _reopened(request, existing)
        code = train_with_bar(config, measurements, request.out, micro_batch, track=track)
    if processes.main:
        write_json(describe_run(request.out).to_dict(), request.json_file)
    return code


def _existing(request: TrainRequest) -> dict[str, Any] | None:
    """What the run in --out was begun with, if there is one and it may be gone on with."""
    check_folder(request.out, new=not request.resume)
    return load_config(request.out).model_dump(mode="json") if holds_run(request.out) else None


def _as_config(values: dict[str, Any] | None) -> RunConfig | None:
    return None if values is None else RunConfig.model_validate(values)


def _refuse_other_files(measurements: Measurements, config: RunConfig) -> None:
    """All processes must see the same data."""
    if measurements.fingerprint != config.data.fingerprint:
        raise NediffError(
            f"On the machine {platform.node()} DATA are not the files that the main process sees; "
            "name data that all machines have, or a URL."
        )


def refuse_conflicts(request: TrainRequest, existing: RunConfig | None) -> None:
    """Options that contradict each other or a run to resume, before any data is read."""
    plan = request.plan
    if plan.minutes is not None and plan.steps is not None:
        raise NediffError("Give --minutes or --steps, not both.")
    if plan.minutes is not None:
        check_minutes(plan.minutes)
    if existing is not None:
        refuse_changes(request, existing)
        problem = load_problem(request.out, existing)
        refuse_other_operator(request.operator, existing, problem, request.out)
        return
    data = Path(request.data).expanduser()
    if data.is_dir() and data.resolve() == request.out.resolve():
        raise NediffError(f"--out {request.out} is the folder of the images; choose another one.")
    refuse_misplaced(request.operator, request.operator.kind)
    recipe = recipe_of(request.operator, plan.recipe)
    refuse_missing(request.operator, request.simulate is not None)
    _refuse_noise(request)
    if recipe.needs_clean and request.simulate is None:
        raise NediffError(
            f"The {recipe.name} recipe needs clean images: give them as DATA, with --simulate."
        )


def _refuse_noise(request: TrainRequest) -> None:
    """The noise must be told once, in one way."""
    if isinstance(request.photons, UntoldPhotons) and request.simulate is not None:
        raise NediffError(_WANTING)
    if request.photons is not None:
        if request.sigma is not None or request.simulate not in (None, "photons"):
            raise NediffError(
                "--gain says how strong the noise is, by the signal; leave --sigma out, and "
                "simulate it with --simulate photons."
            )
        return
    if request.simulate == "photons":
        raise NediffError(_WANTING)
    if request.sigma is None and request.simulate is None:
        raise NediffError(
            "How strong is the noise? Give its standard deviation with --sigma, as a fraction of "
            "the intensity range, or in the data's units with --units data; or a CSV file with "
            "that of each image; or, where it depends on the signal, --gain and --read-noise. "
            "Unknown, it can be estimated (--sigma auto, --gain auto) or learned (--sigma learn)."
        )
    if None not in (request.told, request.simulate) and request.told != request.simulate:
        raise NediffError(
            f"--simulate {in_words(request.simulate)} adds noise of that level, so --sigma "
            f"{in_words(request.sigma)} would be wrong; leave --sigma out."
        )


def refuse_changes(request: TrainRequest, config: RunConfig) -> None:
    """A run is gone on with as it was begun: an option that says otherwise is refused.

    One that was not given says nothing.
    """
    training, network = config.training, config.network
    recorded: dict[str, object] = {
        "minutes": training.minutes,
        "steps": training.steps,
        "recipe": config.recipe.name,
        "size": network.size,
        "kind": network.kind,
        "crop": training.crop,
        "batch": training.batch,
        "seed": training.seed,
        "precision": training.precision,
        "compiled": training.compiled,
    }
    for name, then in recorded.items():
        now = getattr(request.plan, name)
        if name in request.typed and now != then:
            was = "without it" if then is None or then is False else f"with {then}"
            option = "--compile" if name == "compiled" else f"--{name} {now}"
            raise _other_options(request.out, was, option)


def _other_options(out: Path, was: str, now: str) -> NediffError:
    return NediffError(
        f"{out} was begun {was}, not with {now}; resume it with the options it was begun with, or "
        "choose another folder with --out."
    )


def _open(
    request: TrainRequest,
    range: Range | None,
    axes: str | None,
    photons: PhotonNoise | None = None,
) -> Measurements:
    with counting("reading images") as report:
        found: list[str] = []
        images = open_measurements(
            request.data,
            range=range,
            axes=axes,
            photons=photons,
            progress=report,
            warn=found.append,
        )
    # clean images have no noise to be wrong about, and missing values are zeros
    if request.simulate is None and request.operator.kind == "denoising":
        if photons is not None:
            refuse_too_dark(images)
        for sentence in found:
            say(f"Careful: {sentence}")
    return images


def _planned(request: TrainRequest) -> tuple[RunConfig, Measurements, Problem]:
    """Read the data and settle their units, the instrument and its noise, and the run."""
    images, problem = _settled(request)
    r = images.range
    say(
        f"{len(images)} image(s), {images.channels} channel(s); intensity range "
        f"[{r.low:g}, {r.high:g}]: {images.range_chosen}"
    )
    measurements, problem, plan = _with_its_noise(request, images, problem)
    check_sigma(problem.sigma, measurements)
    _say_noise(measurements, problem.sigma)
    check_measurements(measurements, problem)
    if isinstance(request.sigma, float) and request.simulate is None:
        warn_if_correlated(measurements, problem.kind)
    recipe = recipe_of(request.operator, request.plan.recipe)
    if problem.kind != "denoising":
        say_what_is_seen(problem, recipe)
    plan, source = replace(plan, recipe=recipe), public_name(request.data)
    with _measuring() if plan.steps is None else nullcontext():
        config = plan_run(measurements, problem, plan, source, request.axes)
    return config, measurements, problem


def _measuring() -> AbstractContextManager[object]:
    """What takes some seconds before a run that was given minutes; it turns where it can."""
    words = "measuring the training rate …"
    if not console.is_terminal:
        say(words)
    return console.status(words)


def _with_its_noise(
    request: TrainRequest, images: Measurements, problem: Problem
) -> tuple[Measurements, Problem, Plan]:
    """The measurements and the instrument with their noise: told, simulated or found."""
    if request.sigma == "correlated":
        simulated = request.simulate is not None
        plan = replace(request.plan, sigma_known=SigmaConfig(how="estimated"))
        return *correlated_noise(images, problem, simulated), plan
    if not isinstance(request.sigma, str):
        measurements, sigma = _with_noise(request, images, problem)
        plan = request.plan
        if isinstance(request.photons, UntoldPhotons):
            plan = replace(plan, sigma_known=SigmaConfig(how="estimated"))
        return measurements, replace(problem, sigma=sigma), plan
    if request.simulate is not None:
        images, _ = _with_noise(request, images, problem)
    sigma, plan = _found_noise(request, images, problem)
    return images, replace(problem, sigma=sigma), plan


def _found_noise(
    request: TrainRequest, measurements: Measurements, problem: Problem
) -> tuple[float, Plan]:
    """σ as the data tell it, and the plan with how it was found and the time that took."""
    plan = request.plan
    if request.sigma == "auto":
        estimate = estimated_level(measurements, problem.kind)
        known = SigmaConfig(how="estimated", error=estimate.total_error)
        return estimate.value, replace(plan, sigma_known=known)
    asked = LearnRequest(request.out, request.resume, plan)
    learned = learned_level(asked, measurements, problem)
    minutes = 20.0 if plan.minutes is None else plan.minutes
    spent = min(learned.seconds / 60, minutes / 2)
    plan = replace(plan, spent=spent, sigma_known=learned.describe())
    return learned.sigma.value, plan


def _with_noise(
    request: TrainRequest, images: Measurements, problem: Problem
) -> tuple[Measurements, float]:
    """The measurements with their noise, simulated or known, and its (largest) level."""
    given = request.told if request.told is not None else request.simulate
    level: float | Sigmas
    if isinstance(images.range, StabilisedRange):
        level = images.range.sigma
    elif isinstance(given, Path):
        level = sigmas_of(given, request.units, images.range, images.files, every_row=True)
    else:
        assert isinstance(given, float)  # refuse_conflicts
        level = sigma_to_unit(given, request.units, images.range)
    largest = level.largest if isinstance(level, Sigmas) else level
    if request.simulate is not None:
        return simulated(images, level, request.plan.seed, problem), largest
    return (images.with_sigmas(level) if isinstance(level, Sigmas) else images), largest


def _say_noise(measurements: Measurements, sigma: float) -> None:
    scale, sigmas = measurements.range.scale, measurements.sigmas
    if isinstance(measurements.range, StabilisedRange):
        say(f"noise by the signal; σ = {sigma:.4g} of the stabilised range")
        return
    if sigmas is None:
        say(f"noise σ = {sigma:.4g} of the range, {sigma * scale:.4g} in the data's units")
        return
    low, high = sigmas.least, sigmas.largest
    say(
        f"noise σ of each image from {low:.4g} to {high:.4g} of the range, {low * scale:.4g} to "
        f"{high * scale:.4g} in the data's units"
    )


def _settled(request: TrainRequest) -> tuple[Measurements, Problem]:
    """The data in their range, and the instrument as yet without its noise."""
    images, clean = _opened_by_noise(request), request.simulate is not None
    problem = problem_of(request.operator, images, clean)
    if not clean:
        check_measurements(images, problem)
    return settle_range(images, problem, request.range, clean), problem


def _opened_by_noise(request: TrainRequest) -> Measurements:
    """The data; in a curved range where the noise depends on the signal."""
    range, axes, photons = request.range, request.axes, request.photons
    if isinstance(photons, UntoldPhotons):
        photons = estimated_photons(_open(request, range, axes), photons, request.operator.kind)
    return _open(request, range, axes, photons)


def _reopened(request: TrainRequest, config: RunConfig) -> Measurements:
    """The data of a run, opened as it was then; refuses other data."""
    data = config.data
    recorded = range_of(config)
    _refuse_other_levels(request, config, recorded)
    measurements = _open(request, recorded, request.axes or data.axes)
    problem = load_problem(request.out, config)
    if data.sigmas is not None:
        sigmas = load_sigmas(request.out, config, image_names(measurements.files))
        measurements = measurements.with_sigmas(sigmas)
        _refuse_other_sigmas(request, measurements)
    if data.simulate is not None:
        level = data.simulate if measurements.sigmas is None else measurements.sigmas
        measurements = simulated(measurements, level, data.simulate_seed, problem)
    refuse_other_data(measurements, config, request.out, problem)
    known = measurements.sigmas
    joined().told(lambda: write_inputs(request.out, config, problem, known))
    say(f"going on with {request.out} as recorded in its {CONFIG_FILE}")
    return measurements


def _refuse_other_levels(request: TrainRequest, config: RunConfig, range: IntensityRange) -> None:
    """--sigma, --simulate and --range, where given, must be those of the run."""
    data = config.data
    pairs = [("sigma", request.told, data.sigma), ("simulate", request.simulate, data.simulate)]
    _refuse_other_photons(request, range)
    for name, given, then in pairs:
        now = sigma_to_unit(given, request.units, range) if isinstance(given, float) else given
        was = _begun_otherwise(now, then, several=data.sigmas is not None)
        if was is not None:
            raise _other_options(request.out, was, f"--{name} {in_words(now)}")
    if isinstance(request.sigma, str) and request.sigma != (found := _found_by(config)):
        was = f"with {found or 'a noise level that was given'}"
        raise _other_options(request.out, was, f"--sigma {request.sigma}")
    if request.range is not None and request.range != (range.low, range.high):
        raise NediffError(
            f"{request.out} was begun with the intensity range {range.low:g} to {range.high:g}; "
            "resume it with the same --range or without."
        )


def _found_by(config: RunConfig) -> str | None:
    """The word for --sigma that a run was begun with; None if the level was given."""
    known = config.data.sigma_known
    if config.operator.coloured:
        return "correlated"
    return {"estimated": "auto", "learned": "learn"}.get("given" if known is None else known.how)


def _begun_otherwise(now: Simulated | None, then: float | None, several: bool) -> str | None:
    """How a run was begun, if the level (unit range) or CSV given now says otherwise."""
    if now is None or now == "photons":  # _refuse_other_photons
        return None
    if then is None:
        return "without it"
    if isinstance(now, Path) != several:
        return "with a CSV of levels" if several else "with one noise level for all images"
    if isinstance(now, Path):  # compared once the images are known
        return None
    return None if math.isclose(now, then, rel_tol=1e-6) else f"with {then:g}"


def _refuse_other_photons(request: TrainRequest, range: IntensityRange) -> None:
    """--gain, --read-noise and --offset, where given, must be those of the run; so --sigma."""
    then = range.noise if isinstance(range, StabilisedRange) else None
    given = request.photons
    if isinstance(given, UntoldPhotons):  # what was estimated then holds
        other = then is None or given.offset not in (None, then.offset)
    else:
        other = given is not None and given != then
    if then is not None:
        other = other or request.sigma is not None or request.simulate not in (None, "photons")
    if other or (then is None and request.simulate == "photons"):
        was = "noise of one level for each image"
        if then is not None:
            was = f"--gain {then.gain:g} --read-noise {then.read_noise:g} --offset {then.offset:g}"
        raise NediffError(
            f"{request.out} was begun with {was}; resume it with the options it was begun with, or "
            "choose another folder with --out."
        )


def _refuse_other_sigmas(request: TrainRequest, measurements: Measurements) -> None:
    """A CSV file of levels, where given again, must say what the run was begun with."""
    given = request.told if request.told is not None else request.simulate
    assert given != "photons"  # _refuse_other_photons
    now = with_levels(measurements, given, request.units, every_row=True).sigmas
    then = measurements.sigmas
    assert now is not None
    assert then is not None
    for name, level in then.by_name.items():
        if not math.isclose(now.of(name), level, rel_tol=1e-6):
            raise NediffError(
                f"{request.out} was begun with σ = {level:g} for {name}, not {now.of(name):g}; "
                "resume it with the levels it was begun with, or choose another folder with --out."
            )


def train_with_bar(
    config: RunConfig,
    measurements: Measurements,
    out: Path,
    micro_batch: int | None = None,
    how_to_go_on: str = "go on with the same command and --resume",
    track: tuple[str, ...] = (),
    stopper: Stopper | None = None,
) -> int:
    """The loop under a progress bar that Ctrl-C stops cleanly; returns the exit code.

    ``stopper`` is one that has listened for a while already.
    """
    processes, stopper = joined(), stopper or Stopper()
    with handling(stopper.handle):
        _say_what_begins(config, processes)
        with bar() as progress:
            task = progress.add_task("training", total=config.training.steps, note="")
            shown = TrainingBar(progress, task, config)
            _, finished = run_training(
                config, measurements, out, shown, stopper, micro_batch=micro_batch, track=track
            )
    if shown.impossible:
        say(
            "Careful: held-out images differ from what is restored by less than their noise is "
            "said to be; σ must be too large, and images will be restored too smooth; or many "
            "pixels are cut off at an end of the range (`nediff diagnose` tells), where there is "
            "no noise, and what is dark or bright there will be restored too grey."
        )
    if finished:
        if shown.done == 0:
            say("it was finished before: there was nothing left to train")
        say(f"done: {out} (use it with: nediff restore {out} IMAGES --out restored)")
        return 0
    steps = f"{shown.done} of {config.training.steps} steps"
    say(f"stopped after {steps} and saved in {out}; {how_to_go_on}")
    return 128 + int(processes.largest(stopper.signal or 0))


def _say_what_begins(config: RunConfig, processes: Processes) -> None:
    parameters = count_parameters(build_denoiser(config.network))
    together = f", {processes.count} processes" if processes.several else ""
    say(
        f"training '{config.network.size}' ({parameters / 1e3:.0f} k parameters), recipe "
        f"'{config.recipe.name}', {config.training.steps} steps{together}"
    )
