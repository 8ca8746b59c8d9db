"""Noise that depends on the signal: the stabilised range, its inverse, and runs in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor

import nediff as package
from nediff.correction import Conformal, Correction
from nediff.data import (
    IntensityRange,
    Measurements,
    PhotonNoise,
    StabilisedRange,
    open_measurements,
    photon_noise,
)
from nediff.data.simulate import poisson_from_normal
from nediff.data.stabilise import Watch
from nediff.errors import NediffError
from nediff.evaluation import evaluate_with_truth
from nediff.noise import PoissonGaussian, estimate_signal_dependence
from nediff.problem import Problem
from nediff.restorer import Restorer, promised_coverage
from nediff.training.batches import BatchSource
from nediff.training.fitting import Plan, plan_run
from tests.command import TINY, nediff, smooth, succeeded
from tests.test_resume import assert_same_run, interrupt_after

CAMERA = PhotonNoise(gain=2.0, read_noise=3.0, offset=100.0)
NOISES = {
    "photons": PhotonNoise(1.0),
    "camera": CAMERA,
    "a little read noise": PhotonNoise(4.0, 0.1),
    "read noise of many photons": PhotonNoise(0.5, 15.0, -20.0),
}


def draw(noise: PhotonNoise, x: Any, count: int, seed: int = 0) -> NDArray[np.float64]:
    """Measurements of x by NumPy's own Poisson numbers, (count, *x.shape)."""
    random = np.random.default_rng(seed)
    photons = random.poisson(noise.photons(x), (count, *np.shape(x)))
    read = noise.read_noise * random.standard_normal(photons.shape)
    return noise.gain * photons + noise.offset + read


def levels(noise: PhotonNoise, *photons: float) -> NDArray[np.float64]:
    """Data units."""
    return noise.gain * np.array(photons) + noise.offset


# --- the map --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NOISES)
def test_the_variance_is_linear_in_the_mean(name: str) -> None:
    noise = NOISES[name]
    x = levels(noise, 1, 10, 50)
    found = draw(noise, x, 100_000).var(axis=0)
    np.testing.assert_allclose(found, noise.gain * x + noise.constant, rtol=0.03)


@pytest.mark.parametrize("name", NOISES)
def test_stabilised_noise_is_one_above_a_few_photons(name: str) -> None:
    """Within 3 % from 10 photons on and 8 % from 3 (with 1.5 photons of read noise: 10 %)."""
    noise = NOISES[name]
    x = levels(noise, 3, 10, 30, 300)
    found = noise.stabilise(draw(noise, x, 200_000)).var(axis=0)
    assert found[0] == pytest.approx(1, abs=0.1)
    np.testing.assert_allclose(found[1:], 1, atol=0.03)


def test_what_is_lost_below_a_few_photons() -> None:
    """Stated in docs/noise.md: with few photons the noise is less than is assumed."""
    noise = PhotonNoise(1.0)
    found = noise.stabilise(draw(noise, np.array([0.0, 0.5, 1.0, 2.0]), 200_000)).var(axis=0)
    np.testing.assert_allclose(found, [0.0, 0.467, 0.717, 0.924], atol=0.01)


@pytest.mark.parametrize("name", NOISES)
def test_the_table_is_the_mean_and_its_inverse_is_unbiased(name: str) -> None:
    """E[f(y) | x] by NumPy's draws, to 5 standard errors; back from it, x, down to no light."""
    noise = NOISES[name]
    x = levels(noise, 0, 0.1, 0.5, 2, 10, 100, 1000)
    f = noise.stabilise(draw(noise, x, 100_000))
    error = 5 * f.std(axis=0) / np.sqrt(len(f)) + 1e-9
    assert (np.abs(f.mean(axis=0) - noise.stabilised_mean(x)) < error).all()
    slope = np.gradient(noise.mean_inverse(np.stack([f.mean(0) - 0.01, f.mean(0) + 0.01])), axis=0)
    back = noise.mean_inverse(f.mean(axis=0))
    tolerance = np.maximum(error * np.abs(slope[0]) / 0.02 * 1.5, 1e-6 * noise.gain)
    assert (np.abs(back - x) < tolerance).all()
    # the algebraic inverse is short of it by a quarter of a photon, from a few photons on
    short = noise.unstabilise(noise.stabilised_mean(x[4:]))
    np.testing.assert_allclose((x[4:] - short) / noise.gain, 0.25, atol=0.03)


@pytest.mark.parametrize("s", [0.0, 0.02, 0.3, 1.0, 9.99, 10.01, 200.0])
def test_inverse_and_mean_agree_and_increase(s: float) -> None:
    noise = PhotonNoise(1.0, s)
    x = np.concatenate([np.linspace(0, 30, 3001), np.geomspace(31, 1e6, 500)])
    means = noise.stabilised_mean(x)
    assert (np.diff(means) > 0).all()
    np.testing.assert_allclose(noise.mean_inverse(means), x, rtol=1e-6, atol=1e-6)
    finer = np.linspace(means[0] - 3, means[-1] + 3, 20_001)
    assert (np.diff(noise.mean_inverse(finer)) >= 0).all()


def test_what_is_outside_is_clipped_to_no_light() -> None:
    """Values below the root's domain are 0, and there is no negative light in what is restored."""
    dark = np.array([-1e9, 0.0, 90.0])
    assert (CAMERA.stabilise(dark)[:1] == 0).all()
    assert np.isfinite(CAMERA.stabilise(dark)).all()
    assert CAMERA.mean_inverse(np.array([-5.0, 0.0]))[0] == CAMERA.offset
    curve = StabilisedRange(100.0, 500.0, CAMERA)
    assert curve.from_unit(np.array([-3.0])) == pytest.approx(CAMERA.offset)


def test_unit_range() -> None:
    curve = StabilisedRange(110.0, 500.0, CAMERA)
    np.testing.assert_allclose(curve.to_unit(np.array([110.0, 500.0])), [0, 1], atol=1e-6)
    y = draw(CAMERA, np.array([150.0, 300.0, 450.0]), 100_000)
    np.testing.assert_allclose(curve.to_unit(y).std(axis=0), curve.sigma, rtol=0.02)
    clean = curve.of_means()
    x = np.linspace(100, 900, 50)
    np.testing.assert_allclose(clean.from_unit(clean.to_unit(x)), x, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(
        curve.straight(clean.to_unit(x)), (x - 110) / 390, rtol=1e-3, atol=1e-4
    )
    plain = IntensityRange(1.0, 5.0)
    assert plain.of_means() is plain
    assert plain.straight(x) is x


def test_from_gain_and_constant() -> None:
    """What estimators report: var = gain · mean + constant."""
    known = photon_noise(CAMERA.gain, CAMERA.constant, CAMERA.offset)
    assert known.read_noise == pytest.approx(CAMERA.read_noise)
    guessed = photon_noise(CAMERA.gain, CAMERA.constant)
    assert guessed.constant == pytest.approx(CAMERA.constant)
    y = np.linspace(110, 1000, 20)
    np.testing.assert_allclose(guessed.stabilise(y), CAMERA.stabilise(y))
    assert photon_noise(2.0, 9.0) == PhotonNoise(2.0, 3.0, 0.0)
    for bad in ((0.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0)):
        with pytest.raises(NediffError, match="gain"):
            photon_noise(*bad)
    with pytest.raises(NediffError, match="would be negative"):
        photon_noise(1.0, -5.0, offset=0.0)
    with pytest.raises(NediffError, match="read noise must be 0 or more"):
        PhotonNoise(1.0, -1.0)


def test_pixels_that_cannot_be_right_are_reported() -> None:
    watch = Watch(CAMERA, CAMERA.stabilise)
    y = np.full((1, 10, 10), 300.0)
    y[0, 0] = 4095.0
    watch(y)
    y[0, 1] = 50.0
    watch(y)
    below, top = watch.warnings()
    assert "5.0% of the pixels are darker" in below
    assert "10.0% of the pixels have the largest value, 4095" in top


# --- simulated photons ----------------------------------------------------------------------------


def test_poisson_numbers_from_normal_ones() -> None:
    normal = np.random.default_rng(0).standard_normal(200_000)
    for rate in (0.0, 0.05, 1.0, 7.3, 80.0, 5e4):
        counts = poisson_from_normal(np.full_like(normal, rate), normal)
        assert counts.mean() == pytest.approx(rate, abs=5 * np.sqrt(rate / 2e5) + 1e-12)
        assert counts.var() == pytest.approx(rate, rel=0.02)
        assert (np.diff(counts[np.argsort(normal)]) >= 0).all()
    from scipy.stats import poisson

    few = normal[:2000]
    rates = np.geomspace(0.01, 1e4, 2000)
    expected = poisson.ppf(0.5 * (1 + torch.erf(torch.from_numpy(few) / 2**0.5)).numpy(), rates)
    assert (poisson_from_normal(rates, few) == expected).mean() > 0.999


def flat(value: float, count: int = 2, side: int = 150) -> Measurements:
    x = np.full((count, side, side), value, np.float32)
    x[:, 0, 0] = value + 300  # a range needs two values
    return open_measurements(x, axes="NHW", range=StabilisedRange(100, 700, CAMERA).of_means())


def test_simulated_photons_have_their_law_and_place() -> None:
    clean = flat(160.0)
    noisy = clean.simulate_photons(seed=3)
    image = noisy.image(0)
    assert isinstance(noisy.range, StabilisedRange)
    assert image[0, 1:].std() == pytest.approx(noisy.range.sigma, rel=0.03)
    assert noisy.simulated == noisy.range.sigma
    mean = noisy.range.from_unit(image[0, 1:].mean(dtype=np.float64)[None])
    assert mean == pytest.approx(160.0, abs=0.3)
    np.testing.assert_array_equal(noisy.crop(0, 50, 61, 30, 40), image[:, 50:80, 61:101])
    np.testing.assert_array_equal(clean.simulate_photons(seed=3).image(0), image)
    assert np.abs(clean.simulate_photons(seed=4).image(0) - image).mean() > 0.01
    assert np.abs(noisy.image(1) - image).mean() > 0.01
    again = noisy.clean
    assert again is not None
    np.testing.assert_array_equal(again.image(0), clean.image(0))
    with pytest.raises(NediffError, match="photons="):
        open_measurements(np.eye(20, dtype=np.float32)).simulate_photons(0)


def test_pooled_crops_of_photons_are_white() -> None:
    noisy = flat(180.0, 1, 256).simulate_photons(0)
    assert isinstance(noisy.range, StabilisedRange)
    problem = Problem.denoising(noisy.range.sigma)
    source = BatchSource(noisy, problem, 32, 4, (2,), (1.0,), seed=0)
    crops = torch.cat([batch.y for step in range(20) for _, batch in source.groups(step)])
    assert float(crops[..., 2:, 2:].std()) == pytest.approx(noisy.range.sigma / 2, rel=0.05)


def test_missing_pixels_stay_missing() -> None:
    """A mask commutes with the noise and the map of each pixel."""
    mask = np.random.default_rng(0).uniform(size=(150, 150)) < 0.7
    clean = flat(200.0, 1)
    problem = Problem.inpainting(mask, clean.range.sigma)  # type: ignore[attr-defined]
    noisy, complete = clean.simulate_photons(0, problem), clean.simulate_photons(0)
    np.testing.assert_array_equal(noisy.image(0), complete.image(0) * mask)
    for other in (Problem.blur(np.ones((3, 3)), 0.1), Problem.super_resolution(2, 0.1)):
        with pytest.raises(NediffError, match="works for denoising, inpainting, demosaicing"):
            plan_run(complete, other, Plan(steps=1), "(in memory)")


# --- runs -----------------------------------------------------------------------------------------


def camera_images(folder: Path, count: int = 4, peak: float = 60.0, side: int = 48) -> Path:
    """16-bit TIFFs of a camera, and the truth in clean/."""
    (folder / "clean").mkdir(parents=True)
    for i in range(count):
        x = CAMERA.offset + CAMERA.gain * peak * smooth(i, side, side)
        y = np.rint(draw(CAMERA, x, 1, i)[0]).clip(0, 65535)
        tifffile.imwrite(folder / f"c{i}.tif", y.astype(np.uint16))
        tifffile.imwrite(folder / "clean" / f"c{i}.tif", x.astype(np.float32))
    return folder


OPTIONS = ("--gain", 2.0, "--read-noise", 3.0, "--offset", 100.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("photons")
    data = camera_images(folder / "data")
    command = ("train", data, *OPTIONS, "--out", folder / "run", "--steps", 12, *TINY)
    assert "noise by the signal" in succeeded(*command).err
    return folder / "run", data


def test_a_run_keeps_its_map(trained: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = trained
    config = yaml.safe_load((run / "config.yaml").read_text())["data"]
    assert config["photons"] == {"gain": 2.0, "read_noise": 3.0, "offset": 100.0}
    assert "photons (gain 2, read noise 3, offset 100" in (run / "README.md").read_text()
    restorer = package.load(run)
    assert isinstance(restorer.range, StabilisedRange)
    assert restorer.problem.sigma == pytest.approx(restorer.range.sigma)
    restorer.save(tmp_path / "copy")
    again = package.load(tmp_path / "copy")
    y = restorer.range.to_unit(tifffile.imread(data / "c0.tif")[None])
    np.testing.assert_array_equal(again.restore(y), restorer.restore(y))
    assert again.range == restorer.range


def test_its_noise_is_said_as_it_was_given(trained: tuple[Path, Path], tmp_path: Path) -> None:
    """σ of the stabilised range has no meaning in the units of the data."""
    run = Path(shutil.copytree(trained[0], tmp_path / "run"))
    words = " ".join(succeeded("info", run).out.split())
    assert "photons: gain 2, read noise 3, offset 100 in data units (given)" in words
    assert "σ" not in words
    said = json.loads(succeeded("info", run, "--json").out)
    assert said["photons"] == {"gain": 2.0, "read_noise": 3.0, "offset": 100.0}
    more = camera_images(tmp_path / "more", 4)
    told = succeeded("calibrate", run, more).out
    assert "data units" not in told
    assert "times that of the measurement added" in told


def test_restored_files_are_in_data_units(trained: tuple[Path, Path], tmp_path: Path) -> None:
    """16 bit in, 16 bit out; mean and sd are of the samples in the data's units."""
    run, data = trained
    out = tmp_path / "out"
    succeeded("restore", run, data, "--samples", 4, "--out", out)
    restorer = package.load(run)
    written = tifffile.imread(out / "restored" / "c1.tif")
    assert written.dtype == np.uint16
    y = restorer.range.to_unit(tifffile.imread(data / "c1.tif")[None])
    expected = np.rint(restorer.range.from_unit(restorer.restore(y))[0])
    np.testing.assert_array_equal(written, expected.astype(np.uint16))
    samples = np.stack([tifffile.imread(out / "samples" / f"c1_{k}.tif") for k in range(4)])
    np.testing.assert_allclose(tifffile.imread(out / "mean" / "c1.tif"), samples.mean(0), rtol=1e-5)
    np.testing.assert_allclose(
        tifffile.imread(out / "sd" / "c1.tif"), samples.std(0, ddof=1), rtol=1e-3, atol=1e-3
    )
    posterior = restorer.summarise(y[0], 4, 0, data_units=True)
    np.testing.assert_allclose(posterior.mean, samples.mean(0), rtol=1e-4)
    np.testing.assert_allclose(posterior.lower, np.sort(samples, axis=0)[1], rtol=1e-4)
    refused = nediff("restore", run, data, "--sigma", 0.1, "--out", tmp_path / "no")
    assert refused.code == 2
    assert "knows the noise by the signal" in refused.err


def test_intervals_are_stretched_before_they_are_mapped(trained: tuple[Path, Path]) -> None:
    """By how much was found in unit intensities, and the map to the data's units is curved."""
    run, data = trained
    restorer = package.load(run)
    conformal = Conformal(16, promised_coverage(16), 2.0, 20)
    restorer.correction = Correction(sampler=restorer.sampler, conformal=conformal)
    y = restorer.range.to_unit(tifffile.imread(data / "c1.tif")[None])
    unit, mapped = (restorer.summarise(y, 16, 0, data_units=units) for units in (False, True))
    assert mapped.conformal
    for end in ("lower", "upper"):
        expected = restorer.range.from_unit(getattr(unit, end))
        np.testing.assert_allclose(getattr(mapped, end), expected, rtol=1e-5)


def test_evaluate_against_the_truth(trained: tuple[Path, Path]) -> None:
    run, data = trained
    clean = data / "clean"
    outcome = succeeded("evaluate", run, data, "--clean", clean, "--samples", 2)
    assert "stabilised intensities" in outcome.out + outcome.err
    succeeded("evaluate", run, clean, "--simulate", "photons", "--samples", 0)
    assert "needs --simulate with photons" in nediff("evaluate", run, clean, "--simulate", 0.1).err
    assert "leave --sigma out" in nediff("evaluate", run, data, "--sigma", 0.1).err


def test_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = camera_images(tmp_path / "data") / "clean"
    options = (*OPTIONS, "--simulate", "photons", "--steps", 14, *TINY)
    succeeded("train", clean, "--out", tmp_path / "a", *options)
    interrupt_after(monkeypatch, 6)
    assert nediff("train", clean, "--out", tmp_path / "b", *options).code == 130
    monkeypatch.undo()
    resume = ("train", clean, "--out", tmp_path / "b", "--resume")
    assert "begun with --gain 2 --read-noise 3" in nediff(*resume, "--gain", 3.0).err
    assert "begun with --gain 2 --read-noise 3" in nediff(*resume, "--sigma", 0.1).err
    succeeded(*resume)
    succeeded(*resume, *OPTIONS)
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_gain_and_read_noise_are_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the images say, within its own errors of what they were made with."""
    data = camera_images(tmp_path / "data", 6, peak=150.0, side=160)
    options = ("--gain", "auto", "--offset", CAMERA.offset, "--steps", 4, *TINY)
    interrupt_after(monkeypatch, 2)
    assert nediff("train", data, "--out", tmp_path / "run", *options).code == 130
    monkeypatch.undo()
    found = estimate_signal_dependence(open_measurements(data))
    assert abs(found.gain - CAMERA.gain) < 4 * found.gain_error < 0.2 * CAMERA.gain
    resume = ("train", data, "--out", tmp_path / "run", "--resume")
    assert "begun with --gain" in nediff(*resume, "--gain", "auto", "--offset", 90.0).err
    succeeded(*resume, "--gain", "auto")
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["data"]
    assert config["sigma_known"]["how"] == "estimated"
    kept = PhotonNoise(**config["photons"])
    assert kept == found.photons(CAMERA.offset)
    assert "estimated from the data" in (tmp_path / "run" / "README.md").read_text()


def test_a_read_noise_may_be_none_but_not_less() -> None:
    line = PoissonGaussian(2.0, -205.0, 0.05, 4.0, 1e-9, 1.0, (), (), ())
    assert line.photons(100.0) == PhotonNoise(2.0, 0.0, 100.0)  # −5 ± 6.4
    assert line.photons() == PhotonNoise(2.0, 0.0, 102.5)
    with pytest.raises(NediffError, match=r"would be -45 ± 5\.7, which is negative"):
        line.photons(80.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gain", 2, "--sigma", 0.1), "leave --sigma out"),
        (("--gain", 2, "--simulate", 0.1), "simulate it with --simulate photons"),
        (("--read-noise", 2), "--read-noise belongs to noise"),
        (("--simulate", "photons"), "needs --gain"),
        (("--gain", "high"), "neither a number"),
        (("--gain", "auto", "--read-noise", 2), "estimates the read noise too"),
        (("--gain", "auto", "--simulate", "photons"), "needs --gain, a number"),
        (("--gain", "auto", "--operator", "inpainting"), "needs complete images|--mask"),
        (("--gain", "auto"), "does not grow with their signal"),  # too few flat blocks to tell
        (("--gain", 0), "gain .* must be positive"),
        (("--gain", 2, "--read-noise", -1), "read noise must be 0 or more"),
        (("--gain", 2, "--offset", 1e6), "lies below|nothing to learn"),
        (("--gain", 5000), "hardly a photon|nothing to learn"),
        (("--gain", 2, "--operator", "super_resolution", "--factor", 2), "works for denoising"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, options: tuple[object, ...], message: str
) -> None:
    data = camera_images(tmp_path / "data", 2)
    outcome = nediff("train", data, *options, "--out", tmp_path / "run", "--steps", 2, *TINY)
    assert outcome.code == 2, outcome.err
    assert "Traceback" not in outcome.err
    with pytest.raises(NediffError, match=message):
        raise NediffError(" ".join(outcome.err.split()))
    assert not (tmp_path / "run").exists()


def test_saturated_pixels_are_warned_of(tmp_path: Path) -> None:
    data = camera_images(tmp_path / "data", 2)
    y = np.minimum(tifffile.imread(data / "c0.tif"), 180)
    for i in range(2):
        tifffile.imwrite(data / f"c{i}.tif", y)
    command = ("train", data, *OPTIONS, "--out", tmp_path / "run", "--steps", 2, *TINY)
    assert "have the largest value, 180; where these are saturated" in succeeded(*command).err
    again = succeeded("restore", tmp_path / "run", data, "--out", tmp_path / "out")
    assert "have the largest value, 180" in again.err


def test_masks_and_mosaics_by_the_command_line(tmp_path: Path) -> None:
    """Missing pixels are stored as zeros, far below the offset, and say nothing."""
    data = camera_images(tmp_path / "data", 3)
    mask = (np.random.default_rng(1).uniform(size=(48, 48)) < 0.7).astype(np.uint8)
    np.save(tmp_path / "mask.npy", mask)
    for i in range(3):
        y = tifffile.imread(data / f"c{i}.tif")
        tifffile.imwrite(data / f"c{i}.tif", y * mask)
    out = tmp_path / "run"
    operator = ("--operator", "inpainting", "--mask", tmp_path / "mask.npy")
    command = ("train", data, *OPTIONS, *operator, "--out", out, "--steps", 3, *TINY)
    outcome = succeeded(*command)
    assert "Careful" not in outcome.err
    succeeded("restore", out, data, "--samples", 2, "--out", tmp_path / "restored")
    restored = tifffile.imread(tmp_path / "restored" / "restored" / "c0.tif")
    assert restored.min() >= 95
    low = yaml.safe_load((out / "config.yaml").read_text())["data"]["low"]
    assert low > 80  # by the measured values, not by the zeros


class Exact(torch.nn.Module):
    """E[z | y] for stabilised means z ~ N(m, v) of each pixel, noise σ."""

    def __init__(self, mean: float, variance: float) -> None:
        super().__init__()
        self.nothing = torch.nn.Parameter(torch.zeros(1))
        self.mean, self.variance = mean, variance

    def forward(self, y: Tensor, sigma: Tensor, operator: object = None) -> Tensor:
        weight = (self.variance / (self.variance + sigma.square()))[:, None, None, None]
        return self.mean + weight * (y - self.mean)


def test_samples_are_calibrated_in_data_units(trained: tuple[Path, Path]) -> None:
    """With the exact denoiser of the stabilised means, error²/variance is 1 in data units, and
    the mean of mapped samples is without bias, at 20 to 60 photons in a pixel."""
    restorer = package.load(trained[0])
    curve = restorer.range
    assert isinstance(curve, StabilisedRange)
    random = np.random.default_rng(0)
    mean, spread = 0.6, 0.12
    z = mean + spread * random.standard_normal((2, 96, 96))
    x = curve.from_unit(z).astype(np.float32)
    clean = open_measurements(x, axes="NHW", range=curve.of_means())
    noisy = clean.simulate_photons(0)
    exact = Restorer(restorer.problem, Exact(mean, spread**2), restorer.config)  # type: ignore[arg-type]
    found = evaluate_with_truth(exact, noisy, clean, samples=8)
    assert found.spread is not None
    assert found.spread.error2_over_variance == pytest.approx(1, abs=0.06)
    for promised, covered in found.spread.coverage:
        assert covered == pytest.approx(promised, abs=0.02)
    drawn = np.mean(curve.from_unit(exact.sample(noisy[0], 8, 0)), dtype=np.float64)
    assert drawn == pytest.approx(float(x[0].mean()), abs=0.5)


def test_python(tmp_path: Path) -> None:
    data = camera_images(tmp_path / "data")
    restorer = package.fit(data, CAMERA, steps=2, size="tiny", crop=24)
    assert isinstance(restorer.range, StabilisedRange)
    noisy = package.open_measurements(data, photons=CAMERA)
    package.fit(noisy, CAMERA, steps=1, size="tiny", crop=24)
    with pytest.raises(NediffError, match="photons="):
        package.fit(package.open_measurements(data), CAMERA, steps=1)
    with pytest.raises(NediffError, match=r"their range\.sigma"):
        package.fit(noisy, 0.5 * noisy.range.sigma, steps=1)  # type: ignore[attr-defined]
