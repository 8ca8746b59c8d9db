"""Metrics against closed forms; estimates without truth against the truth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from nediff.config import DataConfig, NetworkConfig, RunConfig, TrainingConfig
from nediff.data import open_measurements
from nediff.evaluation import Calibration, evaluate_blind, evaluate_with_truth, psnr, ssim
from nediff.evaluation.parts import SIDE, parts_to_judge
from nediff.networks.denoiser import Denoiser
from nediff.problem import Problem
from nediff.recipes import recipe_named
from nediff.restorer import Restorer

SIGMA = 0.1


class Shrink(Denoiser):
    """The MMSE denoiser of white images of variance v about their mean: u ↦ v/(v+σ²) u."""

    def __init__(self, variance: float) -> None:
        super().__init__()
        self.variance = torch.nn.Parameter(torch.tensor(variance), requires_grad=False)

    def denoise_centred(self, u: Tensor, sigma: Tensor) -> Tensor:
        gain = self.variance / (self.variance + sigma.square())
        return gain[:, None, None, None] * u


def restorer(variance: float) -> Restorer:
    config = RunConfig(
        version="0",
        data=DataConfig(
            source="test", low=0, high=1, range_chosen="given", channels=1, images=1, sigma=SIGMA
        ),
        network=NetworkConfig(channels=1, sigma_data=0.2),
        recipe=recipe_named("default"),
        training=TrainingConfig(steps=1),
    )
    return Restorer(Problem.denoising(SIGMA), Shrink(variance), config)


@pytest.fixture(scope="module")
def white() -> np.ndarray:
    """Four images of independent pixels, N(0.5, 0.15²)."""
    return np.random.default_rng(0).normal(0.5, 0.15, size=(4, 80, 90)).astype(np.float32)


def test_psnr_is_the_formula() -> None:
    truth = np.zeros((1, 4, 4))
    assert psnr(truth + 0.1, truth) == pytest.approx(20.0)
    assert psnr(truth, truth) == math.inf


def test_ssim_of_equal_images_is_one_and_falls_with_noise(white: np.ndarray) -> None:
    truth = white[:1]
    assert ssim(truth, truth) == pytest.approx(1.0)
    assert ssim(truth + 0.3, truth) < 1.0
    noise = np.random.default_rng(1).normal(size=truth.shape)
    assert ssim(truth + 0.05 * noise, truth) > ssim(truth + 0.2 * noise, truth)
    assert math.isnan(ssim(np.zeros((1, 8, 30)), np.zeros((1, 8, 30))))


def test_estimates_without_truth_agree_with_the_truth(white: np.ndarray) -> None:
    clean = open_measurements(white, axes="NHW", range=(0, 1))
    noisy = clean.simulate(SIGMA, 0)
    pixels = white.size
    result = evaluate_with_truth(restorer(0.15**2), noisy, clean, samples=8, pairs=True)
    truth = result.levels[-1].psnr
    # SURE is a mean over pixels of terms with sd ≈ 2σ²; against MSE ≈ 0.7σ², in dB:
    tolerance = 4.343 * 5 * 2 / 0.69 / math.sqrt(pixels)
    assert abs(result.blind.estimated_psnr - truth) < tolerance
    assert abs(result.blind.predicted_psnr - truth) < tolerance  # law 3: it is the MMSE denoiser
    alone = evaluate_blind(restorer(0.15**2), noisy)
    assert replace(alone.blind, pairs=None) == replace(result.blind, pairs=None)
    assert alone.blind.pairs.ratio == result.blind.pairs.ratio
    low, high = result.blind.interval
    assert low < truth < high
    assert alone.spread is None


def ramps(*shape: int) -> np.ndarray:
    """Images whose values do not matter."""
    return np.broadcast_to(np.linspace(0, 1, shape[-1], dtype=np.float32), shape).copy()


@pytest.mark.parametrize(("images", "squares"), [(1, 12), (2, 6), (5, 1)])
def test_large_images_are_judged_by_different_squares(images: int, squares: int) -> None:
    whole = open_measurements(ramps(images, 1100, 1300), axes="NHW", range=(0, 1))
    problem = Problem.denoising(SIGMA, 1)
    parts = parts_to_judge(whole, problem, 0)
    assert len(parts) == images * squares
    seen = np.zeros((images, 1100, 1300), int)
    for w in parts.windows:
        assert (w.height, w.width) == (SIDE, SIDE)
        seen[w.page, w.top : w.top + SIDE, w.left : w.left + SIDE] += 1
    assert seen.sum() == len(parts) * SIDE**2  # inside …
    assert seen.max() == 1  # … and none twice
    assert parts.windows == parts_to_judge(whole, problem, 0).windows
    assert parts.windows != parts_to_judge(whole, problem, 1).windows


def test_small_images_and_those_that_cannot_be_cut_are_judged_whole(white: np.ndarray) -> None:
    small = open_measurements(white, axes="NHW", range=(0, 1))
    assert parts_to_judge(small, Problem.denoising(SIGMA, 1), 0).windows == small.windows
    large = open_measurements(ramps(1, 600, 64), axes="NHW", range=(0, 1))
    parts = parts_to_judge(large, Problem.denoising(SIGMA, 1), 0)
    assert {(w.height, w.width) for w in parts.windows} == {(SIDE, 64)}
    blurred = Problem.blur(torch.ones(3, 3) / 9, SIGMA)
    assert parts_to_judge(large, blurred, 0).windows == large.windows


def test_squares_of_a_large_image_tell_its_error() -> None:
    """White images of variance 0.15² in noise σ: the error is 0.15²σ²/(0.15² + σ²) of any pixel."""
    large = np.random.default_rng(0).normal(0.5, 0.15, (1, 600, 700))
    clean = open_measurements(large, axes="NHW", range=(0, 1))
    found = evaluate_blind(restorer(0.15**2), clean.simulate(SIGMA, 0), samples=0)
    pixels = 9 * SIDE**2  # 3 × 3 squares fit
    tolerance = 4.343 * 5 * 2 / 0.69 / math.sqrt(pixels)
    error = 0.15**2 * SIGMA**2 / (0.15**2 + SIGMA**2)
    assert found.images == 1
    assert abs(found.blind.estimated_psnr + 10 * math.log10(error)) < tolerance


def test_law_3_tells_a_wrong_denoiser(white: np.ndarray) -> None:
    clean = open_measurements(white, axes="NHW", range=(0, 1))
    noisy = clean.simulate(SIGMA, 0)
    wrong = evaluate_blind(restorer(0.05**2), noisy).blind
    assert wrong.predicted_psnr - wrong.estimated_psnr > 1.0  # it believes itself too good


def test_a_noise_level_that_is_too_large_is_told() -> None:
    """Nearly even images, restored for noise of 0.1, with as much of it or half of it."""
    even = np.random.default_rng(0).normal(0.5, 0.01, (4, 80, 90)).astype(np.float32)
    clean = open_measurements(even, axes="NHW", range=(0, 1))
    exact = restorer(0.01**2)
    assert not evaluate_blind(exact, clean.simulate(SIGMA, 0), samples=0).blind.noise_overstated
    assert evaluate_blind(exact, clean.simulate(SIGMA / 2, 0), samples=0).blind.noise_overstated


def test_spread_of_the_right_sampler_is_right_and_lower_levels_are_reported(
    white: np.ndarray,
) -> None:
    clean = open_measurements(white, axes="NHW", range=(0, 1))
    result = evaluate_with_truth(
        restorer(0.15**2), clean.simulate(SIGMA, 0), clean, 8, lower_levels=(0.02, 0.05)
    )
    assert [level.sigma for level in result.levels] == [0.02, 0.05, SIGMA]
    for level in result.levels:
        mmse = 1 / (1 / 0.15**2 + 1 / level.sigma**2)
        assert level.psnr == pytest.approx(-10 * math.log10(mmse), abs=0.15)
        assert level.psnr_noisy == pytest.approx(-20 * math.log10(level.sigma), abs=0.15)
    assert result.spread is not None
    assert result.spread.error2_over_variance == pytest.approx(1.0, abs=0.04)
    assert result.spread.psnr_drop_db == pytest.approx(3.01, abs=0.15)
    for promised, found in result.spread.coverage:
        assert found == pytest.approx(promised, abs=0.02)


def test_calibration_sees_a_sampler_that_is_too_narrow(white: np.ndarray) -> None:
    clean = open_measurements(white, axes="NHW", range=(0, 1))
    result = evaluate_with_truth(restorer(0.03**2), clean.simulate(SIGMA, 0), clean, 8)
    assert result.spread is not None
    assert result.spread.error2_over_variance > 2


def test_coverage_and_ranks_count_every_pixel() -> None:
    calibration = Calibration(n=3)
    truth = np.array([[[0.0, 1.5, 2.5, 9.0]]])
    samples = np.broadcast_to(np.array([1.0, 2.0, 3.0])[:, None, None, None], (3, 1, 1, 4))
    calibration.add(truth, samples, truth)
    assert calibration.ranks.tolist() == [1, 1, 1, 1]
    assert calibration.coverage() == [(0.5, 0.5)]


def test_reliability_follows_the_line_for_honest_bars_of_any_size() -> None:
    rng = np.random.default_rng(0)
    sd = np.geomspace(0.01, 0.2, 200)[None, None, :]
    calibration = Calibration(n=8)
    for _ in range(200):
        truth = sd * rng.normal(size=(1, 1, 200))
        calibration.add(truth, sd * rng.normal(size=(8, 1, 1, 200)), np.zeros((1, 1, 200)))
    assert calibration.ratio == pytest.approx(1.0, abs=0.05)
    middle = [(p, f) for p, f, _ in calibration.reliability(0.03) if 0.02 < p < 0.1]
    assert len(middle) >= 4
    for predicted, found in middle:  # ≥ 1200 pixels each: the rms error is known to 2 %, ×5
        assert found == pytest.approx(predicted, rel=0.1)


def test_summary_is_that_of_the_samples(white: np.ndarray) -> None:
    r, y = restorer(0.15**2), white[0]
    samples, summary = r.sample(y, 9, seed=3), r.summarise(y, 9, seed=3)
    np.testing.assert_allclose(summary.mean, samples.mean(0), atol=1e-6)
    np.testing.assert_allclose(summary.sd, samples.std(0, ddof=1), atol=1e-6)
    ordered = np.sort(samples, axis=0)
    np.testing.assert_array_equal(summary.lower, ordered[1])
    np.testing.assert_array_equal(summary.upper, ordered[-2])
    assert summary.coverage == pytest.approx(0.6)
    assert summary.mean.shape == y.shape
    tensor = r.summarise(torch.from_numpy(y)[None, None], 4)
    assert isinstance(tensor.sd, Tensor)
    assert tensor.sd.shape == (1, 1, 80, 90)
