"""The training loop: one readable loop, on whatever device Accelerate finds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from nediff.config import RunConfig
from nediff.data import Measurements
from nediff.errors import NediffError
from nediff.networks import build_denoiser
from nediff.operators import LinearOperator
from nediff.problem import Problem
from nediff.randomness import Draws, derive_key
from nediff.recipes import Batch, rehearsal_loss, training_loss
from nediff.runs import save_weights
from nediff.training.batches import BatchSource
from nediff.training.ema import EMA
from nediff.training.metrics import MetricsLog
from nediff.training.optimizer import build_optimizer
from nediff.training.rehearsal import Rehearsal, draw_rehearsal, pixels_to_sample
from nediff.training.schedule import learning_rate
from nediff.training.state import Progress, load_state, save_state
from nediff.training.validation import SureValidation

if TYPE_CHECKING:
    from accelerate import Accelerator


REHEARSAL_FILE = "state/rehearsal-{}.safetensors"
"""The samples drawn for each round: a resumed run must use the same."""


def rehearsal_start(config: RunConfig, round_: int = 1) -> int:
    """The step from which on a run trains on samples of its own, those of this round."""
    recipe = config.recipe
    later = (1 - recipe.rehearse_from) * (round_ - 1) / recipe.rehearse_rounds
    return int((recipe.rehearse_from + later) * config.training.steps)


def rehearsal_round(config: RunConfig, step: int) -> int:
    """Which round of samples a step trains on; 0 for none."""
    if not config.recipe.rehearse:
        return 0
    rounds = range(1, config.recipe.rehearse_rounds + 1)
    return sum(1 for k in rounds if step >= rehearsal_start(config, k))


def pooled_steps(config: RunConfig) -> int:
    """How many steps pool, those of the beginning."""
    return int(config.recipe.pool_until * config.training.steps)


class Observer(Protocol):
    """Who watches a run: the command line's progress bar, a test, nobody."""

    def on_step(self, step: int, steps: int, loss: float) -> None:
        """After each step."""

    def on_validation(self, step: int, estimated_psnr: float, best: bool) -> None:
        """After each validation on held-out noisy images."""

    def on_spread(self, step: int, steps: int) -> None:
        """After each step of learning how uncertain unmeasured pixels are (masks only)."""


class Trainer:
    """Everything a run needs, and the loop.

    All randomness of step k is a function of (seed, k), so a run that was interrupted and
    resumed equals one that was not. ``folder`` is where the state goes; None keeps it in memory.
    """

    def __init__(
        self,
        config: RunConfig,
        problem: Problem,
        train: Measurements,
        heldout: Measurements,
        folder: Path | None,
        accelerator: Accelerator,
    ) -> None:
        self.config, self.problem, self.folder = config, problem, folder
        self.accelerator = accelerator
        settings, recipe = config.training, config.recipe
        model = build_denoiser(config.network, settings.seed)
        optimizer = build_optimizer(model, settings.learning_rate, settings.optimizer)
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.ema = EMA(self.bare_model, settings.ema)
        self.batches = BatchSource(
            train,
            problem,
            settings.crop,
            settings.batch,
            recipe.pool,
            recipe.pool_weights,
            settings.seed,
            with_clean=recipe.needs_clean,
            pooled_steps=pooled_steps(config),
        )
        self.validation = SureValidation(heldout, problem, settings.seed)
        self.progress = Progress()
        self.rehearsal: Rehearsal | None = None
        self._round = 0
        self.best: dict[str, Tensor] = {k: v.clone() for k, v in self.ema.weights.items()}

    @property
    def bare_model(self) -> torch.nn.Module:
        """The network without the wrappers of Accelerate."""
        model: torch.nn.Module = self.accelerator.unwrap_model(self.model)
        return model

    def resume(self, folder: Path) -> None:
        """Go on from the state in ``folder``."""
        self.progress = load_state(folder, self.bare_model, self._averages, self.bare_optimizer)
        self._round = rehearsal_round(self.config, self.progress.step - 1)
        if self._round:
            self.rehearsal = Rehearsal.load(folder / REHEARSAL_FILE.format(self._round))

    @property
    def bare_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer without the wrapper of Accelerate."""
        optimizer: torch.optim.Optimizer = self.optimizer.optimizer
        return optimizer

    @property
    def _averages(self) -> dict[str, dict[str, Tensor]]:
        return {"ema": self.ema.weights, "best": self.best}

    @property
    def shown(self) -> dict[str, Tensor]:
        """The weights to use: the best so far, or the newest before the first validation."""
        return self.best if self.progress.best_step else self.ema.weights

    def step(self, step: int) -> float:
        """One optimisation step; returns the mean loss of the batch."""
        settings, recipe = self.config.training, self.config.recipe
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, settings.steps, group["peak"], settings.warmup)
        self.optimizer.zero_grad()
        total = 0.0
        for rehearsed, samples, batch in self._groups(step):
            device = self.accelerator.device
            draws = Draws(settings.seed, "loss", samples, device)
            fill_error = self.config.network.fill_error
            loss_of = rehearsal_loss if rehearsed else training_loss
            values = loss_of(recipe, self.model, batch.to(device), draws, fill_error)
            loss = values.sum() / settings.batch
            self.accelerator.backward(loss)
            total += loss.item()
        self.accelerator.clip_grad_norm_(self.model.parameters(), settings.clip)
        self.optimizer.step()
        self.ema.update(self.bare_model, step)
        return total

    def _groups(self, step: int) -> list[tuple[bool, list[int], Batch]]:
        """The batch of a step: measurements and, late in a run (True), samples of our own."""
        recipe, settings = self.config.recipe, self.config.training
        round_ = rehearsal_round(self.config, step)
        rehearsed = round(recipe.rehearse * settings.batch) if round_ else 0
        measured = settings.batch - rehearsed
        groups = [(False, *group) for group in self.batches.groups(step, measured)]
        if rehearsed:
            if self.rehearsal is None or round_ > self._round:
                self.rehearsal, self._round = self._draw_rehearsal(round_), round_
            last = (step + 1) * settings.batch
            samples = list(range(last - rehearsed, last))
            if step >= pooled_steps(self.config):
                recipe = recipe.unpooled
            drawn = self.rehearsal.groups(
                samples, self.problem, settings.crop, recipe, settings.seed
            )
            groups += [(True, *group) for group in drawn]
        return groups

    def _draw_rehearsal(self, round_: int) -> Rehearsal:
        """Samples by the averaged weights, kept on disk too: a resumed run must use the same."""
        settings = self.config.training
        pixels = pixels_to_sample(settings.steps, settings.batch, self.side)
        drawn = self.rehearsal_of(pixels // self.config.recipe.rehearse_rounds, round_)
        if self.folder is not None and self.accelerator.is_main_process:
            drawn.save(self.folder / REHEARSAL_FILE.format(round_))
        return drawn

    def rehearsal_of(self, pixels: int, round_: int = 1) -> Rehearsal:
        """Samples of so many pixels in all, by the averaged weights."""
        train, settings = self.batches.measurements, self.config.training
        device, seed = self.accelerator.device, derive_key("round", settings.seed, round_)
        return draw_rehearsal(
            self.averaged, train, self.problem, settings.crop, pixels, seed, device
        )

    @property
    def side(self) -> int:
        """Of the squares that a batch is made of: crops, or whole measurements."""
        whole = self.problem.operator.crop_step is None
        return self.batches.measurements.min_size if whole else self.config.training.crop

    def averaged(self, y: Tensor, sigma: Tensor, operator: LinearOperator) -> Tensor:
        """D(y, σ) with the averaged weights."""
        model, weights = self.bare_model, self.ema.weights
        out: Tensor = torch.func.functional_call(model, weights, (y, sigma, operator))
        return out

    def run(
        self, observer: Observer | None = None, stop: Callable[[], bool] = lambda: False
    ) -> bool:
        """Train to the last step, or until ``stop()``; True if the run is finished."""
        steps, every = self.config.training.steps, self.config.training.validate_every
        started, before = time.monotonic(), self.progress.seconds
        self.model.train()
        with MetricsLog(self.folder, self.progress.step) as log:
            for step in range(self.progress.step, steps):
                loss = self.step(step)
                self.progress = self.progress.after(loss, before + time.monotonic() - started)
                if observer is not None:
                    observer.on_step(step + 1, steps, loss)
                self._refuse_divergence()
                due, stopping = (step + 1) % every == 0 or step + 1 == steps, stop()
                if due:
                    self._report(log, observer)
                if due or stopping:
                    self._save()
                if stopping and step + 1 < steps:
                    return False
        return True

    def _refuse_divergence(self) -> None:
        """Stop before weights that are not finite replace good ones on disk."""
        if not math.isfinite(self.progress.loss_sum):
            raise NediffError(
                f"The training diverged at step {self.progress.step}: its loss is not finite any "
                "more; check σ and the data."
            )

    def _report(self, log: MetricsLog, observer: Observer | None) -> None:
        """Validate, and write down how the steps since the last time went."""
        done = self.progress
        psnr = self.validate(observer)
        log.write(done.step, done.seconds, done.loss_sum / done.loss_count, psnr)
        self.progress = replace(self.progress, loss_sum=0.0, loss_count=0)

    def validate(self, observer: Observer | None) -> float:
        """Estimated PSNR of the averaged weights; keeps them if they are the best so far."""
        psnr = self.validation.estimated_psnr(self.averaged, self.accelerator.device)
        best = psnr > self.progress.best_psnr
        if best:
            step = self.progress.step
            self.progress = replace(self.progress, best_psnr=psnr, best_step=step)
            self.best = {k: v.clone() for k, v in self.ema.weights.items()}
        if observer is not None:
            observer.on_validation(self.progress.step, psnr, best)
        return psnr

    def _save(self) -> None:
        if self.folder is None or not self.accelerator.is_main_process:
            return
        save_weights(self.folder, self.shown)
        save_state(self.folder, self.bare_model, self._averages, self.bare_optimizer, self.progress)
