"""The training loop: one readable loop, on whatever devices Accelerate finds.

With several processes each takes its share of every batch. How many passes that is differs from
one to the other (crops come in groups of a size), so gradients are summed once, at the end of the
step. The sum is that of the whole batch, however it was shared out: only the order differs in
which numbers are added.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from nediff.config import RunConfig
from nediff.data import Measurements
from nediff.errors import NediffError
from nediff.losses import NO_ERROR
from nediff.networks import build_denoiser, compile_networks
from nediff.operators import LinearOperator
from nediff.problem import Problem
from nediff.processes import Processes
from nediff.randomness import Draws, derive_key
from nediff.recipes import Batch, Network, rehearsal_loss, training_loss
from nediff.runs import save_weights
from nediff.training.batches import BatchSource
from nediff.training.ema import EMA
from nediff.training.metrics import MetricsLog
from nediff.training.optimizer import build_optimizer
from nediff.training.rehearsal import Rehearsal, draw_rehearsal, pixels_to_sample
from nediff.training.schedule import learning_rate
from nediff.training.sharding import (
    Training,
    gathered,
    plain_copy,
    refuse_shards,
    sharded,
    take_copy,
    wants_shards,
)
from nediff.training.state import (
    STATE_FILE,
    Progress,
    fill_training,
    load_state,
    save_state,
    training_tensors,
)
from nediff.training.tracking import Tracking
from nediff.training.validation import SureValidation

if TYPE_CHECKING:
    from accelerate import Accelerator


REHEARSAL_FILE = "state/rehearsal-{}.safetensors"
"""The samples drawn for each round: a resumed run must use the same. Gone once it is finished."""


def rehearsal_start(config: RunConfig, round_: int = 1) -> int:
    """The step from which on a run trains on samples of its own, those of this round."""
    recipe = config.recipe
    later = (1 - recipe.rehearse_from) * (round_ - 1) / recipe.rehearse_rounds
    return int((recipe.rehearse_from + later) * config.training.steps)


def rehearsed_samples(config: RunConfig) -> int:
    """How many of a batch are samples of our own, late in a run; of a small batch maybe none."""
    return round(config.recipe.rehearse * config.training.batch)


def rehearsal_round(config: RunConfig, step: int) -> int:
    """Which round of samples a step trains on; 0 for none."""
    if not rehearsed_samples(config):
        return 0
    rounds = range(1, config.recipe.rehearse_rounds + 1)
    return sum(1 for k in rounds if step >= rehearsal_start(config, k))


def keeps_newest(config: RunConfig, step: int) -> bool:
    """Whether the weights after so many steps are kept, however they do on held-out images.

    Where the noise is in doubt, SURE would have whatever was not estimated kept.
    """
    return config.recipe.doubt and rehearsal_round(config, step - 1) > 0


def pooled_steps(config: RunConfig) -> int:
    """How many steps pool, those of the beginning."""
    return int(config.recipe.pool_until * config.training.steps)


class Observer(Protocol):
    """Who watches a run: the command line's progress bar, a test, nobody."""

    def on_step(self, step: int, steps: int) -> None:
        """After each step."""

    def on_validation(self, step: int, estimated_psnr: float, best: bool) -> None:
        """After each validation on held-out noisy images."""

    def on_spread(self, step: int, steps: int) -> None:
        """After each step of learning how uncertain unmeasured pixels are (masks only)."""


class Trainer:
    """Everything a run needs, and the loop.

    All randomness of step k is a function of (seed, k), so a run that was interrupted and
    resumed equals one that was not. ``folder`` is where the state goes; None keeps it in memory.
    ``micro_batch`` is how many crops are taken at once, as far as memory goes; like the number of
    processes, it does not change the result.
    """

    def __init__(
        self,
        config: RunConfig,
        problem: Problem,
        train: Measurements,
        heldout: Measurements,
        folder: Path | None,
        accelerator: Accelerator,
        micro_batch: int | None = None,
    ) -> None:
        self.config, self.problem, self.folder = config, problem, folder
        self.accelerator, self.micro_batch = accelerator, micro_batch
        self.processes = Processes(
            accelerator.process_index, accelerator.num_processes, accelerator.device
        )
        settings, recipe = config.training, config.recipe
        self.model, self.optimizer = self._prepared()
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
        self.track: tuple[str, ...] = ()
        """Names of trackers (tracking.py) to tell how it goes."""
        self._round = 0
        self.best: dict[str, Tensor] = {k: v.clone() for k, v in self.ema.weights.items()}

    def _prepared(self) -> tuple[Any, Any]:
        """The network and its optimizer, as Accelerate wraps them."""
        settings, accelerator = self.config.training, self.accelerator
        model = build_denoiser(self.config.network, settings.seed)
        if settings.compiled:
            compile_networks(model)
        self.sharded = wants_shards(accelerator)
        if self.sharded:
            refuse_shards(self.config, self.processes.count, accelerator)
            return sharded(accelerator, model, self.config)
        optimizer = build_optimizer(model, settings.learning_rate, settings.optimizer)
        # not in DDP, which wants the same passes in all processes; see `step`
        wrapped = accelerator.prepare_model(model, evaluation_mode=True)
        return wrapped, accelerator.prepare_optimizer(optimizer)

    @property
    def bare_model(self) -> torch.nn.Module:
        """The network without the wrappers of Accelerate."""
        model: torch.nn.Module = self.accelerator.unwrap_model(self.model)
        return model

    def resume(self, folder: Path) -> None:
        """Go on from the state in ``folder``, which the main process reads for all."""
        here, processes = self._in_one_piece(), self.processes
        loaded: list[Progress] = []

        def load() -> dict[str, Any]:
            loaded.append(load_state(folder, here.model, here.averages, here.optimizer))
            return asdict(loaded[0])

        told = processes.told(load)
        self.progress = loaded[0] if loaded else Progress(**told | {"history": ()})
        if processes.several:
            tensors = processes.given(
                lambda: training_tensors(here.model, here.optimizer, here.averages)
            )
            begun, path = self.progress.step > 0, folder / STATE_FILE
            fill_training(tensors, path, here.model, here.optimizer, here.averages, begun)
        if self.sharded:
            take_copy(self._training, here)
        self._round = rehearsal_round(self.config, self.progress.step - 1)
        if self._round and self.progress.step < self.config.training.steps:
            self.rehearsal = self._kept_rehearsal(folder / REHEARSAL_FILE.format(self._round))

    def _kept_rehearsal(self, path: Path) -> Rehearsal:
        """The samples that were drawn before the run was interrupted."""
        kept = self.processes.given(lambda: Rehearsal.load(path).tensors())
        return Rehearsal(**kept)

    @property
    def bare_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer without the wrapper of Accelerate."""
        optimizer: torch.optim.Optimizer = self.optimizer.optimizer
        return optimizer

    @property
    def _averages(self) -> dict[str, dict[str, Tensor]]:
        return {"ema": self.ema.weights, "best": self.best}

    @property
    def _training(self) -> Training:
        return Training(self.bare_model, self.bare_optimizer, self._averages)

    def _in_one_piece(self) -> Training:
        """What is kept on disk; of shards, a copy that all processes put together."""
        return plain_copy(self._training, self.config) if self.sharded else self._training

    @property
    def shown(self) -> dict[str, Tensor]:
        """The weights to use: the best so far, or the newest before the first validation."""
        chosen = self.best if self.progress.best_step else self.ema.weights
        return {name: gathered(value) for name, value in chosen.items()}

    def step(self, step: int) -> Tensor:
        """One optimisation step; returns the mean loss of the batch, (), on its device.

        Nothing here waits for a GPU to finish: the loss is read when it is asked for.
        FSDP takes the mean over the processes where the sum is wanted.
        """
        settings, recipe = self.config.training, self.config.recipe
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, settings.steps, group["peak"], settings.warmup)
        self.optimizer.zero_grad()
        device, times = self.accelerator.device, self.processes.count if self.sharded else 1
        total = torch.zeros((), dtype=torch.float64, device=device)
        for weight, rehearsed, samples, batch in self._passes(step):
            draws = Draws(settings.seed, "loss", samples, device)
            fill_error = self.config.network.fill_error
            loss_of = rehearsal_loss if rehearsed else training_loss
            with torch.autocast(device.type, torch.bfloat16, settings.precision == "bf16"):
                values = loss_of(recipe, self.model, batch.to(device), draws, fill_error)
            loss = weight * values.sum() / settings.batch
            self.accelerator.backward(times * loss)
            total += loss.detach()
        if not self.sharded:
            self.processes.add_gradients(list(self.model.parameters()))
        self.accelerator.clip_grad_norm_(self.model.parameters(), settings.clip)
        self.optimizer.step()
        self.ema.update(self.bare_model, step)
        return self.processes.add(total)

    def _passes(self, step: int) -> list[tuple[float, bool, list[int], Batch]]:
        """The groups of a step, and what they count.

        In shards, all processes must do as many passes: those with fewer groups repeat one, which
        counts nothing.
        """
        groups = self._groups(step)
        passes = [(1.0, *group) for group in groups]
        if not self.sharded:
            return passes
        out = []
        for kind in (False, True):
            mine = [p for p in passes if p[1] is kind]
            missing = int(self.processes.largest(len(mine))) - len(mine)
            out += mine + [(0.0, *mine[-1][1:])] * missing if missing else mine
        return out

    def _groups(self, step: int) -> list[tuple[bool, list[int], Batch]]:
        """This process's share of the batch of a step, in groups.

        They are measurements and, late in a run (True), samples of our own.
        """
        recipe, settings = self.config.recipe, self.config.training
        round_ = rehearsal_round(self.config, step)
        rehearsed = rehearsed_samples(self.config) if round_ else 0
        samples = self.batches.samples(step)
        share, most = self.processes.share, self.micro_batch
        measured = share(samples[: settings.batch - rehearsed])
        groups = [(False, *group) for group in self.batches.groups(step, measured, most)]
        if rehearsed:
            if self.rehearsal is None or round_ > self._round:
                self.rehearsal, self._round = self._draw_rehearsal(round_), round_
            if step >= pooled_steps(self.config):
                recipe = recipe.unpooled
            mine = share(samples[settings.batch - rehearsed :])
            drawn = self.rehearsal.groups(
                mine, self.problem, settings.crop, recipe, settings.seed, most
            )
            groups += [(True, *group) for group in drawn]
        return groups

    def _draw_rehearsal(self, round_: int) -> Rehearsal:
        """Samples by the averaged weights, kept on disk too: a resumed run must use the same."""
        settings = self.config.training
        recipe = self.config.recipe
        pixels = pixels_to_sample(recipe, settings.steps, settings.batch, self.side)
        drawn = self.rehearsal_of(pixels // recipe.rehearse_rounds, round_)
        if self.folder is not None and self.accelerator.is_main_process:
            drawn.save(self.folder / REHEARSAL_FILE.format(round_))
        return drawn

    def rehearsal_of(self, pixels: int, round_: int = 1) -> Rehearsal:
        """Samples of so many pixels in all, by the averaged weights."""
        train, settings = self.batches.measurements, self.config.training
        device, seed = self.accelerator.device, derive_key("round", settings.seed, round_)
        return draw_rehearsal(
            self.averaged(),
            train,
            self.problem,
            settings.crop,
            pixels,
            seed,
            device,
            self.processes,
            restored=self.config.recipe.doubt,
        )

    @property
    def side(self) -> int:
        """Of the squares that a batch is made of: crops, or whole measurements."""
        whole = self.problem.operator.crop_step is None
        return self.batches.measurements.min_size if whole else self.config.training.crop

    def averaged(self) -> Network:
        """D(y, σ) with the averaged weights; all processes must ask for it."""
        model, weights = self.bare_model, self.ema.weights
        if self.sharded:
            model = build_denoiser(self.config.network).to(self.accelerator.device)
            weights = {name: gathered(value) for name, value in weights.items()}

        def network(y: Tensor, sigma: Tensor, operator: LinearOperator) -> Tensor:
            out: Tensor = torch.func.functional_call(model, weights, (y, sigma, operator))
            return out

        return network

    def run(
        self, observer: Observer | None = None, stop: Callable[[], bool] = lambda: False
    ) -> bool:
        """Train to the last step, or until ``stop()``; True if the run is finished.

        If any process is to stop, all do, after the same step.
        """
        steps, every = self.config.training.steps, self.config.training.validate_every
        started, before = time.monotonic(), self.progress.seconds
        self.model.train()
        main, done = self.processes.main, self.progress
        observer, folder = observer if main else None, self.folder if main else None
        tracking = Tracking(self.track, self.config, folder) if main else None
        losses: list[Tensor] = []
        with MetricsLog(folder, done.step, done.history, tracking) as log:
            for step in range(self.progress.step, steps):
                losses.append(self.step(step))
                if observer is not None:
                    observer.on_step(step + 1, steps)
                due = (step + 1) % every == 0 or step + 1 == steps
                stopping = self.processes.any(stop())
                if not (due or stopping):
                    continue
                self._settle(losses, before + time.monotonic() - started)
                if due:
                    self._report(log, observer)
                self._save()
                if stopping and step + 1 < steps:
                    return False
        self.tidy()
        return True

    def tidy(self) -> None:
        """Remove the samples that only a run which goes on needs: they are most of what it keeps.

        First the state is written once more, so that the one before it is finished, too.
        """
        folder = self.folder
        if folder is None:
            return
        kept = REHEARSAL_FILE.format("*")
        if self.processes.told(lambda: any(folder.glob(kept))):
            self._save()
            if self.processes.main:
                for path in folder.glob(kept):
                    path.unlink(missing_ok=True)

    def _settle(self, losses: list[Tensor], seconds: float) -> None:
        """Read the losses of the steps since the last time, which waits for the device.

        Stops before weights that are not finite replace good ones on disk.
        """
        values = torch.stack(losses).tolist()
        losses.clear()
        for number, value in enumerate(values, self.progress.step + 1):
            if not math.isfinite(value):
                raise NediffError(
                    f"The training diverged at step {number}: its loss is not finite any more; "
                    "check σ and the data."
                )
        self.progress = self.progress.after(values, seconds)

    def _report(self, log: MetricsLog, observer: Observer | None) -> None:
        """Validate, and write down how the steps since the last time went."""
        done = self.progress
        psnr = self.validate(observer)
        log.write(done.step, done.seconds, done.loss_sum / done.loss_count, psnr)
        self.progress = replace(self.progress, loss_sum=0.0, loss_count=0, history=log.history)

    def validate(self, observer: Observer | None) -> float:
        """Estimated PSNR of the averaged weights; keeps the best so far, or the newest."""
        psnr = self.validation.estimated_psnr(
            self.averaged(), self.accelerator.device, self.processes
        )
        step = self.progress.step
        best = psnr > self.progress.best_psnr
        # an estimate of no error says nothing, nor do later ones: the newest weights are kept
        unknown = max(psnr, self.progress.best_psnr) >= NO_ERROR
        if best or unknown or keeps_newest(self.config, step):
            told = NO_ERROR if unknown else psnr
            self.progress = replace(self.progress, best_psnr=told, best_step=step)
            self.best = {k: v.clone() for k, v in self.ema.weights.items()}
        if observer is not None:
            observer.on_validation(self.progress.step, psnr, best)
        return psnr

    def _save(self) -> None:
        """By the main process; shards are gathered from all."""
        if self.folder is None:
            return
        shown, here = self.shown, self._in_one_piece()
        if self.processes.main:
            save_weights(self.folder, shown)
            save_state(self.folder, here.model, here.averages, here.optimizer, self.progress)
