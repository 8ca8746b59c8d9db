"""1. Training steps: images a second, the share of the convolution peak, against other loops.

Every candidate trains the same network on the same crops of `bsd400_gray`, batch 16, one thread.
Against: deepinv's `SureGaussianLoss` through its `Trainer`, and a plain loop written by hand. Of
`small`, also with `--compile`, and how long that takes before the first step.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.denoising import SIGMA, open_training
from benchmarks.speed.peak import best_pass
from benchmarks.speed.timing import in_turns, ratio
from nediff.config import RunConfig
from nediff.data import Measurements
from nediff.networks import Denoiser, build_denoiser, compile_networks
from nediff.problem import Problem
from nediff.training.fitting import Plan, make_trainer, plan_run
from nediff.training.loop import Trainer

RECIPES = ("default", "paper", "sure", "supervised")
SIZES = ("tiny", "small", "base")
STEPS = {"tiny": 12, "small": 6, "base": 2}
"""In each round."""
COMPILED = {"small": ("default", "sure")}
"""The recipes that are also measured with compiled networks."""
BATCH, CROP = 16, 40
PASSES = 20
"""Of the best convolution, in each round."""


def our_trainer(data: Path, recipe: str, size: str, batch: int = BATCH) -> Trainer:
    """A run of ours; its steps are timed and thrown away."""
    noisy = open_training(data)
    for i in range(len(noisy)):  # decoded images and their noise are kept after the first use
        noisy.image(i)
    return make_trainer(our_run(noisy, recipe, size, 1000, batch), noisy, None)


def our_run(
    noisy: Measurements, recipe: str, size: str, steps: int, batch: int = BATCH
) -> RunConfig:
    """As `nediff train --steps --batch` would plan it."""
    plan = Plan(
        steps=steps,
        recipe=recipe,
        size=size,  # type: ignore[arg-type]
        batch=batch,
        crop=CROP,
    )
    return plan_run(noisy, Problem.denoising(SIGMA), plan, "bsd400_gray")


def our_steps(trainer: Trainer, count: int) -> Callable[[], object]:
    """``count`` steps a call, half of them before and half after rehearsal begins."""
    late = trainer.config.training.steps // 2
    done = [0]

    def work() -> None:
        for k in range(count):
            first = late if trainer.config.recipe.rehearse and k >= count // 2 else 0
            trainer.step(first + done[0] + k)
        done[0] += count

    return work


def compiled_steps(
    data: Path, recipe: str, size: str, count: int
) -> tuple[Callable[[], object], float]:
    """The same with `--compile`, and the seconds on the clock that compiling takes.

    Kernels are made when the network is first called.
    """
    trainer = our_trainer(data, recipe, size)
    work = our_steps(trainer, count)
    work()  # draws what it rehearses with
    compile_networks(trainer.bare_model)
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return work, seconds[0] - seconds[1]


def crops(trainer: Trainer, count: int) -> Tensor:
    """Crops of the training images, as our batches have them: (count · BATCH, 1, CROP, CROP)."""
    found: list[Tensor] = []
    step = 0
    while sum(len(y) for y in found) < count * BATCH:
        groups = trainer.batches.groups(step, trainer.batches.samples(step))
        found += [b.y for _, b in groups if b.y.shape[-1] == CROP]
        step += 1
    return torch.cat(found)[: count * BATCH]


def plain_steps(denoiser: Denoiser, y: Tensor) -> Callable[[], object]:
    """What one writes in an afternoon: SURE at σ_n, Adam, nothing else."""
    optimizer = torch.optim.Adam(denoiser.parameters(), lr=1e-4)

    def work() -> None:
        for batch in y.split(BATCH):
            sigma = torch.full((len(batch),), SIGMA)
            probe, tau = torch.randn_like(batch), 0.01 * SIGMA
            out = denoiser(batch, sigma)
            moved = denoiser(batch + tau * probe, sigma)
            divergence = (probe * (moved - out)).mean() / tau
            loss = (out - batch).square().mean() + 2 * SIGMA**2 * divergence
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return work


def deepinv_trainer(
    denoiser: Denoiser,
    crops: Dataset[Any],
    rate: float,
    epochs: int,
    folder: str = ".",
    batch: int = BATCH,
) -> Any:
    """deepinv's Trainer with its SURE loss at σ_n, as its documentation sets it up."""
    import deepinv

    class Model(torch.nn.Module):
        """D(y, σ_n), as deepinv calls it."""

        def __init__(self) -> None:
            super().__init__()
            self.denoiser = denoiser

        def forward(self, y: Tensor, physics: Any, **_: Any) -> Tensor:
            out: Tensor = self.denoiser(y, torch.full((len(y),), SIGMA))
            return out

    model = Model()
    return deepinv.Trainer(
        model=model,
        physics=deepinv.physics.Denoising(deepinv.physics.GaussianNoise(SIGMA)),
        optimizer=torch.optim.Adam(model.parameters(), lr=rate),
        train_dataloader=DataLoader(crops, batch_size=batch),
        epochs=epochs,
        losses=deepinv.loss.SureGaussianLoss(SIGMA),
        metrics=[],
        compute_train_metrics=False,
        device=torch.device("cpu"),
        save_path=_own_folder(folder),
        ckp_interval=10**6,
        verbose=False,
        show_progress_bar=False,
    )


def _own_folder(folder: str) -> str:
    """One below it for each run: it names its checkpoints by the second, and refuses two alike."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return tempfile.mkdtemp(dir=folder)


def deepinv_steps(denoiser: Denoiser, y: Tensor, folder: str) -> Callable[[], object]:
    """One epoch of it on a data loader of the same crops."""
    crops = TensorDataset(torch.zeros_like(y), y)
    return lambda: deepinv_trainer(denoiser, crops, 1e-4, 1, folder).train()


def operations(work: Callable[[], object]) -> float:
    """Floating-point operations of the convolutions and matrix products of one call.

    Of the second: the first of ours also draws the images that it rehearses with, once for many
    steps.
    """
    work()
    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())


def measure_size(data: Path, size: str, rounds: int) -> dict[str, Any]:
    """All recipes of one network size, and for the SURE loss the loops of others."""
    count = STEPS[size]
    trainers = {recipe: our_trainer(data, recipe, size) for recipe in RECIPES}
    work = {recipe: our_steps(trainer, count) for recipe, trainer in trainers.items()}
    y, network = crops(trainers["sure"], count), trainers["sure"].config.network
    work["plain loop, SURE"] = plain_steps(build_denoiser(network), y)
    name, (peak, peak_operations) = best_pass()
    with tempfile.TemporaryDirectory() as folder:
        work["deepinv, SURE"] = deepinv_steps(build_denoiser(network), y, folder)
        counted = {key: operations(run) for key, run in work.items()}
        waited = {}
        for recipe in COMPILED.get(size, ()):
            row = f"{recipe}, compiled"
            work[row], waited[row] = compiled_steps(data, recipe, size, count)
            counted[row] = counted[recipe]
        work["peak"] = lambda: [peak() for _ in range(PASSES)]
        seconds = in_turns(work, rounds)
    found: dict[str, Any] = {"size": size, "steps": count, "batch": BATCH, "peak": name}
    per_second = [PASSES * peak_operations / s for s in seconds["peak"]]
    found["peak_gflops"] = max(per_second) / 1e9
    rows = {}
    for key in counted:
        images = count * BATCH
        share = [s / (counted[key] / p) for s, p in zip(seconds[key], per_second, strict=True)]
        rows[key] = {
            "images_per_second": images / float(torch.tensor(seconds[key]).median()),
            "operations_per_image": counted[key] / images,
            "share_of_peak": ratio([1.0] * len(share), share),
            "seconds_of_ours_sure": ratio(seconds[key], seconds["sure"]),
        }
    return found | {"rows": rows, "seconds_to_compile": waited}


def run(data: Path, rounds: int = 7) -> dict[str, Any]:
    """Every size."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as kernels:  # not those of earlier runs
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = kernels
        return {"sizes": [measure_size(data, size, rounds) for size in SIZES]}
