"""Correlated noise: its colour, the losses and the sampler with it, and its estimate."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import nediff
from nediff.config import RecipeConfig
from nediff.data import open_measurements
from nediff.errors import NediffError
from nediff.levels import estimated_levels
from nediff.losses import ne_r2r, sure
from nediff.noise import estimate_colour, level_by_restoring, levels_by_colour
from nediff.operators import Colour, Coloured
from nediff.problem import Problem
from nediff.randomness import Draws
from nediff.recipes import Batch, recipe_named, training_loss
from nediff.sampling import SamplerSettings, sample_posterior
from tests.command import nediff as command
from tests.command import succeeded

SIGMA = 0.1


def colour(channels: int = 1) -> Colour:
    """Noise that falls with the frequency; channels share a half of it."""
    frequency = np.linspace(0, 0.75, 40)
    shared = 0.5 + 0.5 * np.eye(channels)
    return Colour.of(frequency, np.exp(-40 * frequency[:, None, None] ** 2) * shared)[0]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_noise_has_the_variance_and_the_correlations_of_its_colour() -> None:
    operator = Coloured(colour(2))
    noise = operator.noise(normal(200, 2, 32, 32))
    assert float(noise.square().mean()) == pytest.approx(1, abs=0.02)
    assert float((noise[:, 0] * noise[:, 1]).mean()) == pytest.approx(0.5, abs=0.02)
    # exp(−40 f²) is the spectrum of a Gaussian autocorrelation: exp(−π² r²/40)
    across = float((noise * noise.roll(1, -1)).mean())
    assert across == pytest.approx(math.exp(-(math.pi**2) / 40), abs=0.02)
    covered = operator.covariance(normal(1, 2, 32, 32))
    twice = operator.noise(operator.noise(normal(1, 2, 32, 32)))
    assert torch.allclose(covered, twice)


@pytest.mark.parametrize("width", [15, 16])
def test_the_squared_covariance_is_that_of_the_noise(width: int) -> None:
    """tr C² = E‖C^½ n‖² for noise n of covariance C."""
    operator = Coloured(colour())
    n = operator.noise(normal(400, 1, 16, width))
    found = float(operator.noise(n).square().sum(dim=(1, 2, 3)).mean())
    assert found == pytest.approx(float(operator.covariance_square(n)[0]), rel=0.05)


def smooth(y: Tensor, sigma: Tensor) -> Tensor:
    return 0.5 * y + 0.2 * y.roll(1, -1) + 0.2 * y.roll(1, -2)


@pytest.mark.parametrize("loss", ["sure", "ne_r2r"])
def test_losses_are_unbiased_for_correlated_noise(loss: str) -> None:
    """Their mean over 4000 draws is the error at the level of the network, to four of its errors;
    with white noise in their place they would be off by a third."""
    problem = Problem.denoising(SIGMA, 1, colour())
    count = 4000
    x = 0.3 * normal(1, 1, 16, 16, seed=1).expand(count, -1, -1, -1)
    y = x + SIGMA * problem.noise(normal(count, 1, 16, 16, seed=2))
    draw, sigma, one = normal(count, 1, 16, 16, seed=3), torch.full((count,), SIGMA), torch.ones(1)
    sigma, one = sigma.double(), one.double().expand(count)
    if loss == "sure":
        found, noisy = sure(smooth, y, sigma, draw, problem), y
    else:
        found = ne_r2r(smooth, y, sigma, one, 0 * one, one, draw, problem)
        noisy = y + SIGMA * problem.noise(draw)
    truth = (smooth(noisy, sigma) - x).square().mean(dim=(1, 2, 3))
    off = found - truth
    assert abs(float(off.mean())) < 4 * float(off.std()) / math.sqrt(count)
    assert float(off.std()) / math.sqrt(count) < 0.02 * float(truth.mean())


def test_samples_follow_the_posterior_of_a_gaussian_image_in_correlated_noise() -> None:
    """White image, coloured noise: in Fourier space each frequency is a Gaussian of its own."""
    operator = Coloured(colour())
    problem = Problem(SIGMA, 1, operator)
    power = torch.from_numpy(operator.colour.on(16, 16)[..., 0, 0])
    prior = 0.05**2

    def denoise(z: Tensor, sigma: Tensor) -> Tensor:
        gain = prior / (prior + sigma.double()[:, None, None, None] ** 2 * power)
        return torch.fft.irfft2(torch.fft.rfft2(z.double()) * gain, s=(16, 16)).to(z)

    y = SIGMA * problem.noise(normal(1, 1, 16, 16)) + 0.05 * normal(1, 1, 16, 16, seed=1)
    settings = SamplerSettings(steps=40, sigma_min_ratio=1e-3, gamma=7.0)
    sigma = torch.full((1,), SIGMA).double()
    drawn = sample_posterior(denoise, y, sigma, problem, 400, [0], settings)[:, 0]
    mean = denoise(y, sigma)[0]
    off = torch.fft.rfft2(drawn - mean)[:, 0].abs().square().mean(0) / 16**2
    expected = prior * SIGMA**2 * power / (prior + SIGMA**2 * power)
    ratio = off / expected
    assert float(ratio[power > 0.01].mean()) == pytest.approx(1, abs=0.05)
    assert float(ratio[power > 1].mean()) == pytest.approx(1, abs=0.05)


def pictures(count: int = 8, side: int = 128) -> np.ndarray:
    """Smooth shading with a few edges, (count, side, side)."""
    random = np.random.default_rng(0)
    rows, columns = np.indices((side, side)) / side
    out = []
    for _ in range(count):
        a, b, c, d = random.uniform(0.2, 0.8, 4)
        image = 0.3 + 0.3 * a * np.sin(2 * b * rows + 2 * c * columns)
        out.append(image + 0.2 * (rows + a * columns > d))
    return np.stack(out)


@pytest.fixture(scope="module")
def noisy() -> np.ndarray:
    """With correlated noise of 0.03, and of 0.06 in every other image."""
    clean = torch.from_numpy(pictures())[:, None]
    levels = torch.tensor([0.03, 0.06] * (len(clean) // 2))[:, None, None, None]
    y = clean + levels * Coloured(colour()).noise(normal(len(clean), 1, 128, 128))
    return y[:, 0].numpy().astype(np.float32)


def test_the_colour_and_the_levels_are_told_from_noisy_images(noisy: np.ndarray) -> None:
    """Levels to 15 %; the spectrum to 2 dB where there is any."""
    found = estimate_colour(open_measurements(noisy, axes="NHW", range=(0, 1)))
    assert np.allclose(found.sigmas, [0.03, 0.06] * 4, rtol=0.15)
    truth, told = colour().on(32, 32)[..., 0, 0], found.colour.on(32, 32)[..., 0, 0]
    strong = truth > 0.2
    assert np.abs(10 * np.log10(told[strong] / truth[strong])).mean() < 2
    assert Coloured(found.colour).colour.on(8, 8).shape == (8, 5, 1, 1)


def test_the_level_of_a_new_image_is_told_by_the_known_colour(noisy: np.ndarray) -> None:
    """Each alone, to 15 %, as if it had been among those the colour was told from."""
    for image, sigma in zip(noisy[:4], [0.03, 0.06] * 2, strict=True):
        one = open_measurements(image[None], axes="NHW", range=(0, 1))
        assert np.allclose(levels_by_colour(one, colour()), [sigma], rtol=0.15)
    strange = np.concatenate([noisy[:1, :64, :64], np.zeros((1, 64, 64), np.float32)])
    both = levels_by_colour(open_measurements(strange, axes="NHW", range=(0, 1)), colour())
    assert both[0] == both[1]  # nothing can be told from zeros


def test_images_too_small_to_tell_are_refused() -> None:
    tiny = np.random.default_rng(0).random((3, 12, 12)).astype(np.float32)
    images = open_measurements(tiny, axes="NHW", range=(0, 1))
    with pytest.raises(NediffError, match="16 × 16"):
        estimate_colour(images)
    with pytest.raises(NediffError, match="16 × 16"):
        levels_by_colour(images, colour())


def test_a_run_keeps_its_colour(noisy: np.ndarray, tmp_path: Path) -> None:
    data = open_measurements(noisy[:, :64, :64], axes="NHW", range=(0, 1))
    found = estimate_colour(open_measurements(noisy, axes="NHW", range=(0, 1)))
    problem = Problem.denoising(max(found.sigmas), 1, found.colour)
    images = data.with_sigmas(found.sigmas)
    restorer = nediff.fit(images, problem, steps=4, size="tiny", out=tmp_path)
    assert restorer.config.recipe.pool == (1,)
    loaded = nediff.load(tmp_path)
    assert isinstance(loaded.problem.operator, Coloured)
    one, other = (r.sample(data[0], 1, seed=3, sigma=0.03) for r in (restorer, loaded))
    assert np.allclose(one, other, atol=1e-5)
    pooled = RecipeConfig(name="own", loss="ne_r2r", pool=(1, 2), pool_weights=(0.5, 0.5))
    with pytest.raises(NediffError, match="colour"):
        nediff.fit(images, problem, steps=4, size="tiny", recipe=pooled)


def test_the_command_line_trains_restores_and_resumes(noisy: np.ndarray, tmp_path: Path) -> None:
    data, run = tmp_path / "noisy.npy", tmp_path / "run"
    np.save(data, noisy)
    options = (data, "--axes", "NHW", "--range", "0", "1", "--sigma", "correlated", "--out", run)
    trained = succeeded("train", *options, "--steps", "4", "--size", "tiny")
    assert "correlated noise" in trained.err
    succeeded("train", *options, "--steps", "4", "--size", "tiny", "--resume")
    told = " ".join(succeeded("info", run).out.split())
    assert "estimated, correlated" in told
    # of 0.03 and 0.06 in turns: −10 log₁₀ of the mean of their squares, to 15 % of σ
    noisy_psnr = json.loads(succeeded("info", run, "--json").out)["noisy_psnr"]
    assert noisy_psnr == pytest.approx(-10 * np.log10((0.03**2 + 0.06**2) / 2), abs=1.3)
    assert f"{noisy_psnr:.2f} dB" in told
    # estimated noise is doubted: from the first round of rehearsal on the newest weights are kept
    assert trained.err.count("from now on the newest weights are kept") == 1
    assert "dB (kept)" in trained.err
    assert "(best)" not in trained.err.split("from now on")[1]
    assert "of the newest weights" in told
    card = (run / "README.md").read_text()
    assert "correlated between neighbouring pixels" in card
    assert "white" not in card
    levels = ("--sigma", run / "sigmas.csv", "--axes", "NHW")
    succeeded("restore", run, data, *levels, "--out", tmp_path / "restored")
    # new images: the run tells their noise by the colour it knows
    new = tmp_path / "new.npy"
    np.save(new, noisy[:4, :64, :64])
    for what in (("restore", "--out", tmp_path / "estimated"), ("evaluate",), ("calibrate",)):
        told = succeeded(what[0], run, new, "--axes", "NHW", *what[1:])
        assert "noise of each image, by the colour that of the run has" in told.err
        flattered = "the names and sizes of those that the run was trained on" in told.err
        assert not flattered  # fewer and smaller ones
    for what in ("evaluate", "calibrate"):
        told = succeeded(what, run, data, *levels)
        assert "the names and sizes of those that the run was trained on" in told.err, what
    refused = command("train", *options[:-1], tmp_path / "other", "--simulate", "0.1")
    assert refused.code == 2
    assert "--sigma" in refused.err
    refused = command("evaluate", run, new, "--axes", "NHW", "--simulate", "0.06")
    assert refused.code == 2
    assert "correlated noise, and --simulate adds white noise" in refused.err


def test_consistent_diffusion_is_refused_for_correlated_noise() -> None:
    """It adds white noise, and goes down by a sampler of white noise."""
    problem = Problem.denoising(SIGMA, 1, colour())
    y = torch.zeros(2, 1, 16, 16)
    batch = Batch(y, torch.full((2,), SIGMA), problem)
    with pytest.raises(NediffError, match="white noise only"):
        training_loss(recipe_named("cd"), lambda y, *_: y, batch, Draws(0, "loss", [0, 1]))


def test_levels_may_be_numbers_of_numpy(noisy: np.ndarray) -> None:
    """As they come out of an array of estimates, whatever their type."""
    images = open_measurements(noisy[:, :64, :64], axes="NHW", range=(0, 1))
    for level in (np.float64(0.05), np.float32(0.05)):
        restorer = nediff.fit(images, Problem.denoising(level, 1), steps=4, size="tiny")
        assert restorer.restore(noisy[:1, None]).dtype == np.float32


@pytest.mark.parametrize("told", [0.6, 1.0, 1.5])
def test_a_denoiser_that_looks_for_itself_tells_the_level(told: float) -> None:
    """White Gaussian image in coloured noise, its posterior mean in closed form: σ to 5 %.

    Whatever σ the derivative is taken by; and one that was made for another level gives that back.
    """
    power = torch.from_numpy(colour().on(128, 128)[..., 0, 0])
    prior = 0.05**2
    y = 0.05 * normal(1, 1, 128, 128, seed=1) + SIGMA * Coloured(colour()).noise(
        normal(1, 1, 128, 128)
    )

    def posterior_mean(level: float) -> Callable[[np.ndarray], np.ndarray]:
        gain = prior / (prior + level**2 * power)

        def restore(values: np.ndarray) -> np.ndarray:
            spectrum = torch.fft.rfft2(torch.from_numpy(values).double()) * gain
            return torch.fft.irfft2(spectrum, s=(128, 128)).numpy().astype(np.float32)

        return restore

    image = y[0].numpy().astype(np.float32)
    found = level_by_restoring(posterior_mean(SIGMA), image, colour(), told * SIGMA)
    assert found == pytest.approx(SIGMA, rel=0.05)


def test_a_run_that_doubts_tells_the_level_of_its_images(noisy: np.ndarray) -> None:
    """Nearer on average than by the spectrum alone, where that is told too little on purpose."""
    images = open_measurements(noisy, axes="NHW", range=(0, 1))
    found = estimate_colour(images)
    truth = np.array([0.03, 0.06] * 4)
    low = tuple(0.7 * s for s in found.sigmas)
    problem = Problem.denoising(max(low), 1, found.colour)
    restorer = nediff.fit(images.with_sigmas(low), problem, steps=200, size="tiny")
    told = np.array(
        [
            level_by_restoring(
                lambda y, s=s: restorer.restore(y, sigma=s), images.image(i), found.colour, s
            )
            for i, s in enumerate(low)
        ]
    )
    off, off_before = (np.abs(np.log(v / truth)).mean() for v in (told, np.array(low)))
    print(told / truth, np.array(low) / truth)
    assert off < off_before
    assert len(estimated_levels(restorer, images)) == len(images)
