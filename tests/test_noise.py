"""What noisy images alone say about their noise, beside what was put in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import convolve

from nediff.errors import NediffError
from nediff.noise import (
    estimate_by_channel,
    estimate_by_position,
    estimate_level,
    estimate_signal_dependence,
    estimate_whiteness,
    gather_blocks,
    typical_level,
)
from nediff.noise.blocks import GROUPS, MOST_BLOCKS
from nediff.noise.floor import FREQUENCY, jackknife, white_part
from nediff.noise.level import level_of
from nediff.noise.whiteness import Whiteness
from nediff.runs import load_config
from tests.command import nediff, succeeded
from tests.pictures import ALL, clean, measured, noisy

LEVELS = (0.01, 0.05, 0.3)
SEEDS = (30, 31)
OF_THEIR_OWN = {"textures": 0.003, "astronaut": 0.003, "aerial64": 0.003, "bsd400_gray": 0.003}
"""These pictures have noise of their own: about half a grey level of 255, or a little more."""


# --- the level ---


@pytest.mark.parametrize("name", ALL)
def test_the_level_of_many_kinds_of_images(name: str) -> None:
    """Bias of σ over two seeds within 4 % (6 % at σ = 0.01), and spread within 2.5 %.

    Some 70,000 blocks, of which 2 % times 36 coefficients are looked at: independent, they would
    leave 0.4 %; they overlap, and lie in few images.
    """
    pictures = clean(name)
    for sigma in LEVELS:
        found = [estimate_level(noisy(pictures, sigma, s)).sigma.value / sigma for s in SEEDS]
        own = np.hypot(1, OF_THEIR_OWN.get(name, 0) / sigma) - 1
        bias = float(np.mean(found)) - 1
        assert -0.03 < bias < (0.06 if sigma == 0.01 else 0.04) + own, (sigma, bias)
        assert np.std(found) < 0.025


def test_errors_of_the_level_are_honest() -> None:
    """On pictures without texture, (found − true)/error of 20 seeds: rms about 1.

    Its expected value is 1, its standard deviation with 20 seeds 0.16, and the errors themselves
    come from some ten parts; overlapping blocks make them a little too small.
    """
    scores = []
    for seed in range(20):
        sigma = estimate_level(noisy(np.full((24, 1, 40, 40), 0.5), 0.1, seed)).sigma
        scores.append((sigma.value - 0.1) / sigma.total_error)
    assert 0.5 < np.sqrt(np.mean(np.square(scores))) < 1.7


def test_texture_everywhere_is_doubted() -> None:
    """A field 1/f² of one contrast has no flat place: nobody can tell, and the doubt says so."""
    rng = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(64)[:, None], np.fft.fftfreq(64))
    frequency[0, 0] = np.inf
    fields = np.fft.ifft2(np.fft.fft2(rng.normal(size=(32, 1, 64, 64))) / frequency).real
    sigma = estimate_level(noisy(0.5 + 0.15 * fields / fields.std(), 0.02, 0)).sigma
    assert sigma.doubt > 0.15 * sigma.value
    assert abs(sigma.value - 0.02) < 4 * sigma.total_error


def test_one_small_image_is_enough_for_a_tenth() -> None:
    """One 64 × 64 image has 64 blocks that do not overlap: σ within 10 % (2 σ of 1/√(2·2·36))."""
    pictures = clean("smooth", count=1)
    for sigma in (0.03, 0.3):
        found = [estimate_level(noisy(pictures, sigma, s)).sigma.value for s in range(10)]
        assert np.sqrt(np.mean(np.square(np.array(found) / sigma - 1))) < 0.10


def test_a_large_image_in_windows() -> None:
    """A 2500 × 2100 image is looked at in windows, and no more blocks are taken than allowed."""
    large = np.full((1, 1, 2500, 2100), 0.4)
    blocks = gather_blocks(noisy(large, 0.05, 0))
    assert 0.3 * MOST_BLOCKS < len(blocks) < 4 * MOST_BLOCKS
    assert blocks.row.max() > 0.95
    assert level_of(blocks).sigma.value == pytest.approx(0.05, rel=0.01)


def test_the_same_seed_gives_the_same_answer() -> None:
    images = noisy(clean("smooth", count=500, side=16), 0.1, 0)
    assert estimate_level(images, seed=3) == estimate_level(images, seed=3)
    assert estimate_level(images, seed=3) != estimate_level(images, seed=4)


def test_clipped_pixels_are_left_out() -> None:
    """Half of each image is black and clipped: its noise is 0.58 σ, the other half's is σ."""
    pictures = np.zeros((16, 1, 64, 64))
    pictures[..., 32:] = 0.5
    values = np.clip(pictures + 0.1 * np.random.default_rng(0).normal(size=pictures.shape), 0, 1)
    level = estimate_level(measured(values.astype(np.float32)))
    assert level.sigma.value == pytest.approx(0.1, rel=0.03)
    assert 0.4 < level.clipped < 0.7


def test_too_small_images_are_refused() -> None:
    with pytest.raises(NediffError, match="smaller than 8"):
        estimate_level(noisy(np.full((3, 1, 7, 9), 0.5), 0.1, 0))


def test_the_white_part_of_a_spectrum() -> None:
    """Exact for σ² + c f^(−p), whatever c; never negative."""
    texture = np.where(FREQUENCY > 0, (np.maximum(FREQUENCY, 1) / 8) ** -3.0, 0)
    for c in (0.0, 0.5, 20.0):
        assert white_part(2 + c * texture) == pytest.approx(2)
    assert white_part(texture, 4.0) == pytest.approx(0.36, abs=0.1)
    assert white_part(texture, 2.0) == 0
    assert white_part(np.stack([texture, 2 + texture])) == pytest.approx([0, 2], abs=1e-9)


def test_the_jackknife_of_a_mean() -> None:
    """Of a mean it is the usual standard error."""
    values = np.random.default_rng(0).normal(size=GROUPS)
    left_out = (values.sum() - values) / (GROUPS - 1)
    assert jackknife(left_out) == pytest.approx(values.std(ddof=1) / np.sqrt(GROUPS))
    assert jackknife(left_out[:1]) == np.inf


# --- dependence on the signal ---


@pytest.mark.parametrize("name", ["smooth", "astronaut", "bsd400_gray", "faces64"])
def test_gain_and_constant_of_photons(name: str) -> None:
    """Counts of a camera in its own units: Poisson of gain 2.5, offset 100, read-out noise 6.

    gain and constant = 6² − 2.5 · 100 within 10 % of what the noise is in the middle.
    """
    rng = np.random.default_rng(1)
    light = 60 + 800 * np.clip(clean(name, count=24), 0, 1)
    counts = 2.5 * rng.poisson(light / 2.5) + 100 + 6 * rng.normal(size=light.shape)
    found = estimate_signal_dependence(measured(counts, range=None))
    assert found.dependent
    assert found.gain == pytest.approx(2.5, rel=0.1)
    middle = 2.5 * 400 + 36
    assert abs(found.constant - (36 - 250)) < 0.1 * middle
    assert abs(found.gain - 2.5) < 5 * found.gain_error
    assert found.variance(np.array([500.0]))[0] == pytest.approx(2.5 * 400 + 36, rel=0.05)


def test_dependence_is_found_and_not_imagined() -> None:
    """Twelve seeds each of white noise and of noise ∝ √(0.2 + 1.6 x): none and all.

    A false alarm has a chance of 1e-4 by the test's own account.
    """
    for name in ("smooth", "edges", "textures"):
        pictures = clean(name, count=16)
        slanted = 0.05 * np.sqrt(0.2 + 1.6 * np.clip(pictures, 0, 1))
        for seed in range(4):
            assert not estimate_signal_dependence(noisy(pictures, 0.05, seed)).dependent
            assert estimate_signal_dependence(noisy(pictures, slanted, seed)).dependent


def test_flat_images_cannot_tell_the_gain() -> None:
    found = estimate_signal_dependence(noisy(np.full((8, 1, 64, 64), 0.5), 0.05, 0))
    assert not found.dependent
    assert abs(found.gain) < 4 * found.gain_error


# --- correlation ---


def correlated(pictures: np.ndarray, kernel: np.ndarray, sigma: float, seed: int) -> np.ndarray:
    """With noise of ``sigma`` convolved with a kernel."""
    white = np.random.default_rng(seed).normal(size=pictures.shape)
    kernel = kernel / np.sqrt(np.square(kernel).sum())
    return pictures + sigma * convolve(white, kernel[None, None], mode="wrap")


BLUR = np.outer([1, 2, 1], [1, 2, 1]).astype(float)


@pytest.mark.parametrize("name", ["smooth", "edges", "textures", "bsd400_gray", "cats64"])
def test_correlated_noise_is_found(name: str) -> None:
    """[1 2 1] both ways: lags (0, 1) and (1, 0) have 2/3, (1, 1) 4/9, (0, 2) 1/6; σ too.

    Flat blocks are chosen by coefficients that are no longer quite independent of those measured,
    so σ comes out up to 12 % too small.
    """
    values = correlated(clean(name, count=16), BLUR, 0.05, 0)
    found = estimate_whiteness(measured(values.astype(np.float32)))
    assert not found.white
    expected = {(0, 1): 2 / 3, (1, 0): 2 / 3, (1, 1): 4 / 9, (0, 2): 1 / 6, (0, 3): 0.0}
    for lag, value in expected.items():
        assert found.correlation[lag] == pytest.approx(value, abs=0.08), lag
    assert np.sqrt(found.variance) == pytest.approx(0.05, rel=0.15)


def test_the_kernel_of_correlated_noise() -> None:
    """[1 2 1]² has a positive transform, so it is the symmetric one."""
    values = correlated(np.full((32, 1, 64, 64), 0.5), BLUR, 0.05, 0)
    kernel = estimate_whiteness(measured(values)).kernel
    true = BLUR / np.sqrt(np.square(BLUR).sum())
    assert np.allclose(kernel[2:5, 2:5], true, atol=0.04)
    assert abs(kernel[0]).max() < 0.05


def test_the_correlation_told_is_that_of_the_fit_that_found_it() -> None:
    """The fit with all lags can be lost (−1.5 is none) where that of neighbours is sure."""
    lost, surer = np.full((4, 4), -1.5), np.array([[1.0, 0.36], [0.24, 0.09]])
    unknown, small = np.full((4, 4), np.inf), np.full((2, 2), 0.01)
    found = Whiteness(lost, unknown, surer, small, 1.0)
    assert not found.white
    assert found.neighbours == (0.36, 0.24)
    far = np.outer([1, 0.7, 0.3, 0.05], [1, 0.7, 0.3, 0.05])
    assert Whiteness(far, 0 * far + 0.02, surer, small, 1.0).neighbours == (0.7, 0.7)


@pytest.mark.parametrize("name", ALL)
def test_white_noise_is_not_called_correlated(name: str) -> None:
    pictures = clean(name, count=24)
    for seed, sigma in enumerate((0.02, 0.05, 0.15)):
        found = estimate_whiteness(noisy(pictures, sigma, seed))
        assert found.white, (sigma, found.correlation)


# --- channels and places ---


def test_noise_that_differs_by_channel_or_place() -> None:
    pictures = np.repeat(clean("edges", count=24), 3, axis=1)
    by_channel = 0.05 * np.array([1.0, 1.0, 1.4])[:, None, None]
    by_column = 0.05 * np.linspace(0.6, 1.4, 64)
    for seed in range(2):
        even = noisy(pictures, 0.05, seed)
        assert not estimate_by_channel(even).varies
        assert not estimate_by_position(even).varies
        found = estimate_by_channel(noisy(pictures, by_channel, seed))
        assert found.varies
        assert [s.value for s in found.sigmas] == pytest.approx([0.05, 0.05, 0.07], rel=0.05)
        assert 2 in found.odd
        assert estimate_by_position(noisy(pictures, by_column, seed)).varies
        assert not estimate_by_channel(noisy(pictures, by_column, seed)).varies


# --sigma auto


def test_a_training_can_find_out_the_noise_itself(tmp_path: Path) -> None:
    """40 smooth fields of 48²: 2 % by the table of the estimator; 8 % is four times that."""
    from tests.test_baselines import smooth_fields

    fields = smooth_fields(40, 48, 0)
    np.save(tmp_path / "clean.npy", fields)
    data = (tmp_path / "clean.npy", "--axes", "NHW", "--range", 0, 1, "--simulate", 0.1)
    options = ("--size", "tiny", "--steps", 2, "--batch", 2, "--crop", 24)
    done = succeeded("train", *data, "--sigma", "auto", *options, "--out", tmp_path / "run")
    assert "noise estimated from the data" in done.err
    config = load_config(tmp_path / "run")
    assert config.data.sigma == pytest.approx(0.1, rel=0.08)
    assert config.data.sigma != 0.1
    assert config.data.simulate == 0.1
    again = nediff(
        "train", *data, "--sigma", "auto", *options, "--out", tmp_path / "run", "--resume"
    )
    assert again.code == 0
    refused = nediff("restore", tmp_path / "run", data[0], "--out", tmp_path, "--sigma", "auto")
    assert "only train estimates it" in refused.err
    operator = ("--operator", "inpainting", "--mask-fraction", 0.7)
    refused = nediff(
        "train", *data, "--sigma", "auto", *options, *operator, "--out", tmp_path / "other"
    )
    assert "--sigma auto needs complete images" in refused.err


# --- whatever it is ---


@pytest.mark.parametrize("name", ["smooth", "astronaut", "bsd400_gray"])
def test_the_typical_level_is_not_that_of_the_darkest(name: str) -> None:
    """Noise ∝ √(0.02 + 2 x): the root of its mean variance within 10 %; flat places say less."""
    pictures = clean(name, count=24)
    levels = 0.05 * np.sqrt(0.02 + 2 * np.clip(pictures, 0, 1))
    images = noisy(pictures, levels, 5)
    true = float(np.sqrt(np.mean(levels**2)))
    assert typical_level(images).sigma.value == pytest.approx(true, rel=0.1)
    assert estimate_level(images).sigma.value < 0.85 * true


def test_the_typical_level_of_correlated_noise_is_all_of_it() -> None:
    """Its white part alone is a small share; 15 % as for `test_correlated_noise_is_found`."""
    values = correlated(clean("smooth", count=16), BLUR, 0.05, 0).astype(np.float32)
    found = typical_level(measured(values))
    assert not found.whiteness.white
    assert found.sigma.value == pytest.approx(0.05, rel=0.15)
    assert estimate_level(measured(values)).sigma.value < 0.025


def test_the_typical_level_of_white_noise_is_the_level() -> None:
    images = noisy(clean("edges", count=16), 0.05, 0)
    assert typical_level(images).sigma == estimate_level(images).sigma
