"""Optimizer, learning rate, averages, batches and validation, each against what it should be."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nediff.config import RunConfig
from nediff.data import Measurements, open_measurements
from nediff.losses import NO_ERROR, decibels_in_words
from nediff.operators import LinearOperator
from nediff.problem import Problem
from nediff.training import Observer, fit
from nediff.training.batches import BatchSource
from nediff.training.ema import EMA
from nediff.training.fitting import (
    Plan,
    look_every,
    make_trainer,
    peak_rate,
    plan_run,
    steps_in,
)
from nediff.training.optimizer import build_optimizer, orthogonalise
from nediff.training.progress import ProgressLine
from nediff.training.schedule import learning_rate
from nediff.training.validation import SureValidation


def small_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("head", nn.Conv2d(1, 4, 3, padding=1))
    model.add_module("middle", nn.Conv2d(4, 4, 3, padding=1))
    model.add_module("tail", nn.Conv2d(4, 1, 3, padding=1))
    return model


@pytest.mark.parametrize("shape", [(8, 30), (30, 8), (16, 16)])
def test_orthogonalise_brings_singular_values_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    out = orthogonalise(matrix)
    values = torch.linalg.svdvals(out)
    assert values.min() > 0.5
    assert values.max() < 1.3
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    cosine = (out * (u @ vt)).sum() / out.norm() / (u @ vt).norm()
    assert cosine > 0.95
    torch.testing.assert_close(orthogonalise(100 * matrix), out, rtol=1e-3, atol=1e-4)


def test_the_adam_half_is_adam() -> None:
    ours, theirs = small_model(), small_model()
    first = build_optimizer(ours, 1e-3, "adam")
    second = torch.optim.Adam(theirs.parameters(), lr=1e-3, betas=(0.9, 0.99))
    x = torch.randn(2, 1, 6, 6)
    for _ in range(5):
        for model, optimizer in ((ours, first), (theirs, second)):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_muon_takes_the_inner_kernels_only_and_learns() -> None:
    model = small_model()
    optimizer = build_optimizer(model, 1e-3, "muon")
    kinds = {g["kind"]: {id(p) for p in g["params"]} for g in optimizer.param_groups}
    named = dict(model.named_parameters())
    assert kinds["muon"] == {id(named["middle.weight"])}
    assert len(kinds["adam"]) == 5
    x = torch.randn(8, 1, 8, 8)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_learning_rate_warms_up_and_ends_at_zero() -> None:
    rates = [learning_rate(k, 1000, 1e-3, 50) for k in range(1000)]
    assert rates[0] == pytest.approx(1e-3 / 50, rel=0.01)
    assert max(rates) == pytest.approx(1e-3, rel=0.02)
    assert rates[49] > rates[48] > rates[47]
    assert rates[500] == pytest.approx(0.5e-3, rel=0.01)
    assert 0 < rates[-1] < 1e-8
    short = [learning_rate(k, 10, 1.0, 50) for k in range(10)]
    assert max(short) > 0.8  # a short run warms up in a fifth of its steps


def test_average_follows_the_weights() -> None:
    model = nn.Linear(1, 1, bias=False)
    ema = EMA(model, 0.9)
    with torch.no_grad():
        model.weight.fill_(1.0)
    start = ema.weights["weight"].item()
    expected = start
    for step in range(30):
        decay = min(0.9, (step + 1) / (step + 10))
        expected = decay * expected + (1 - decay)
        ema.update(model, step)
    assert ema.weights["weight"].item() == pytest.approx(expected, rel=1e-5)
    assert expected == pytest.approx(1.0, abs=0.1)


@pytest.fixture(scope="module")
def images() -> Measurements:
    rng = np.random.default_rng(0)
    return open_measurements(rng.uniform(size=(5, 80, 96)).astype(np.float32), axes="NHW")


def source(
    images: Measurements, crop: int = 24, factors: tuple[int, ...] = (1, 2, 4)
) -> BatchSource:
    return BatchSource(
        images,
        Problem.denoising(0.1, images.channels),
        crop,
        32,
        factors,
        (1.0,) * len(factors),
        seed=3,
    )


def test_pooled_crops_carry_their_own_noise_level(images: Measurements) -> None:
    seen: dict[float, set[int]] = {}
    for step in range(6):
        for samples, batch in source(images).groups(step):
            assert len(samples) == len(batch.y) == len(batch.sigma)
            for sigma in batch.sigma.tolist():
                seen.setdefault(round(sigma, 6), set()).add(batch.y.shape[-1])
    # 80 pixels: a crop of 24 pooled by 4 would need 96, so it is made 16
    assert seen == {0.1: {24}, 0.05: {24}, 0.025: {16}}


def test_every_sample_of_a_batch_is_there_once(images: Measurements) -> None:
    samples = [s for group, _ in source(images).groups(4) for s in group]
    assert sorted(samples) == list(range(4 * 32, 5 * 32))


Plane = NDArray[np.float32]


def orientations(crop: Plane) -> list[Plane]:
    """The eight flips and turns of a square, each once."""
    return [np.rot90(flipped, k) for flipped in (crop, crop[:, ::-1]) for k in range(4)]


def block_means(image: Plane, factor: int) -> Plane:
    """The mean of the factor×factor block that begins at each pixel, by a sum of shifts."""
    height, width = (n - factor + 1 for n in image.shape)
    shifts = [
        image[down : down + height, right : right + width].astype(np.float64)
        for down in range(factor)
        for right in range(factor)
    ]
    means: Plane = (sum(shifts[1:], shifts[0]) / factor**2).astype(np.float32)
    return means


def places(crop: Plane, means: Sequence[Plane], factor: int) -> list[tuple[int, int, int, int]]:
    """Every (image, top, left, orientation) at which the whole crop is a window of an image."""
    found = []
    for turn, upright in enumerate(orientations(crop)):
        for index, plane in enumerate(means):
            corners = np.argwhere(np.isclose(plane, upright[0, 0], rtol=0, atol=1e-6))
            for top, left in corners.tolist():
                window = plane[top::factor, left::factor][: len(upright), : len(upright)]
                if window.shape == upright.shape and np.allclose(window, upright, 0, 1e-6):
                    found.append((index, top, left, turn))
    return found


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_crops_are_windows_of_the_images(images: Measurements, factor: int) -> None:
    """Every pixel of a crop: it is a window of one pooled image, flipped or turned, and no other.

    All images, all eight orientations and all corners of blocks occur, and only those.
    """
    means = [block_means(images.image(i)[0], factor) for i in range(len(images))]
    found = []
    for step in range(2):
        for _, batch in source(images, factors=(factor,)).groups(step):
            for crop in batch.y[:, 0].numpy():
                (place,) = places(crop, means, factor)
                found.append(place)
    indices, tops, lefts, turns = (set(column) for column in zip(*found, strict=True))
    assert indices == set(range(len(images)))
    assert turns == set(range(8))
    assert {top % factor for top in tops} == {left % factor for left in lefts} == set(range(factor))


def test_clean_crops_are_the_same_windows(images: Measurements) -> None:
    """Beside each noisy crop lies the clean one of the same image, place and orientation."""
    noisy = images.simulate(0.1, seed=5)
    batches = BatchSource(
        noisy, Problem.denoising(0.1, noisy.channels), 24, 16, (2,), (1.0,), seed=3, with_clean=True
    )
    planes = [[block_means(m.image(i)[0], 2) for i in range(len(m))] for m in (noisy, images)]
    for _, batch in batches.groups(0):
        assert batch.clean is not None
        for pair in zip(batch.y[:, 0].numpy(), batch.clean[:, 0].numpy(), strict=True):
            (measured,), (clean,) = (places(c, p, 2) for c, p in zip(pair, planes, strict=True))
            assert measured == clean


def test_positions_and_images_are_covered_evenly() -> None:
    ramp = np.arange(64 * 64, dtype=np.float32).reshape(1, 64, 64) / 4096
    flat = [np.full((1, 64, 64), 2.0, np.float32)]
    measurements = open_measurements(np.concatenate([ramp, *flat]), axes="NHW", range=(0, 1))
    picks = BatchSource(
        measurements, Problem.denoising(0.1, measurements.channels), 16, 64, (1,), (1.0,), seed=0
    )
    first = 0
    rows: list[float] = []
    for step in range(20):
        for _, batch in picks.groups(step):
            own = batch.y.flatten(1).max(1).values < 1.5
            first += int(own.sum())
            rows += (batch.y[own].flatten(1).mean(1) * 64).tolist()
    n = 20 * 64
    assert abs(first - n / 2) < 5 * math.sqrt(n / 4)  # both images, equally large, equally often
    centre = np.mean(rows)
    assert abs(centre - 32) < 5 * (48 / math.sqrt(12)) / math.sqrt(len(rows))


def test_validation_is_the_error_estimated_without_truth() -> None:
    rng = np.random.default_rng(1)
    clean = open_measurements(
        rng.normal(0.5, 0.2, size=(6, 128, 128)).astype(np.float32), axes="NHW", range=(0, 1)
    )
    noisy = clean.simulate(0.1, 0)

    def shrink(y: Tensor, sigma: Tensor, operator: LinearOperator) -> Tensor:
        mean = y.mean(dim=(1, 2, 3), keepdim=True)
        return mean + 0.8 * (y - mean)

    validation = SureValidation(noisy, Problem.denoising(0.1), seed=0)
    found = validation.estimated_psnr(shrink)
    truth = -10 * math.log10(0.2**2 * 0.2**2 + 0.8**2 * 0.1**2)
    assert found == pytest.approx(truth, abs=0.15)  # 98 304 pixels: 5 standard errors in dB
    assert found == validation.estimated_psnr(shrink)


@pytest.mark.parametrize("seconds", [10.0, 60.0, 240.0, 1200.0])
def test_a_budget_holds_the_steps_and_the_looks_that_come_with_them(seconds: float) -> None:
    per_step, per_look = 0.2, 1.4

    def takes(steps: int) -> float:
        return steps * per_step + per_look * math.ceil(steps / look_every(steps))

    steps = steps_in(seconds, per_step, per_look)
    assert takes(steps) <= seconds + 2 * per_look  # a last part counts as a whole one
    assert takes(steps + 1) > seconds - 2 * per_look


def test_short_runs_learn_at_a_higher_rate_and_long_ones_as_ever() -> None:
    assert peak_rate(10_000, "muon") == peak_rate(1500, "muon") == 1e-3
    assert peak_rate(600, "muon") == pytest.approx(1e-3 * 2.5**0.5)
    assert peak_rate(375, "muon") == peak_rate(1, "muon") == 2e-3
    assert peak_rate(1, "adam") == 1e-3


class Terminal(io.StringIO):
    """Standard error as somebody sees it."""

    def isatty(self) -> bool:
        return True


def test_fit_shows_how_far_it_is_to_who_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line on a terminal; nothing in a file, and nothing where an observer is told."""
    images = np.random.default_rng(0).normal(0.5, 0.1, (3, 32, 32)).astype(np.float32)

    def shown(stream: io.StringIO, observer: Observer | None = None) -> str:
        with monkeypatch.context() as patched:
            patched.setattr("sys.stderr", stream)
            noisy = open_measurements(images, axes="NHW", range=(0, 1))
            fit(noisy, 0.1, steps=3, size="tiny", crop=16, observer=observer)
        return stream.getvalue()

    line = shown(Terminal())
    assert "training: 3 of 3 steps, 0:00 left" in line
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert shown(io.StringIO()) == ""
    assert shown(Terminal(), ProgressLine(io.StringIO())) == ""


def test_what_is_typed_in_python_is_shown_in_words() -> None:
    images = np.random.default_rng(0).normal(0.5, 0.1, (3, 32, 40)).astype(np.float32)
    noisy = open_measurements(images, axes="NHW", range=(0, 1))
    assert repr(noisy) == "<Measurements: 3 image(s) of 40 × 32 pixels, 1 channel(s), range 0 to 1>"
    assert "simulated noise of σ = 0.2" in repr(noisy.simulate(0.2, 0))
    restorer = fit(noisy, 0.1, steps=2, size="tiny", crop=16)
    assert repr(restorer) == (
        "<Restorer: denoising, σ = 0.1 of the range 0 to 1, 1 channel(s), tiny network, recipe "
        "default, 2 steps>"
    )


@pytest.mark.parametrize(
    ("time_for", "asked", "expected"), [(499, None, 8), (500, None, 16), (40, 16, 16), (40, 5, 5)]
)
def test_where_there_is_time_for_few_steps_only_they_are_of_fewer_crops(
    monkeypatch: pytest.MonkeyPatch, time_for: int, asked: int | None, expected: int
) -> None:
    tried: list[int] = []

    def within(minutes: float, config: RunConfig, *_: object) -> int:
        tried.append(config.training.batch)
        return time_for * 16 // config.training.batch

    monkeypatch.setattr("nediff.training.fitting.steps_within", within)
    noisy = open_measurements(np.random.default_rng(0).random((4, 48, 48)), axes="NHW")
    config = plan_run(noisy, Problem.denoising(0.1), Plan(minutes=0.5, batch=asked), "(test)")
    assert config.training.batch == tried[-1] == expected
    assert config.training.steps == time_for * 16 // expected


def test_a_mask_keeps_its_batch_however_short_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer crops were tried for denoising only."""
    monkeypatch.setattr("nediff.training.fitting.steps_within", lambda *_: 40)
    mask = np.random.default_rng(0).random((48, 48)) < 0.7
    y = np.random.default_rng(1).random((4, 48, 48)) * mask
    noisy = open_measurements(y, axes="NHW", range=(0, 1))
    config = plan_run(noisy, Problem.inpainting(mask, 0.1), Plan(minutes=0.5), "(test)")
    assert config.training.batch == 16


def test_where_held_out_images_cannot_tell_the_newest_weights_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of pixels that are cut off SURE expects noise that is not there: no error is not the best."""
    estimates = iter([30.0, 29.0, NO_ERROR, NO_ERROR, 60.0])
    monkeypatch.setattr(SureValidation, "estimated_psnr", lambda *_: next(estimates))
    noisy = open_measurements(np.random.default_rng(0).random((4, 48, 48)), axes="NHW")
    plan = Plan(steps=5, size="tiny", batch=2, crop=16)
    config = plan_run(noisy, Problem.denoising(0.1), plan, "(test)")
    trainer = make_trainer(config, noisy, None)
    kept = []
    for step in range(5):
        trainer.progress = replace(trainer.progress, step=step + 1)
        trainer.validate(None)
        kept.append(trainer.progress.best_step)
    assert kept == [1, 1, 3, 4, 5]
    assert trainer.progress.best_psnr == NO_ERROR
    assert decibels_in_words(NO_ERROR) == "(not known)"
    assert decibels_in_words(29.876) == "29.88 dB"
