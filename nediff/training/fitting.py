"""From measurements to a Restorer: plan the run, train it, resume it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from pydantic import ValidationError

from nediff import __version__
from nediff.config import (
    DataConfig,
    NetworkConfig,
    OptimizerName,
    PhotonConfig,
    PrecisionName,
    RecipeConfig,
    RunConfig,
    SigmaConfig,
    SigmasConfig,
    TrainingConfig,
)
from nediff.data import (
    IntensityRange,
    Measurements,
    PhotonNoise,
    Sigmas,
    StabilisedRange,
    check_sigma,
    claimed,
    open_measurements,
    split,
)
from nediff.data.settle import refuse_curved, settle_range
from nediff.errors import NediffError
from nediff.networks import build_denoiser
from nediff.operators import Coloured, Convolution, Fourier, Identity, Mask
from nediff.problem import Problem
from nediff.processes import joined, launched
from nediff.recipes import recipe_named
from nediff.restorer import Restorer
from nediff.runs import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    complaint,
    describe_operator,
    holds_run,
    keep_spares,
    load_problem,
    save_config,
    save_problem,
    save_sigmas,
)
from nediff.training.loop import Observer, Trainer
from nediff.training.pace import Pace
from nediff.training.precision import check_precision
from nediff.training.progress import watching
from nediff.training.schedule import ema_of
from nediff.training.spread import can_learn_spread, with_spread
from nediff.training.state import STATE_FILE, has_state

LOOKS, APART = (4, 20), 80
"""How often a run looks at its held-out images, the least and the most; in between after so many
steps. One look takes as long as some seven steps, which a short run learns more by."""
SHORT_RUN = 1500
"""Steps; shorter ones learn at a higher rate."""
CROPS, FEW_STEPS = 16, 500
"""In a batch, unless there is time for so few steps only: then half as many, for more of them."""
BEST_NETWORKS = {"mri": "unrolled", "blur": "unrolled"}
"""The kind of network to use with an operator, where it is not `edm`; see benchmarks/operators.py.
MRI mixes distant pixels, which a first guess cannot show. For blur unrolling gains little."""


@dataclass(frozen=True)
class Plan:
    """What to train, before the number of steps is known. Give minutes or steps."""

    minutes: float | None = None
    steps: int | None = None
    recipe: str | RecipeConfig = "default"
    size: str = "small"
    kind: str | None = None
    """None for what does best with the operator."""
    crop: int = 40
    batch: int | None = None
    """None for 16 crops (8 in runs of a minute) or, where measurements are taken whole, as many as
    have as many pixels."""
    seed: int = 0
    spent: float = 0.0
    """Minutes of the budget that have been used already, to learn σ."""
    sigma_known: SigmaConfig | None = None
    """How σ came to be known, for the record; None for given."""
    micro_batch: int | None = None
    """The largest part of a batch that is taken at once; the result does not depend on it."""
    precision: PrecisionName = "fp32"
    compiled: bool = False


def fit(
    measurements: Measurements | Any,
    problem: Problem | PhotonNoise | float | ArrayLike,
    *,
    minutes: float | None = None,
    steps: int | None = None,
    recipe: str | RecipeConfig = "default",
    size: str = "small",
    crop: int = 40,
    seed: int = 0,
    out: str | Path | None = None,
    observer: Observer | None = None,
) -> Restorer:
    """Learn a Restorer from noisy measurements alone.

    ``measurements`` are `Measurements`, or anything `open_measurements` reads (a folder, a
    file, an array), in the range that fits the problem; `Measurements` keep theirs. ``problem``
    is a `Problem`, or just σ_n in unit intensities for denoising; an array of them, one for each
    image, where these are not equally noisy. (With an operator, give `Measurements` with_sigmas
    and the largest of them to the problem.) Or it is a `PhotonNoise`, where the noise depends on
    the signal; `Measurements` must then have been opened with it. Without a budget it trains for
    20 minutes. ``recipe`` is a name or a `RecipeConfig`. ``out`` is a run folder to keep
    everything in. ``observer`` is told how it goes; without one, a line on a terminal is.
    """
    source = str(measurements) if isinstance(measurements, (str, Path)) else "(in memory)"
    measurements, problem = _settled(measurements, problem)
    if minutes is not None and steps is not None:
        raise NediffError("Give minutes or steps, not both.")
    plan = Plan(minutes=minutes, steps=steps, recipe=recipe, size=size, crop=crop, seed=seed)
    folder = None if out is None else Path(out)
    if folder is not None:
        check_folder(folder)
    with nullcontext() if folder is None else claimed(folder):
        config = plan_run(measurements, problem, plan, source)
        if folder is not None:
            start_folder(folder, config, problem, measurements.sigmas)
        with watching(observer) as told:
            restorer, _ = run_training(config, measurements, folder, told, problem=problem)
    return restorer


def _settled(
    data: Any, problem: Problem | PhotonNoise | float | ArrayLike
) -> tuple[Measurements, Problem]:
    """The data opened and in a range that fits the instrument, which can have measured them."""
    given: IntensityRange | None = None
    if isinstance(data, Measurements):
        images, given = data, data.range
    else:
        photons = problem if isinstance(problem, PhotonNoise) else None
        images = open_measurements(data, photons=photons)
    if isinstance(problem, PhotonNoise):
        if not (isinstance(images.range, StabilisedRange) and images.range.noise == problem):
            raise NediffError("Open the measurements with photons=, the noise they are to have.")
        problem = images.range.sigma
    if not isinstance(problem, Problem):
        if np.ndim(problem) > 0:
            images = images.with_sigmas(problem)
        largest = float(np.max(np.asarray(problem, dtype=np.float64)))
        problem = Problem.denoising(largest, images.channels)
    check_measurements(images, problem)
    clean = images.simulated is not None
    return settle_range(images, problem, given, clean), problem


def plan_run(
    measurements: Measurements, problem: Problem, plan: Plan, source: str, axes: str | None = None
) -> RunConfig:
    """Check the data against the plan and fix every setting, the number of steps too."""
    _check_stabilised(measurements, problem)
    check_sigma(problem.sigma, measurements)
    check_measurements(measurements, problem)
    if problem.operator.crop_step is not None and measurements.min_size < plan.crop:
        raise NediffError(
            f"The smallest image is {measurements.min_size} pixels on a side, smaller than the "
            f"training crop of {plan.crop}; give a smaller crop (--crop) or leave that image out."
        )
    try:
        config = _configure(measurements, problem, plan, source, axes)
    except ValidationError as error:
        raise NediffError(f"This cannot be trained: {complaint(error)}.") from error
    if plan.steps is None:
        minutes = 20.0 if plan.minutes is None else plan.minutes
        config = _within(minutes, config, measurements, problem, plan)
    return config


def _within(
    minutes: float, config: RunConfig, measurements: Measurements, problem: Problem, plan: Plan
) -> RunConfig:
    """As many steps as fit; of half as many crops where that would be few.

    Default on `bsd400_gray`, judged on `bsd68_gray`: 28.20 dB after 206 steps of 16 crops, 28.47
    after 364 of 8 in the same 0.4 minutes; after 2 minutes, 968 or 1659 steps, they are equal.
    """
    budget = minutes - plan.spent
    steps = steps_within(budget, config, measurements, problem, plan.micro_batch)
    if steps < FEW_STEPS and plan.batch is None and _may_halve(config):
        config = _with_batch(config, config.training.batch // 2)
        steps = steps_within(budget, config, measurements, problem, plan.micro_batch)
    return _with_steps(config, steps, minutes)


def _may_halve(config: RunConfig) -> bool:
    """Not where several processes share a batch; and tried for white noise only."""
    white = config.operator.kind == "denoising" and not config.operator.coloured
    return white and config.training.batch == CROPS and launched() == 1


def _with_batch(config: RunConfig, batch: int) -> RunConfig:
    training = config.training.model_copy(update={"batch": batch})
    return config.model_copy(update={"training": training})


def _check_stabilised(measurements: Measurements, problem: Problem) -> None:
    """A stabilised range has a noise level of its own, and is for some operators only."""
    refuse_curved(measurements.range, problem)
    if not isinstance(measurements.range, StabilisedRange):
        return
    if measurements.sigmas is not None:
        raise NediffError(
            "Noise that depends on the signal has no level for each image; give one or the other."
        )
    sigma = measurements.range.sigma
    if not math.isclose(problem.sigma, sigma, rel_tol=1e-6):
        raise NediffError(
            f"Stabilised, the noise of these measurements is σ = {sigma:g} (their range.sigma), "
            f"not {problem.sigma:g}."
        )


def check_measurements(measurements: Measurements, problem: Problem) -> None:
    """Refuse measurements that this instrument cannot have made, and say which."""
    wanted = 1 if problem.raw else problem.operator.measured_channels(problem.channels)
    if wanted != measurements.channels:
        raise NediffError(
            f"The problem ({problem.kind}) gives measurements with {wanted} channel(s), but these "
            f"have {measurements.channels}."
        )
    for i in range(len(measurements)):
        try:
            problem.check_size(*measurements.size(i))
        except NediffError as error:
            raise NediffError(f"{measurements.name(i)}: {error}") from error


def _configure(
    measurements: Measurements, problem: Problem, plan: Plan, source: str, axes: str | None
) -> RunConfig:
    config = RunConfig(
        version=__version__,
        data=DataConfig(
            source=source,
            low=measurements.range.low,
            high=measurements.range.high,
            range_chosen=measurements.range_chosen,
            axes=axes,
            channels=measurements.channels,
            images=len(measurements),
            fingerprint=measurements.fingerprint,
            sigma=problem.sigma,
            sigma_known=plan.sigma_known or SigmaConfig(how="given"),
            sigmas=describe_sigmas(measurements.sigmas),
            photons=describe_photons(measurements.range),
            simulate=measurements.simulated,
            simulate_seed=measurements.simulate_seed,
        ),
        operator=describe_operator(problem),
        network=NetworkConfig.model_validate(
            {
                "size": plan.size,
                "kind": plan.kind or _best_network(plan, problem),
                "channels": problem.channels,
                "guides": problem.operator.guides,
                "measured": problem.kind != "denoising",
                "sigma_data": sigma_data_of(measurements, problem),
                "resolution": 128 if plan.crop >= 128 else 64,
            }
        ),
        recipe=_recipe(plan, problem),
        training=TrainingConfig(
            steps=1,
            batch=plan.batch or _batch(plan, measurements, problem),
            crop=plan.crop,
            # Muon is tried and tested on our own U-Nets; the paper's network trains with Adam
            optimizer="adam" if plan.size == "paper" else "muon",
            seed=plan.seed,
            precision=plan.precision,
            compiled=plan.compiled,
        ),
    )
    return config if plan.steps is None else _with_steps(config, plan.steps, None)


def describe_sigmas(sigmas: Sigmas | None) -> SigmasConfig | None:
    """What config.yaml keeps of the noise levels of the images."""
    if sigmas is None:
        return None
    return SigmasConfig(least=sigmas.least, fingerprint=sigmas.fingerprint)


def describe_photons(range: IntensityRange) -> PhotonConfig | None:
    """What config.yaml keeps of noise that depends on the signal."""
    if not isinstance(range, StabilisedRange):
        return None
    noise = range.noise
    return PhotonConfig(gain=noise.gain, read_noise=noise.read_noise, offset=noise.offset)


def _best_network(plan: Plan, problem: Problem) -> str:
    return "edm" if plan.size == "paper" else BEST_NETWORKS.get(problem.kind, "edm")


def _batch(plan: Plan, measurements: Measurements, problem: Problem, crops: int = CROPS) -> int:
    """So many crops, or whole measurements with as many pixels in all."""
    if problem.operator.crop_step is not None:
        return crops
    pixels = sum(h * w for h, w in map(measurements.size, range(len(measurements))))
    wanted = crops * plan.crop**2 * len(measurements) / pixels
    return min(max(round(wanted), 2), crops)


_IN_DOUBT: dict[str, object] = {
    "doubt": True,
    "rehearse": 0.75,
    "rehearse_from": 0.3,
    "rehearse_rounds": 6,
}
"""What the default recipe changes for correlated noise whose spectrum was estimated."""


def _recipe(plan: Plan, problem: Problem) -> RecipeConfig:
    """The recipe for this operator; refused where it cannot work with it."""
    recipe = recipe_named(plan.recipe, problem.kind)
    if isinstance(problem.operator, Coloured) and recipe.pool != (1,):
        if recipe.name != "default":
            raise NediffError("Pooled, correlated noise has another colour; use pool=(1,).")
        doubt = _IN_DOUBT if problem.operator.colour.estimated else {}
        recipe = recipe.model_copy(update={"pool": (1,), "pool_weights": (1.0,)} | doubt)
    if recipe.doubt and not isinstance(problem.operator, Coloured):
        raise NediffError("Only correlated noise can be doubted; use doubt=False.")
    if recipe.pool != (1,) and not isinstance(problem.operator, (Identity, Mask, Convolution)):
        raise NediffError(f"Measurements of {problem.kind} cannot be pooled; use pool=(1,).")
    if recipe.hide and not isinstance(problem.operator, (Mask, Fourier)):
        raise NediffError(f"Measurements of {problem.kind} have no values to hide; use hide=0.")
    stride = problem.operator.stride if isinstance(problem.operator, Convolution) else 1
    if any(f > 1 and f % stride for f in recipe.pool):
        fitting = tuple(f for f in recipe.pool if f == 1 or f % stride == 0)
        if recipe.name != "default":
            raise NediffError(f"Pool factors must be 1 or multiples of {stride} here.")
        factors = fitting if len(fitting) > 1 else (1, stride)
        weights = (0.3, *((0.7 / (len(factors) - 1),) * (len(factors) - 1)))
        recipe = recipe.model_copy(update={"pool": factors, "pool_weights": weights})
    return recipe


def sigma_data_of(measurements: Measurements, problem: Problem) -> float:
    """The standard deviation of the clean images about their means, as far as it can be told."""
    if problem.kind == "denoising":
        sigmas = measurements.sigmas
        noise = problem.sigma**2 if sigmas is None else sigmas.mean_square
        variance = measurements.within_variance - noise
    else:
        variance = _filled_variance(measurements, problem)
    return max(math.sqrt(max(variance, 0.0)), 0.02)


def _filled_variance(measurements: Measurements, problem: Problem, most: int = 64) -> float:
    """Of the first guesses of up to ``most`` images, less the noise of what is measured."""
    chosen = range(0, len(measurements), -(-len(measurements) // most))
    values = []
    for i in chosen:
        here = problem.with_operator(problem.operator.window(0, 0, *measurements.size(i)))
        filled = here.operator.fill(here.lift(torch.from_numpy(measurements.image(i))[None]))
        noise = measurements.sigma_of(i, problem.sigma) ** 2 * here.operator.known(filled).mean()
        values.append(float(filled.var(dim=(2, 3)).mean() - noise))
    return sum(values) / len(values)


def _with_steps(config: RunConfig, steps: int, minutes: float | None) -> RunConfig:
    changes = {
        "steps": steps,
        "minutes": minutes,
        "validate_every": look_every(steps),
        "ema": ema_of(steps),
        "learning_rate": peak_rate(steps, config.training.optimizer),
    }
    training = TrainingConfig.model_validate(config.training.model_dump() | changes)
    return config.model_copy(update={"training": training})


SHORT = 2.0
"""Minutes; runs below that are tried for half as long."""


def steps_within(
    minutes: float,
    config: RunConfig,
    measurements: Measurements,
    problem: Problem | None = None,
    micro_batch: int | None = None,
) -> int:
    """How many steps fit: a trial run on throw-away weights, with its share of validation.

    Of several processes the slowest counts. Where networks are compiled, which may take minutes,
    the trial is part of the budget.
    """
    check_minutes(minutes)
    begun = time.perf_counter()
    planned = _with_steps(config, 1000, None)
    trial = make_trainer(planned, measurements, None, problem, micro_batch)
    slowest = trial.processes.largest
    pace, measured, rounds = Pace(trial), 0.0, 0
    # a short run is not worth a long look at the clock
    least, enough = (4, 8.0) if minutes >= SHORT else (2, 3.0)
    while rounds < least or (measured < enough and rounds < 60):
        measured += slowest(pace.measure())
        rounds += 1
    per_step = pace.seconds_per_step()
    started = time.perf_counter()
    trial.validate(None)
    per_validation = time.perf_counter() - started
    if can_learn_spread(trial.problem):
        per_step *= 1.06  # a tenth as many steps of a small network afterwards
    per_step, per_validation = slowest(per_step), slowest(per_validation)
    spent = slowest(time.perf_counter() - begun) if config.training.compiled else 0.0
    return steps_in(60 * minutes - spent, per_step, per_validation)


def peak_rate(steps: int, optimizer: OptimizerName) -> float:
    """The largest learning rate of a run: 0.001, and with Muon up to twice that if steps are few.

    A run of 230 steps gets 0.4 dB further with twice the rate, one of 620 steps 0.04 dB (SURE on
    `bsd400_gray`, one run each, judged on images left out); four times is too much.
    """
    if optimizer == "adam":
        return 1e-3
    return 1e-3 * min(max(math.sqrt(SHORT_RUN / max(steps, 1)), 1.0), 2.0)


def look_every(steps: int) -> int:
    """After how many steps a run looks at its held-out images, each time."""
    least, most = LOOKS
    return max(10, -(-steps // most), min(APART, -(-steps // least)))


def steps_in(seconds: float, per_step: float, per_look: float) -> int:
    """How many steps there is time for, with the looks at held-out images that they come with."""
    few, many = ((seconds - looks * per_look) / per_step for looks in LOOKS)
    between = seconds / (per_step + per_look / APART)
    return max(1, int(min(few, max(between, many))))


def check_minutes(minutes: float) -> None:
    """Refuse a budget that is none."""
    if not 0 < minutes < math.inf:
        raise NediffError(f"The budget must be more than 0 minutes and finite, not {minutes:g}.")


def check_folder(folder: Path, new: bool = True) -> None:
    """Refuse a place where a run cannot be, and with ``new`` one where a run is already."""
    if folder.exists() and not folder.is_dir():
        raise NediffError(f"{folder} is a file, not a folder; choose another one with --out.")
    if holds_run(folder):
        if new:
            raise NediffError(
                f"{folder} already holds a run; add --resume to go on with it, or choose another "
                "folder with --out."
            )
        return
    for name in (WEIGHTS_FILE, STATE_FILE):
        if (folder / name).exists():
            raise NediffError(
                f"{folder} holds the {name} of a run that has lost its {CONFIG_FILE}; choose "
                "another folder with --out."
            )


def start_folder(
    folder: Path, config: RunConfig, problem: Problem | None = None, sigmas: Sigmas | None = None
) -> None:
    """Begin a run in ``folder``, unless there is one already."""
    check_folder(folder)
    write_inputs(folder, config, problem, sigmas)


def write_inputs(
    folder: Path, config: RunConfig, problem: Problem | None, sigmas: Sigmas | None
) -> None:
    """What a run cannot go on without, and copies of it; also where one of the two is damaged."""
    if sigmas is not None:
        save_sigmas(folder, sigmas)
    if problem is not None:
        save_problem(folder, problem)
    save_config(folder, config)
    keep_spares(folder)


def refuse_other_data(
    measurements: Measurements, config: RunConfig, folder: Path, problem: Problem
) -> None:
    """Refuse to go on with a run on other data than it was begun with."""
    data, network = config.data, config.network
    variation = sigma_data_of(measurements, problem)
    for name, then, now in (
        ("images", data.images, len(measurements)),
        ("channels", data.channels, measurements.channels),
        ("standard deviation of the images", network.sigma_data, variation),
    ):
        if not math.isclose(now, then, rel_tol=1e-6):
            raise NediffError(
                f"{folder} was begun on other data ({name}: {then:.7g} then, {now:.7g} now); "
                "resume it with the same DATA."
            )
    if data.fingerprint not in ("", measurements.fingerprint):
        raise NediffError(
            f"{folder} was begun on files of other names or sizes, which changes what is held "
            "out; resume it with the same DATA."
        )


def run_training(
    config: RunConfig,
    measurements: Measurements,
    folder: Path | None,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    problem: Problem | None = None,
    micro_batch: int | None = None,
    track: tuple[str, ...] = (),
) -> tuple[Restorer, bool]:
    """Train, or go on training, the run in ``folder``; returns (best so far, finished?).

    ``problem`` may be left out where config.yaml says it all (denoising) or the folder does.
    ``track`` names trackers (tracking.py).
    """
    trainer = make_trainer(config, measurements, folder, problem, micro_batch)
    trainer.track, processes = track, trainer.processes
    if folder is not None and processes.told(lambda: has_state(folder)):
        trainer.resume(folder)
    finished = trainer.run(observer, stop)
    denoiser = build_denoiser(config.network)
    shown = trainer.shown
    with torch.no_grad():
        for name, parameter in denoiser.named_parameters():
            parameter.copy_(shown[name])
    device = trainer.accelerator.device
    here = trainer.problem.with_operator(trainer.problem.operator.to(device))
    restorer = Restorer(here, denoiser.to(device), config)
    if finished and can_learn_spread(trainer.problem):
        train, heldout = trainer.batches.measurements, trainer.validation.heldout
        report = observer.on_spread if observer is not None and processes.main else None
        honest = with_spread(
            restorer, train, heldout, report, lambda: processes.any(stop()), processes
        )
        restorer, finished = honest or restorer, honest is not None
    if folder is not None and processes.main:
        restorer.save(folder)
    processes.wait()
    return restorer, finished


def make_trainer(
    config: RunConfig,
    measurements: Measurements,
    folder: Path | None,
    problem: Problem | None = None,
    micro_batch: int | None = None,
) -> Trainer:
    """The split by seed, the device, and the Trainer on them."""
    from accelerate import Accelerator
    from accelerate.utils import GradientAccumulationPlugin

    problem = problem or load_problem(folder or Path(), config)
    if describe_sigmas(measurements.sigmas) != config.data.sigmas:
        raise NediffError(
            "The noise levels of these images are not those that the run was planned with."
        )
    joined()
    # told how many parts a batch has, Accelerate would divide the loss by it; ours is divided
    once = GradientAccumulationPlugin(num_steps=1)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_plugin=once)
    check_precision(config.training.precision, accelerator.device)
    # a part of an image is no measurement by a mask of the whole image
    crop = config.training.crop if problem.kind == "denoising" else sys.maxsize
    train, heldout = split(measurements, config.training.seed, crop=crop)
    return Trainer(config, problem, train, heldout, folder, accelerator, micro_batch)
