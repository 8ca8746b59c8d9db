"""Noise about that which was estimated, and training on restored images with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import nediff
from nediff.config import RecipeConfig
from nediff.data import open_measurements
from nediff.errors import NediffError
from nediff.evaluation.metrics import psnr
from nediff.levels import estimated_levels
from nediff.noise import estimate_colour
from nediff.operators import Coloured, Doubtful, doubtful
from nediff.problem import Problem
from nediff.randomness import Draws
from nediff.recipes import Batch, rehearsal_loss
from nediff.report.run import describe_run
from nediff.training.fitting import Plan, make_trainer, plan_run
from nediff.training.loop import rehearsal_start
from nediff.training.metrics import read_metrics
from tests.test_coloured import colour, normal, pictures

TRUE, TOLD = 0.06, 0.043


def white(*shape: int) -> Tensor:
    return normal(*shape).float()


def test_without_doubt_the_noise_is_that_of_the_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    known, like = Coloured(colour(3)), white(4, 3, 24, 40)
    for name, value in (("WEAKER", 1.0), ("STRONGER", 1.0), ("COLOUR_STRONGER", 1.0)):
        monkeypatch.setattr(doubtful, name, value)
    for name in ("STEP", "OFFSET", "UNEVEN", "COLOUR_UNEVEN"):
        monkeypatch.setattr(doubtful, name, 0.0)
    made = Doubtful(known, like, Draws(0, "doubt", 4)).noise(like)
    assert torch.allclose(made, known.noise(like), atol=1e-5)


def test_strengths_go_from_the_weakest_to_the_strongest() -> None:
    """log strength is uniform; 400 draws: its mean to 4 standard errors, within the ends."""
    like = white(400, 1, 8, 8)
    strength = Doubtful(Coloured(colour()), like, Draws(0, "doubt", 400)).strength
    low, high = doubtful.WEAKER, doubtful.STRONGER
    assert low <= float(strength.min()) < float(strength.max()) <= high
    expected, width = np.log(low * high) / 2, np.log(high / low)
    assert float(strength.log().mean()) == pytest.approx(
        expected, abs=4 * width / (12 * 400) ** 0.5
    )


def test_brightness_is_less_in_doubt_than_colours() -> None:
    """Of noise along the axes of a colour, the last of which is brightness: log-variances vary."""
    known = Coloured(colour(3))
    made = Doubtful(known, white(300, 3, 32, 32), Draws(0, "doubt", 300))
    noise = made.noise(white(300, 3, 32, 32)) / made.strength[:, None, None, None]
    axes = torch.from_numpy(np.linalg.eigh(known.colour.power.mean(axis=0))[1]).float()
    along = torch.einsum("ic,bihw->bchw", axes, noise)
    spread = along.square().mean(dim=(2, 3)).log().std(dim=0)
    assert float(spread[2]) < 0.8 * float(spread[:2].min())


def test_noise_of_a_sample_does_not_depend_on_its_batch() -> None:
    known, like = Coloured(colour(2)), white(5, 2, 16, 16)
    together = Doubtful(known, like, Draws(1, "doubt", range(5))).noise(like)
    alone = Doubtful(known, like[3:], Draws(1, "doubt", range(3, 5))).noise(like[3:])
    assert torch.allclose(together[3:], alone, atol=1e-6)


def noisy() -> tuple[np.ndarray, np.ndarray]:
    """Clean and noisy pictures (N, H, W)."""
    clean = pictures(12, 96).astype(np.float32)
    noise = Coloured(colour()).noise(white(12, 1, 96, 96))[:, 0].numpy()
    return clean, (clean + TRUE * noise).astype(np.float32)


def test_noise_that_was_estimated_is_doubted_and_known_noise_is_not() -> None:
    _, y = noisy()
    images = open_measurements(y, axes="NHW", range=(0, 1))
    found = estimate_colour(images)
    for one, expected in ((found.colour, True), (colour(), False)):
        problem = Problem.denoising(TRUE, 1, one)
        config = plan_run(images, problem, Plan(steps=20, size="tiny"), "(test)")
        assert config.recipe.doubt is expected
        trainer = make_trainer(config, images, None, problem)
        step = rehearsal_start(config)
        kinds = {rehearsed for rehearsed, _, _ in trainer._groups(step)}
        assert kinds == {True, False}
        assert trainer.config.recipe.rehearse_rounds == (6 if expected else 1)


def test_white_noise_is_not_doubted() -> None:
    _, y = noisy()
    images = open_measurements(y, axes="NHW", range=(0, 1))
    recipe = RecipeConfig(name="own", loss="ne_r2r", rehearse=0.5, doubt=True)
    with pytest.raises(NediffError, match="correlated"):
        plan_run(images, Problem.denoising(TRUE), Plan(steps=20, recipe=recipe), "(test)")


def test_an_image_without_noise_has_a_level_too() -> None:
    _, y = noisy()
    y[0] = 0.5
    images = open_measurements(y, axes="NHW", range=(0, 1))
    found = estimate_colour(images)
    problem = Problem.denoising(max(found.sigmas), 1, found.colour)
    restorer = nediff.fit(images.with_sigmas(found.sigmas), problem, steps=10, size="tiny")
    levels = estimated_levels(restorer, images)
    assert min(levels) > 0
    assert np.isfinite(restorer.restore(y[:1, None], sigma=levels[0])).all()


def test_what_is_rehearsed_are_restored_images() -> None:
    """D(y, σ) of whole images of the training; samples would differ from them."""
    _, y = noisy()
    images = open_measurements(y, axes="NHW", range=(0, 1))
    problem = Problem.denoising(TOLD, 1, replace(colour(), estimated=True))
    config = plan_run(images, problem, Plan(steps=20, size="tiny"), "(test)")
    trainer = make_trainer(config, images, None, problem)
    restored = trainer.averaged()(
        torch.from_numpy(y[:, None]), torch.full((len(y),), TOLD), problem.operator
    )
    drawn = trainer.rehearsal_of(4 * 96**2).x
    assert len(drawn) == 4
    for x in drawn:
        assert float((restored - x).abs().amax(dim=(1, 2, 3)).min()) < 1e-5


def test_the_loss_is_divided_by_the_noise_that_was_drawn() -> None:
    """A network that changes nothing has residual strength² level²: weighted, one on average.

    Without unevenness and walks, to 4 standard errors of 400 crops of 256 pixels each, of which
    neighbours share their noise.
    """
    _, y = noisy()
    images = open_measurements(y, axes="NHW", range=(0, 1))
    problem = Problem.denoising(TOLD, 1, replace(colour(), estimated=True))
    recipe = plan_run(images, problem, Plan(steps=20, size="tiny"), "(test)").recipe
    with pytest.MonkeyPatch.context() as patch:
        for name in ("STEP", "OFFSET", "UNEVEN", "COLOUR_UNEVEN"):
            patch.setattr(doubtful, name, 0.0)
        batch = Batch(torch.zeros(400, 1, 16, 16), torch.full((400,), TOLD), problem)
        loss = rehearsal_loss(recipe, lambda u, s, o: u, batch, Draws(0, "loss", 400))
    error = float(loss.std()) / 20
    assert float(loss.mean()) == pytest.approx(1, abs=4 * error)
    assert error < 0.05


def test_doubt_restores_images_that_are_noisier_than_was_estimated() -> None:
    """Told 0.7 of σ: a network that doubts takes more of the noise away than one that believes."""
    clean, y = noisy()
    images = open_measurements(y, axes="NHW", range=(0, 1))
    found = {}
    for estimated in (True, False):
        problem = Problem.denoising(TOLD, 1, replace(colour(), estimated=estimated))
        restorer = nediff.fit(images, problem, steps=300, size="tiny")
        restored = restorer.restore(y[:, None])[:, 0]
        found[estimated] = float(
            np.mean([psnr(a, b) for a, b in zip(restored, clean, strict=True)])
        )
    noisy_psnr = float(np.mean([psnr(a, b) for a, b in zip(y, clean, strict=True)]))
    assert found[True] > found[False] + 0.5
    assert found[False] > noisy_psnr + 0.5


def test_info_tells_the_weights_that_the_run_has(tmp_path: Path) -> None:
    """The newest, whatever SURE, by the estimated noise, says of those before."""
    _, y = noisy()
    images = open_measurements(y, axes="NHW", range=(0, 1))
    found = estimate_colour(images)
    problem = Problem.denoising(max(found.sigmas), 1, found.colour)
    nediff.fit(images.with_sigmas(found.sigmas), problem, steps=60, size="tiny", out=tmp_path)
    rows = [(int(r["step"]), float(r["estimated_psnr"])) for r in read_metrics(tmp_path)]
    told = describe_run(tmp_path)
    assert (told.best_step, told.estimated_psnr) == rows[-1] == (60, rows[-1][1])
