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
from nediff.randomness import Draws
from nediff.recipes import training_loss
from nediff.runs import save_weights
from nediff.training.batches import BatchSource
from nediff.training.ema import EMA
from nediff.training.metrics import MetricsLog
from nediff.training.optimizer import build_optimizer
from nediff.training.schedule import learning_rate
from nediff.training.state import Progress, load_state, save_state
from nediff.training.validation import SureValidation

if TYPE_CHECKING:
    from accelerate import Accelerator


class Observer(Protocol):
    """Who watches a run: the command line's progress bar, a test, nobody."""

    def on_step(self, step: int, steps: int, loss: float) -> None:
        """After each step."""

    def on_validation(self, step: int, estimated_psnr: float, best: bool) -> None:
        """After each validation on held-out noisy images."""


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
            with_clean=recipe.loss == "supervised",
        )
        self.validation = SureValidation(heldout, problem, settings.seed)
        self.progress = Progress()
        self.best: dict[str, Tensor] = {k: v.clone() for k, v in self.ema.weights.items()}

    @property
    def bare_model(self) -> torch.nn.Module:
        """The network without the wrappers of Accelerate."""
        model: torch.nn.Module = self.accelerator.unwrap_model(self.model)
        return model

    def resume(self, folder: Path) -> None:
        """Go on from the state in ``folder``."""
        self.progress = load_state(folder, self.bare_model, self._averages, self.bare_optimizer)

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
        settings = self.config.training
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, settings.steps, group["peak"], settings.warmup)
        self.optimizer.zero_grad()
        total = 0.0
        for samples, batch in self.batches.groups(step):
            device = self.accelerator.device
            draws = Draws(settings.seed, "loss", samples, device)
            fill_error = self.config.network.fill_error
            values = training_loss(
                self.config.recipe, self.model, batch.to(device), draws, fill_error
            )
            loss = values.sum() / settings.batch
            self.accelerator.backward(loss)
            total += loss.item()
        self.accelerator.clip_grad_norm_(self.model.parameters(), settings.clip)
        self.optimizer.step()
        self.ema.update(self.bare_model, step)
        return total

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
        weights = self.ema.weights
        denoiser = self.bare_model

        def averaged(y: Tensor, sigma: Tensor, operator: LinearOperator) -> Tensor:
            out: Tensor = torch.func.functional_call(denoiser, weights, (y, sigma, operator))
            return out

        psnr = self.validation.estimated_psnr(averaged, self.accelerator.device)
        best = psnr > self.progress.best_psnr
        if best:
            step = self.progress.step
            self.progress = replace(self.progress, best_psnr=psnr, best_step=step)
            self.best = {k: v.clone() for k, v in weights.items()}
        if observer is not None:
            observer.on_validation(self.progress.step, psnr, best)
        return psnr

    def _save(self) -> None:
        if self.folder is None or not self.accelerator.is_main_process:
            return
        save_weights(self.folder, self.shown)
        save_state(self.folder, self.bare_model, self._averages, self.bare_optimizer, self.progress)
