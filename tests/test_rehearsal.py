"""Rehearsal: samples with the law of clean images, the same whenever a run is resumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nediff.config import RunConfig
from nediff.data import Measurements, open_measurements
from nediff.errors import NediffError, NediffWarning
from nediff.operators import Fourier, LinearOperator
from nediff.problem import Problem, cartesian_mask
from nediff.randomness import Draws
from nediff.recipes import recipe_named, rehearsal_loss
from nediff.training.fitting import Plan, make_trainer, plan_run, run_training
from nediff.training.loop import REHEARSAL_FILE, Trainer, rehearsal_round, rehearsal_start
from nediff.training.pace import Pace
from nediff.training.rehearsal import (
    SHARE_OF_WORK,
    Rehearsal,
    draw_rehearsal,
    pixels_to_sample,
)
from nediff.training.state import STATE_FILE, saved_progress

SIGMA, PRIOR = 0.1, 0.15
"""Clean pixels are independent, N(0.5, PRIOR²)."""


def wiener(y: Tensor, sigma: Tensor, operator: LinearOperator) -> Tensor:
    """The MMSE denoiser of that prior."""
    gain = PRIOR**2 / (PRIOR**2 + sigma**2)
    return 0.5 + gain[:, None, None, None] * (y - 0.5)


@pytest.fixture(scope="module")
def noisy() -> Measurements:
    rng = np.random.default_rng(0)
    clean = rng.normal(0.5, PRIOR, size=(6, 128, 128)).astype(np.float32)
    return open_measurements(clean, axes="NHW", range=(0, 1)).simulate(SIGMA, 0)


def planned(noisy: Measurements, **changes: object) -> RunConfig:
    plan = Plan(steps=24, size="tiny", crop=24, batch=4)
    config = plan_run(noisy, Problem.denoising(SIGMA), plan, "")
    recipe = config.recipe.model_copy(update=changes)
    return config.model_copy(update={"recipe": recipe})


def test_samples_have_the_law_of_clean_images(noisy: Measurements) -> None:
    """A denoised image is too smooth, a noisy one too rough; a posterior sample is neither."""
    samples = draw_rehearsal(wiener, noisy, Problem.denoising(SIGMA), 40, 12 * 80**2, seed=1).x
    assert samples.shape == (12, 1, 80, 80)
    # 76 800 pixels: the standard error of the variance is 0.5 %; six calls add 2 to 3 % in sd
    assert samples.std().item() == pytest.approx(PRIOR, rel=0.04)
    denoised = PRIOR**2 / np.sqrt(PRIOR**2 + SIGMA**2)
    assert denoised < 0.85 * PRIOR  # what the tolerance must tell apart


def test_samples_depend_on_weights_and_seed_alone(noisy: Measurements) -> None:
    problem = Problem.denoising(SIGMA)
    few, more = (draw_rehearsal(wiener, noisy, problem, 40, n * 80**2, seed=1).x for n in (2, 3))
    torch.testing.assert_close(few, more[:2])
    other = draw_rehearsal(wiener, noisy, problem, 40, 2 * 80**2, seed=2).x
    assert not torch.allclose(few, other)


def test_small_images_are_sampled_whole() -> None:
    small = np.random.default_rng(0).normal(0.5, 0.2, size=(3, 26, 30)).astype(np.float32)
    images = open_measurements(small, axes="NHW", range=(0, 1))
    samples = draw_rehearsal(wiener, images, Problem.denoising(SIGMA), 24, 100, seed=1).x
    assert samples.shape == (1, 1, 24, 24)


def test_crops_of_samples_are_parts_of_them_and_cover_them() -> None:
    images = torch.arange(2 * 50 * 50, dtype=torch.float32).view(2, 1, 50, 50)
    rehearsal = Rehearsal(images, torch.zeros(2, 2, dtype=torch.int64))
    problem, recipe = Problem.denoising(SIGMA), recipe_named("default")
    ((_, batch),) = rehearsal.groups(range(400), problem, 16, recipe, seed=0)
    assert batch.y.shape == (400, 1, 16, 16)
    rows = batch.y.flatten(1).sort(dim=1).values
    first = rows[:, 0]  # the corner of each crop; the others follow from it, however it is turned
    ramp = (torch.arange(16)[:, None] * 50 + torch.arange(16)).flatten()
    torch.testing.assert_close(rows, first[:, None] + ramp)
    corners = first % 2500
    assert {int(c) // 50 for c in corners} == set(range(35))  # 400 draws of 35 places each
    assert {int(c) % 50 for c in corners} == set(range(35))
    ways = {tuple(c.flatten()[[0, 15]].tolist()) for c in batch.y - first.view(-1, 1, 1, 1)}
    assert len(ways) == 8  # turned and mirrored every way
    parts = torch.cat(
        [
            rehearsal.groups(half, problem, 16, recipe, 0)[0][1].y
            for half in (range(200), range(200, 400))
        ]
    )
    torch.testing.assert_close(parts, batch.y)


def test_the_budget_of_sampling_is_a_share_of_that_of_training() -> None:
    recipe = recipe_named("default")
    assert pixels_to_sample(recipe, 1000, 16, 40) == pytest.approx(1000 * 16 * 40**2 / 25, rel=1e-9)


def test_a_run_rehearses_from_its_start_on_and_keeps_what_it_drew(
    noisy: Measurements, tmp_path: Path
) -> None:
    config = planned(noisy)
    assert config.recipe.rehearse == 0.5
    assert rehearsal_start(config) == 12
    trainer = make_trainer(config, noisy, tmp_path)
    before = trainer._groups(11)
    assert sum(len(samples) for _, samples, _ in before) == 4
    assert trainer.rehearsal is None
    after = trainer._groups(12)
    assert sorted(s for _, samples, _ in after for s in samples) == list(range(48, 52))
    rehearsed, samples, _ = after[-1]
    assert (rehearsed, samples) == (True, [50, 51])
    assert (tmp_path / REHEARSAL_FILE.format(1)).is_file()


def test_a_resumed_run_uses_the_samples_it_drew(noisy: Measurements, tmp_path: Path) -> None:
    config = planned(noisy)
    asked = iter(range(1, 100))
    run_training(config, noisy, tmp_path, stop=lambda: next(asked) == 15)
    drawn = make_trainer(config, noisy, tmp_path)
    drawn.resume(tmp_path)
    assert drawn.progress.step == 15
    assert drawn.rehearsal is not None
    (tmp_path / REHEARSAL_FILE.format(1)).unlink()
    one = make_trainer(config, noisy, tmp_path)
    with pytest.warns(NediffWarning, match="copy"):
        one.resume(tmp_path)
    assert one.rehearsal is not None
    assert torch.equal(one.rehearsal.x, drawn.rehearsal.x)
    (tmp_path / REHEARSAL_FILE.format("1-copy")).unlink()
    lost = make_trainer(config, noisy, tmp_path)
    with pytest.raises(NediffError, match=r"rehearsal-1\.safetensors is missing"):
        lost.resume(tmp_path)


def test_samples_are_drawn_anew_for_each_round(
    noisy: Measurements, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed in the second round, or before it, a run ends with the same weights."""
    monkeypatch.setattr(Trainer, "tidy", lambda self: None)  # keep what was drawn
    config = planned(noisy, rehearse_rounds=2)
    assert [rehearsal_start(config, k) for k in (1, 2)] == [12, 18]
    assert [rehearsal_round(config, step) for step in (11, 12, 17, 18)] == [0, 1, 1, 2]
    run_training(config, noisy, tmp_path / "whole")
    one, two = (Rehearsal.load(tmp_path / "whole" / REHEARSAL_FILE.format(k)) for k in (1, 2))
    assert one.x.shape == two.x.shape
    assert not torch.equal(one.x, two.x)
    for stop_at in (15, 18, 21):
        folder = tmp_path / f"stopped at {stop_at}"
        asked = iter(range(1, 100))
        run_training(config, noisy, folder, stop=lambda n=stop_at, a=asked: next(a) == n)
        run_training(config, noisy, folder)
        for name in ("model.safetensors", REHEARSAL_FILE.format(2)):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_finished_run_keeps_no_samples(noisy: Measurements, tmp_path: Path) -> None:
    """Nor is it lost if its newest state is, or if it was killed just before it was tidied."""
    config = planned(noisy)
    with pytest.MonkeyPatch.context() as killed:
        killed.setattr(Trainer, "tidy", lambda self: None)
        run_training(config, noisy, tmp_path)
    assert list(tmp_path.glob("state/rehearsal-*"))
    weights = (tmp_path / "model.safetensors").read_bytes()
    _, finished = run_training(config, noisy, tmp_path)
    assert finished
    assert not list(tmp_path.glob("state/rehearsal-*"))
    (tmp_path / STATE_FILE).write_bytes(b"")
    with pytest.warns(NediffWarning, match="the state before"):
        _, finished = run_training(config, noisy, tmp_path)
    assert finished
    saved = saved_progress(tmp_path)
    assert saved is not None
    assert saved.step == config.training.steps
    assert (tmp_path / "model.safetensors").read_bytes() == weights


def test_without_rehearsal_nothing_is_drawn(noisy: Measurements, tmp_path: Path) -> None:
    config = planned(noisy, rehearse=0.0)
    run_training(config, noisy, tmp_path)
    assert not (tmp_path / REHEARSAL_FILE.format(1)).exists()


def test_the_pace_counts_both_phases_and_the_drawing(noisy: Measurements) -> None:
    """By a clock that ticks once per look: what is counted is how often it is looked at."""
    ticks = iter(range(1000))
    for share, phases, drawing in ((0.0, 1, 0), (0.5, 2, 1)):
        trainer = make_trainer(planned(noisy, rehearse=share), noisy, None)
        pace = Pace(trainer, clock=lambda: float(next(ticks)))
        took = [pace.measure(steps=2) for _ in range(2)]
        assert took == [phases, phases]  # one tick for each phase
        per_step = 0.5  # of two steps
        if drawing:
            assert trainer.rehearsal is not None
            pixels = trainer.rehearsal.x[:, 0].numel()
            per_step += SHARE_OF_WORK * 4 * 24**2 / pixels
        assert pace.seconds_per_step() == pytest.approx(per_step)


def test_the_pace_weighs_each_phase_by_its_share(noisy: Measurements) -> None:
    """Pooled to the middle, rehearsed from a quarter on: phases of 0.25, 0.25 and 0.5 of a run."""
    config = planned(noisy, rehearse=0.5, rehearse_from=0.25, pool_until=0.5)
    trainer = make_trainer(config, noisy, None)
    now, steps = [0.0], []

    def step(k: int) -> Tensor:
        steps.append(k)
        now[0] += 1.0 if k < 6 else 10.0 if k < 12 else 100.0  # of 24 steps
        return torch.zeros(())

    trainer.step = step  # type: ignore[method-assign]
    pace = Pace(trainer, clock=lambda: now[0])  # to draw takes no time
    pace.measure(steps=2)
    assert steps == [0, 1, 6, 7, 12, 13]
    assert pace.seconds_per_step() == pytest.approx(0.25 * 1 + 0.25 * 10 + 0.5 * 100)


def test_late_in_a_run_nothing_is_pooled() -> None:
    """Of large crops of measurements and of samples alike, from the step on that says so."""
    mask = (torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) < 0.7).float()
    problem = Problem.inpainting(mask, SIGMA)
    pixels = np.random.default_rng(0).random((8, 64, 64), np.float32)
    noisy = open_measurements(pixels, axes="NHW", range=(0, 1)).simulate(SIGMA, 0, problem)
    config = plan_run(noisy, problem, Plan(steps=20, size="tiny", crop=40, batch=16), "")
    recipe = config.recipe.model_copy(update={"pool_until": 0.5})
    trainer = make_trainer(config.model_copy(update={"recipe": recipe}), noisy, None, problem)
    sizes = {
        (k >= 10, rehearsed): {
            b.y.shape[-1] for step in steps for r, _, b in step if r is rehearsed
        }
        for k, steps in ((8, [trainer._groups(s) for s in (8, 9)]), (10, [trainer._groups(10)]))
        for rehearsed in (False, True)
    }
    assert sizes[True, False] == sizes[True, True] == {40}
    assert {16, 32} & sizes[False, False]
    assert {16, 32} & sizes[False, True]


def test_samples_of_a_mosaic_are_pooled_into_complete_coarse_images() -> None:
    """Of a scene of three flat colours: what is pooled is flat too, and shown as a mosaic."""
    problem = Problem.demosaicing(SIGMA)
    colours = torch.tensor([0.2, 0.5, 0.8]).view(1, 3, 1, 1).expand(2, 3, 64, 64)
    rehearsal = Rehearsal(colours, torch.zeros(2, 2, dtype=torch.int64))
    groups = rehearsal.groups(range(60), problem, 40, recipe_named("default", problem.kind), 0)
    sizes = {batch.y.shape[-1]: batch for _, batch in groups}
    assert set(sizes) == {40, 32, 16}  # as they are, by two, by four
    for size in (32, 16):
        batch = sizes[size]
        assert batch.given is not None
        torch.testing.assert_close(batch.y, colours[:1, :, :size, :size].expand_as(batch.y))
        shown = batch.given.known(batch.y).sum(dim=1)
        assert torch.equal(shown, torch.ones_like(shown))  # one colour per pixel
        assert (batch.sigma == SIGMA).all()  # the noise that is to be added


def test_samples_of_a_blur_are_blurred_again() -> None:
    """The rehearsal loss of a network that knows the pooled image is zero; of another it is not."""
    problem = Problem.blur(torch.full((3, 3), 1 / 9), SIGMA, 1)
    images = torch.rand(2, 1, 66, 66, generator=torch.Generator().manual_seed(0))
    rehearsal = Rehearsal(images, torch.zeros(2, 2, dtype=torch.int64))
    recipe = recipe_named("default", "blur").model_copy(
        update={"pool": (2,), "pool_weights": (1.0,)}
    )
    ((samples, batch),) = rehearsal.groups(range(4), problem, 24, recipe, 0)
    assert batch.given is not None
    seen: list[Tensor] = []

    def knows(y: Tensor, sigma: Tensor, operator: LinearOperator) -> Tensor:
        seen.append((y - operator.A(batch.y)) / sigma[:, None, None, None])
        return batch.y

    draws = Draws(0, "loss", samples)
    assert rehearsal_loss(recipe, knows, batch, draws).abs().max() == 0
    # 4 · 22² values of the noise: the standard error of its standard deviation is 1.6 %
    assert seen[0].std().item() == pytest.approx(1, abs=0.07)
    other = rehearsal_loss(recipe, lambda y, s, a: a.fill(y), batch, draws)
    assert other.min() > 0


def test_samples_of_a_scan_are_turned_and_other_lines_of_them_are_known() -> None:
    """Judged on lines that were measured of the sample, shown those that the instrument sees."""
    problem = Problem.mri(cartesian_mask((32, 32), 3, 0), SIGMA)
    operator = problem.operator
    assert isinstance(operator, Fourier)
    generator = torch.Generator().manual_seed(0)
    measured = operator.mask_noise(torch.randn(3, 2, 32, 32, generator=generator))
    # what was not measured of the samples is invented: here, a value that would be noticed
    kspace = measured + 1000 * (1 - operator.mask)
    images = Fourier(torch.ones(32, 32)).A_adjoint(kspace)
    rehearsal = Rehearsal(images, torch.zeros(3, 2, dtype=torch.int64))
    recipe = recipe_named("default", "mri").model_copy(update={"hide": 0.0})
    ((samples, batch),) = rehearsal.groups(range(16), problem, 40, recipe, 0)
    assert batch.given is not None
    known = batch.problem.operator.mask_noise(torch.ones_like(batch.y))
    shown = batch.given.mask_noise(torch.ones_like(batch.y))
    assert torch.equal(shown, operator.mask.expand_as(shown))
    assert (known.sum() - shown.sum()) / shown.sum() > 0.4  # many more lines are known than shown
    hidden = known * (1 - shown)
    assert (batch.y * hidden).abs().max() < 100  # and none of those is invented
    level = rehearsal_loss(recipe, lambda y, s, a: a.A_adjoint(y), batch, Draws(0, "l", samples))
    assert torch.isfinite(level).all()
