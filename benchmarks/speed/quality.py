"""2. Time to quality: PSNR at σ_n on `bsd68_gray` after so many minutes of one core.

Ours (the default recipe, which serves every level below σ_n as well, and SURE alone), deepinv's
SURE loss through its Trainer with the same network, and Noise2Void by CAREamics with its own. Each
minute count is a run of its own, with its learning rate going to zero at its end; the minutes it
really took, of the processor, are those that count, ours with the looks at held-out images that
choose the best weights. BM3D, told σ_n, is the line to beat.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.denoising import SIGMA, central_squares, open_training
from benchmarks.speed import peers
from benchmarks.speed.steps import BATCH, CROP, deepinv_trainer, our_run, our_trainer
from nediff.evaluation.metrics import psnr
from nediff.experiments.pieces import write_text
from nediff.networks import build_denoiser
from nediff.training.fitting import CROPS, FEW_STEPS, steps_in
from nediff.training.pace import Pace

MINUTES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
SIDE, EVERY = 256, 6
MODEL = Path("runs/speed/default")
DONE = Path("runs/speed/quality.json")
"""The runs that are finished: (minutes, PSNR) of each."""
DEEPINV = {
    "deepinv, SURE": (1e-3, BATCH),
    "deepinv, SURE, rate doubled": (2e-3, BATCH),
    "deepinv, SURE, rate doubled, batch halved": (2e-3, BATCH // 2),
}
"""Adam's rate and crops a step: those of our own Adam runs, and what our short runs have."""
Images = NDArray[np.float32]
Result = tuple[Images, float]
"""Restored images, and the minutes of training."""


def by_us(recipe: str, data: Path, minutes: float, noisy: Images) -> Result:
    """A run of so many minutes, and its one-step estimates."""
    from nediff.training.fitting import run_training

    batch, steps = CROPS, _steps_within(minutes, recipe, data, CROPS)
    if steps < FEW_STEPS:
        batch, steps = CROPS // 2, _steps_within(minutes, recipe, data, CROPS // 2)
    images = open_training(data)
    config, started = our_run(images, recipe, "small", steps, batch), time.process_time()
    restorer, _ = run_training(config, images, None)
    spent = (time.process_time() - started) / 60
    if recipe == "default" and minutes == MINUTES[-1]:
        restorer.save(MODEL)  # the sampling part uses it
    return np.stack([restorer.restore(y) for y in noisy]), spent


def _steps_within(minutes: float, recipe: str, data: Path, batch: int) -> int:
    """As `nediff train --minutes` finds it, by the clock of the processor."""
    trial = our_trainer(data, recipe, "small", batch)
    pace = Pace(trial, time.process_time)
    for _ in range(4):
        pace.measure()
    started = time.process_time()
    trial.validate(None)
    looking = time.process_time() - started
    return steps_in(60 * minutes, pace.seconds_per_step(), looking)


class Crops(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """So many random crops of the noisy training images, turned at random; no truth."""

    def __init__(self, data: Path, count: int) -> None:
        self.noisy, self.count = open_training(data), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng(index)
        i = int(rng.integers(len(self.noisy)))
        height, width = self.noisy.size(i)
        top, left = rng.integers(height - CROP + 1), rng.integers(width - CROP + 1)
        y = self.noisy.image(i)[:, top : top + CROP, left : left + CROP]
        y = np.rot90(y, rng.integers(4), (1, 2))
        return torch.zeros(1, CROP, CROP), torch.from_numpy(np.ascontiguousarray(y))


def by_deepinv(data: Path, minutes: float, noisy: Images, rate: float, batch: int) -> Result:
    """deepinv's Trainer: one epoch of as many crops as it gets through in the time."""
    network = our_trainer(data, "sure", "small").config.network

    def epoch(count: int, scheduled: bool) -> tuple[Any, float]:
        denoiser = build_denoiser(network)
        folder = str(MODEL.parent / "deepinv")  # where it leaves its checkpoints
        trainer = deepinv_trainer(denoiser, Crops(data, count), rate, 1, folder, batch)
        if scheduled:
            steps = count // batch
            cosine = torch.optim.lr_scheduler.CosineAnnealingLR(trainer.optimizer, steps)
            after = trainer.optimizer.register_step_post_hook(lambda *_: cosine.step())
        started = time.process_time()
        trainer.train()
        if scheduled:
            after.remove()
        return denoiser, time.process_time() - started

    _, warm = epoch(10 * batch, False)
    _, seconds = epoch(30 * batch, False)
    steps = int(60 * minutes / ((seconds - warm) / 20))
    denoiser, spent = epoch(steps * batch, True)
    with torch.no_grad():
        sigma = torch.full((1,), SIGMA)
        found = [denoiser(torch.from_numpy(y[None]), sigma)[0].numpy() for y in noisy]
    return np.stack(found), spent / 60


def by_noise2void(data: Path, minutes: float, noisy: Images) -> Result:
    """CAREamics, in an environment of its own, which it leaves when the time is up."""
    measured = open_training(data)
    side = min(min(measured.size(i)) for i in range(len(measured)))
    train = np.stack([measured.image(i)[0, :side, :side] for i in range(len(measured))])
    return peers.noise2void(train, noisy[:, 0], minutes)[:, None], minutes


def by_bm3d(noisy: Images) -> Images:
    """BM3D with the true σ."""
    import bm3d

    return np.stack([bm3d.bm3d(y[0].astype(np.float64), SIGMA)[None] for y in noisy])


METHODS: dict[str, Callable[[Path, float, Images], Result]] = {
    "ours, the default": lambda data, m, y: by_us("default", data, m, y),
    "ours, SURE": lambda data, m, y: by_us("sure", data, m, y),
    **{
        name: partial(by_deepinv, rate=rate, batch=batch) for name, (rate, batch) in DEEPINV.items()
    },
    "Noise2Void (CAREamics)": by_noise2void,
}


def minutes_to(target: float, curve: dict[float, float]) -> float | None:
    """Where the PSNR, linear in log time between the runs, reaches a target; None if it does not.

    >>> minutes_to(28.5, {1.0: 28.0, 4.0: 29.0})
    2.0
    """
    times = sorted(curve)
    if curve[times[0]] >= target:
        return times[0]
    for before, after in pairwise(times):
        if curve[before] < target <= curve[after]:
            share = (target - curve[before]) / (curve[after] - curve[before])
            return float(before * (after / before) ** share)
    return None


def run(data: Path, minutes: tuple[float, ...] = MINUTES) -> dict[str, Any]:
    """Every method for every count of minutes; the target is the best of deepinv."""
    torch.set_num_threads(1)
    clean, measured = central_squares(data, SIDE, EVERY)
    truth = np.stack([clean.image(i) for i in range(len(clean))])
    noisy = np.stack([measured.image(i) for i in range(len(measured))])

    def judged(images: Images) -> float:
        return float(np.mean([psnr(a, b) for a, b in zip(images, truth, strict=True)]))

    done: dict[str, list[float]] = json.loads(DONE.read_text()) if DONE.exists() else {}
    for name, m in product(METHODS, minutes):
        if f"{name} {m}" not in done:
            images, spent = METHODS[name](data, m, noisy)
            done[f"{name} {m}"] = [spent, judged(images)]
            write_text(DONE, json.dumps(done, indent=1))
    curves: dict[str, dict[float, float]] = {name: {} for name in METHODS}
    for name, m in product(METHODS, minutes):
        spent, found = done[f"{name} {m}"]
        curves[name][spent] = found
    target = max(max(curve.values()) for name, curve in curves.items() if "deepinv" in name)
    reached = {name: minutes_to(target, curve) for name, curve in curves.items()}
    return {
        "images": len(noisy),
        "minutes": list(minutes),
        "noisy": judged(noisy),
        "bm3d": judged(by_bm3d(noisy)),
        "curves": {name: list(curve.items()) for name, curve in curves.items()},
        "target": target,
        "minutes_to_target": reached,
    }
