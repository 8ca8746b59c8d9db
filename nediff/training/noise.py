"""Learning how strong the noise is, before anything else is learned: UNSURE (unsure.py).

A small network learns the score of the noisy images while the multipliers, upper bounds of σ²,
ascend. Then the network is asked where the bound is nearly exact, at the finest details of the
flattest places (noise/scored.py). All of it is a function of the data and the seed, and can be
interrupted at any step and resumed exactly.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nediff.config import NetworkConfig, SigmaConfig
from nediff.data import Measurements
from nediff.divergence import derivative
from nediff.errors import NediffError
from nediff.keeping import Damaged, first_whole, read_tensors, write_tensors
from nediff.networks import Denoiser, build_denoiser
from nediff.noise import Estimate, Variation, Whiteness, estimate_level, estimate_whiteness
from nediff.noise.scored import (
    bounded_channels,
    bounded_sigma,
    overall_bound,
    overall_pixel_bound,
    scored_channels,
    scored_sigma,
)
from nediff.operators import Mask
from nediff.problem import Problem
from nediff.randomness import Draws
from nediff.recipes import Batch
from nediff.runs import copy_checked
from nediff.training.batches import BatchSource
from nediff.training.fitting import sigma_data_of
from nediff.training.optimizer import build_optimizer
from nediff.training.schedule import learning_rate
from nediff.training.scoring import score_blocks, score_pixels
from nediff.training.state import fill_training, training_tensors
from nediff.unsure import REACH, Multipliers, lagged_traces, score_loss

NOISE_FILE = "state/noise.safetensors"
"""What an interrupted learning goes on from …"""
PREVIOUS_NOISE_FILE = "state/noise-previous.safetensors"
"""… or, if that is damaged, from what it was before."""
BATCH = 8
HELD = 0.5
"""The multipliers stay where they are for this share of the steps: the score of a network that
has learned nothing would drive them up to the variance of the images …"""
AVERAGED = 0.75
"""… and what they are found to be is their mean from this share of the steps on."""
SAVE_EVERY = 50

Report = Callable[[int, int, float], None]
"""(steps done, steps, √η so far)."""


@dataclass(frozen=True)
class NoisePlan:
    """What an interrupted learning must be gone on with."""

    steps: int
    crop: int
    seed: int
    fingerprint: str
    """Of the images' names and sizes."""
    sigma: float
    """The first guess σ₀, in unit range."""
    range: tuple[float, float]


@dataclass(frozen=True)
class NoiseProgress:
    """Where the learning stands."""

    step: int = 0
    averaged: int = 0
    """Steps that the mean multipliers are the mean of."""
    seconds: float = 0.0


@dataclass(frozen=True)
class LearnedNoise:
    """What was found, in unit range."""

    sigma: Estimate
    unsure: float
    """√η of UNSURE's multipliers, as far as they got."""
    bound: float
    """What they tend to, by the score that was learned: σ is not larger, but for chance."""
    lags: Tensor
    """(C, 3, 3): autocovariance by multipliers, in which the images' own is still contained."""
    channels: Variation
    whiteness: Whiteness | None
    """None for incomplete images."""
    seconds: float = field(default=0.0, compare=False)

    @property
    def correlated(self) -> bool:
        """Whether neighbouring pixels must be taken to share their noise."""
        return self.whiteness is not None and not self.whiteness.white

    def describe(self) -> SigmaConfig:
        """What config.yaml keeps."""
        near = None
        if self.whiteness is not None and self.whiteness.known:
            across, down = self.whiteness.neighbours
            near = (round(across, 4), round(down, 4))
        return SigmaConfig(
            how="learned",
            error=self.sigma.total_error,
            unsure=self.unsure,
            bound=self.bound,
            channels=tuple(s.value for s in self.channels.sigmas),
            neighbours=near,
        )


def learning_problem(problem: Problem, channels: int) -> Problem:
    """The instrument as far as its noise goes, or a sentence on why that cannot be learned.

    A blurred or coarse image is a complete image with white noise; of a mask the measured values
    count.
    """
    if isinstance(problem.operator, Mask):
        return problem
    if problem.kind not in ("denoising", "blur", "super_resolution"):
        raise NediffError(
            f"--sigma learn needs values with neighbours that look alike, and those of "
            f"{problem.kind} have none; measure the noise where the instrument sees nothing but "
            "noise, and give --sigma."
        )
    return Problem.denoising(problem.sigma, channels)


def first_guess(measurements: Measurements, problem: Problem) -> float:
    """σ₀ in unit range, without a network: from flat blocks, or the surroundings of pixels."""
    if isinstance(problem.operator, Mask):
        pixels = score_pixels(None, measurements, problem)
        if not len(pixels):
            raise NediffError("So few values are measured that their noise cannot be learned.")
        found = bounded_sigma(pixels).value
    else:
        found = estimate_level(measurements).sigma.value
    if not found > 1e-4:
        raise NediffError("No noise was found in these images; give --sigma if there is some.")
    return found


class NoiseLearner:
    """The network, the multipliers, and the loop.

    ``problem`` is that of `learning_problem` with σ₀ as its σ. ``model`` is one of your own,
    where the usual one does not do.
    """

    def __init__(
        self,
        plan: NoisePlan,
        measurements: Measurements,
        problem: Problem,
        model: Denoiser | None = None,
    ) -> None:
        self.plan, self.measurements = plan, measurements
        self.problem = replace(problem, sigma=plan.sigma)
        self.model = model or _network(measurements, self.problem, plan.seed)
        self.optimizer = build_optimizer(self.model, 1e-3, "muon")
        self.multipliers = Multipliers(plan.sigma**2, self.problem.channels)
        names = ("multipliers.white", "multipliers.lags")
        now = self.multipliers.tensors()
        self.means = {f"mean.{name}": torch.zeros_like(now[name]) for name in names}
        self.progress = NoiseProgress()
        # not turned: correlated noise has a direction
        self.batches = BatchSource(
            measurements, self.problem, plan.crop, BATCH, (1,), (1.0,), plan.seed, turns=False
        )

    @property
    def unsure(self) -> Tensor:
        """√η, (C,)."""
        mean = self.means["mean.multipliers.white"]
        return (mean if self.progress.averaged else self.multipliers.white).sqrt()

    @property
    def lags(self) -> Tensor:
        """The multipliers of the lags, (C, 3, 3)."""
        mean = self.means["mean.multipliers.lags"]
        return mean if self.progress.averaged else self.multipliers.lags

    def run(self, report: Report | None, stop: Callable[[], bool], folder: Path | None) -> bool:
        """Learn to the last step, or until ``stop()``; True if it is finished."""
        started, before, steps = time.monotonic(), self.progress.seconds, self.plan.steps
        for step in range(self.progress.step, steps):
            self.step(step)
            seconds = before + time.monotonic() - started
            self.progress = replace(self.progress, step=step + 1, seconds=seconds)
            if report is not None:
                report(step + 1, steps, float(self.unsure.square().mean().sqrt()))
            last, stopping = step + 1 == steps, stop()
            if folder is not None and (last or stopping or (step + 1) % SAVE_EVERY == 0):
                self.save(folder)
            if stopping and not last:
                return False
        return True

    def step(self, step: int) -> float:
        """One step of the network, and one of the multipliers; returns the loss of the batch."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.plan.steps, group["peak"], 50)
        self.optimizer.zero_grad()
        losses, traces = [], []
        for samples, batch in self.batches.groups(step):
            loss, trace = self._terms(batch, Draws(self.plan.seed, "noise", samples))
            losses.append(loss * len(samples) / BATCH)
            traces.append(trace * len(samples) / BATCH)
        total = torch.stack(losses).sum()
        torch.autograd.backward(total)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self._ascend(step, torch.stack(traces).sum(0))
        return float(total.detach())

    def _terms(self, batch: Batch, draws: Draws) -> tuple[Tensor, Tensor]:
        """The loss, and the traces (C, 5, 5) of J_g = (J_D − I)/σ₀²."""
        y, operator, sigma = batch.y, batch.problem.operator, self.plan.sigma
        measured = batch.problem.mask_noise(torch.ones_like(y))
        probe = measured * draws.normal_like(y)
        value, change = derivative(
            lambda u, s: operator.A(self.model(u, s, operator)), y, batch.sigma, probe
        )
        loss = score_loss(value, change, y, probe, sigma, measured).mean()
        traces = lagged_traces(change.detach(), probe, measured, 2 * REACH)
        traces[:, 2 * REACH, 2 * REACH] -= 1
        return loss, traces / sigma**2

    def _ascend(self, step: int, traces: Tensor) -> None:
        if step >= int(HELD * self.plan.steps):
            self.multipliers.ascend(traces)
        if step >= int(AVERAGED * self.plan.steps):
            self.progress = replace(self.progress, averaged=self.progress.averaged + 1)
            now = self.multipliers.tensors()
            for name, mean in self.means.items():
                mean.lerp_(now[name.removeprefix("mean.")], 1 / self.progress.averaged)

    def save(self, folder: Path) -> None:
        """Write everything `load` needs to go on exactly."""
        tensors = training_tensors(self.model, self.optimizer, {})
        metadata = {
            "plan": json.dumps(asdict(self.plan)),
            "progress": json.dumps(asdict(self.progress)),
        }
        state = tensors | self.multipliers.tensors() | self.means
        write_tensors(folder / NOISE_FILE, state, metadata, folder / PREVIOUS_NOISE_FILE)

    def load(self, folder: Path) -> None:
        """Go on from the state in ``folder``."""
        first_whole(_states(folder), self._load, "learning goes on from this, the state before")

    def _load(self, path: Path) -> None:
        tensors, metadata = read_tensors(path)
        try:
            self.progress = NoiseProgress(**json.loads(metadata["progress"]))
            begun = self.progress.step > 0
            fill_training(tensors, path, self.model, self.optimizer, {}, begun)
            for name, target in (self.multipliers.tensors() | self.means).items():
                copy_checked(target, tensors[name], name, path)
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"{path} does not hold what was learned ({error}).") from error

    def found(self) -> LearnedNoise:
        """What the network, once it has learned, says of the noise."""
        started = time.monotonic()
        network = self.model.eval()
        if isinstance(self.problem.operator, Mask):
            pixels = score_pixels(network, self.measurements, self.problem)
            channels, whiteness = bounded_channels(pixels), None
            sigma, bound = bounded_sigma(pixels), overall_pixel_bound(pixels)
        else:
            blocks = score_blocks(network, self.measurements, self.problem)
            channels = scored_channels(blocks)
            # without the network, which tells what a detail does not share with its neighbours
            whiteness = estimate_whiteness(self.measurements)
            sigma, bound = scored_sigma(blocks), overall_bound(blocks)
            if not whiteness.white:
                sigma = replace(sigma, value=float(np.sqrt(whiteness.variance)))
        if channels.varies:
            sigma = root_mean_square(channels.sigmas)
        if not sigma.value > 1e-4:
            raise NediffError("No noise was found in these images; give --sigma if there is some.")
        unsure = float(self.unsure.square().mean().sqrt())
        seconds = self.progress.seconds + time.monotonic() - started
        return LearnedNoise(sigma, unsure, bound, self.lags, channels, whiteness, seconds)


def root_mean_square(sigmas: tuple[Estimate, ...]) -> Estimate:
    """√(mean σ_c²) of channels with independent errors."""
    number = len(sigmas)
    value = float(np.sqrt(np.mean([s.value**2 for s in sigmas])))

    def carried(errors: list[float]) -> float:
        return float(np.sqrt(sum((s.value * e) ** 2 for s, e in zip(sigmas, errors, strict=True))))

    error, doubt = (carried([getattr(s, kind) for s in sigmas]) for kind in ("error", "doubt"))
    return Estimate(value, error / (number * value), doubt / (number * value))


def _network(measurements: Measurements, problem: Problem, seed: int) -> Denoiser:
    """A small one: what it must know is the noise, not the images."""
    settings = {
        "size": "tiny",
        "channels": problem.channels,
        "guides": problem.operator.guides,
        "measured": problem.kind != "denoising",
        "sigma_data": sigma_data_of(measurements, problem),
    }
    return build_denoiser(NetworkConfig.model_validate(settings), seed)


def seconds_per_step(learner: NoiseLearner, steps: int = 4) -> float:
    """Of a learner that is thrown away afterwards."""
    learner.step(0)
    started = time.perf_counter()
    for step in range(1, steps + 1):
        learner.step(step)
    return (time.perf_counter() - started) / steps


def _states(folder: Path) -> list[Path]:
    return [folder / NOISE_FILE, folder / PREVIOUS_NOISE_FILE]


def load_plan(folder: Path) -> NoisePlan | None:
    """What a learning in ``folder`` was begun with, if there is one."""
    if not any(path.is_file() for path in _states(folder)):
        return None
    return first_whole(_states(folder), _read_plan, "it says what was to be learned")


def _read_plan(path: Path) -> NoisePlan:
    _, metadata = read_tensors(path)
    try:
        values = json.loads(metadata["plan"])
        return NoisePlan(**values | {"range": tuple(values["range"])})
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Damaged(f"{path} does not say what was to be learned ({error}).") from error
