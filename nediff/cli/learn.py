"""`--sigma learn`: the first part of a training, under a progress bar of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from nediff.cli.console import bar, say
from nediff.cli.levels import warn_if_doubtful
from nediff.cli.signals import Stopper, handling
from nediff.data import Measurements
from nediff.errors import NediffError
from nediff.problem import Problem
from nediff.processes import joined
from nediff.training.fitting import Plan
from nediff.training.noise import (
    LearnedNoise,
    NoiseLearner,
    NoisePlan,
    first_guess,
    learning_problem,
    load_plan,
    seconds_per_step,
)

SHARE_OF_MINUTES = 0.15
"""Of the time budget that goes into the noise …"""
SHARE_OF_STEPS = 0.25
"""… or of the steps; these are cheaper than those of the training."""
LEAST_STEPS, MOST_STEPS = 50, 2000


class LearningStopped(Exception):
    """By a signal; what was learned so far is saved."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


@dataclass(frozen=True)
class LearnRequest:
    """Where to keep the state, whether to go on with one, and the training it belongs to."""

    out: Path
    resume: bool
    plan: Plan


def learned_level(
    request: LearnRequest, measurements: Measurements, problem: Problem
) -> LearnedNoise:
    """Learn the noise of the measurements and say what was found."""
    problem = learning_problem(problem, measurements.channels)
    learner = _learner(request, measurements, problem)
    say(f"learning the noise first: {learner.plan.steps} steps of a small network")
    _run_with_bar(learner, request.out)
    found = learner.found()
    _say_found(found)
    return found


def _learner(request: LearnRequest, measurements: Measurements, problem: Problem) -> NoiseLearner:
    """A new learner, or that of --out as far as it got."""
    processes = joined()
    processes.wait()  # nobody may write before all have looked
    then = load_plan(request.out)
    processes.wait()
    if then is not None and not request.resume:
        raise NediffError(
            f"{request.out} holds a run that was learning its noise; add --resume to go on with "
            "it, or choose another folder with --out."
        )
    data = measurements.range
    plan = NoisePlan(
        steps=1 if then is None else then.steps,
        crop=min(request.plan.crop, measurements.min_size // 8 * 8),
        seed=request.plan.seed,
        fingerprint=measurements.fingerprint,
        sigma=first_guess(measurements, problem),
        range=(data.low, data.high),
    )
    if then is None:
        plan = replace(plan, steps=_steps(request.plan, plan, measurements, problem))
        return NoiseLearner(plan, measurements, problem)
    _refuse_other(then, plan, request.out)
    learner = NoiseLearner(then, measurements, problem)
    learner.load(request.out)
    return learner


def _refuse_other(then: NoisePlan, now: NoisePlan, out: Path) -> None:
    """A learning is gone on with as it was begun."""
    same_noise = math.isclose(then.sigma, now.sigma, rel_tol=1e-6)
    if replace(now, sigma=then.sigma) != then or not same_noise:
        raise NediffError(
            f"{out} was learning the noise of other data, or with another --crop, --seed or "
            "--range; resume it with the command it was begun with."
        )


def _steps(training: Plan, plan: NoisePlan, measurements: Measurements, problem: Problem) -> int:
    if training.steps is not None:
        wanted = SHARE_OF_STEPS * training.steps
    else:
        minutes = 20.0 if training.minutes is None else training.minutes
        trial = NoiseLearner(replace(plan, steps=10), measurements, problem)
        wanted = SHARE_OF_MINUTES * 60 * minutes / joined().largest(seconds_per_step(trial))
    return int(min(max(wanted, LEAST_STEPS), MOST_STEPS))


def _run_with_bar(learner: NoiseLearner, out: Path) -> None:
    """The loop, which Ctrl-C stops cleanly.

    Of several processes each learns the same by itself, for the network is small and its batches
    are too; they stop together, and one writes.
    """
    stopper, processes = Stopper(), joined()
    with handling(stopper.handle), bar() as progress:
        task = progress.add_task("learning the noise", total=learner.plan.steps, note="")

        def report(step: int, steps: int, unsure: float) -> None:
            progress.update(task, completed=step, total=steps, note=f"UNSURE: σ ≈ {unsure:.4g}")

        place = out if processes.main else None
        finished = learner.run(report, lambda: processes.any(stopper()), place)
    if not finished:
        say(f"stopped and saved in {out}; go on with the same command and --resume")
        raise LearningStopped(128 + int(processes.largest(stopper.signal or 0)))


def _say_found(found: LearnedNoise) -> None:
    """σ and how sure it is, and what is not as the training assumes."""
    sigma = found.sigma
    say(
        f"noise learned from the data: σ = {sigma.value:.4g} ± {sigma.total_error:.2g} of the "
        f"range (by all places alike, flat or not, only known to be at most {found.bound:.4g})"
    )
    if found.whiteness is None:
        say(
            "Careful: of incomplete images only an upper bound of σ can be learned, which is "
            "some percent too large where no surroundings are flat."
        )
    if found.channels.varies:
        each = ", ".join(f"{s.value:.4g}" for s in found.channels.sigmas)
        say(
            f"Careful: the channels are not equally noisy (σ = {each}), and training assumes that "
            "they are; their root mean square is used. Divide each channel by its own σ before, "
            "or train on each by itself."
        )
    if found.correlated:
        assert found.whiteness is not None
        across, down = found.whiteness.neighbours
        say(
            "Careful: the noise of neighbouring pixels is correlated (by "
            f"{across:.2f} across and {down:.2f} down), and training assumes that it is not: what "
            "neighbours share will be taken for detail. Train with --sigma correlated, or use "
            "the data as the sensor gave them, before any resampling; `nediff diagnose` shows more."
        )
    warn_if_doubtful(sigma)
