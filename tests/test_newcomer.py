"""What a new user met: advice that could not be followed, silence, slips that were not noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from nediff.cli import console
from nediff.cli.diagnose import lines_of
from nediff.data import open_measurements
from nediff.diagnosis import diagnose
from nediff.evaluation.revealed import Revealed, SpreadClass
from tests.command import SIGMA, TINY, float_folder, nediff, succeeded
from tests.pictures import clean, measured


def smooth_all_over(seed: int = 0) -> NDArray[np.float64]:
    """Photographs as some cameras make them: nothing is left at the finest scale."""
    noisy = clean("power", count=8, seed=seed, side=128)
    noisy = noisy + 0.02 * np.random.default_rng(seed).normal(size=noisy.shape)
    filtered: NDArray[np.float64] = gaussian_filter(noisy, (0, 0, 1.5, 1.5), mode="wrap")
    return filtered


def of_two_settings(folder: Path) -> Path:
    """Six dark images with even noise, and 54 bright ones: their variance is a line through 0.4."""
    random, pictures = np.random.default_rng(0), clean("smooth", count=60, side=96)
    folder.mkdir()
    for k, picture in enumerate(pictures[:, 0]):
        spread = (picture - picture.mean()) / np.ptp(picture)
        x = 0.15 + 0.02 * spread if k < 6 else 0.7 + 0.5 * spread
        variance = 0.001 if k < 6 else 0.004 * np.clip(x - 0.4, 0.01, None)
        y = x + np.sqrt(variance) * random.normal(size=x.shape)
        tifffile.imwrite(folder / f"{k:02}.tif", y.astype(np.float32))
    return folder


@pytest.mark.parametrize("seed", range(3))
def test_noise_that_was_smoothed_away_is_not_called_white_or_absent(seed: int) -> None:
    found = diagnose(measured(smooth_all_over(seed).astype(np.float32)))
    whiteness = found.noise.whiteness
    text = "\n".join(lines_of(found))
    assert not (whiteness.white and whiteness.known)
    assert "--sigma correlated" in found.command
    assert {w.code for w in found.warnings} & {"untold", "correlated"}
    assert "nan" not in text
    if whiteness.known:
        assert max(abs(k) for k in whiteness.neighbours) <= 1
    else:
        assert "cannot be told" in text


def test_a_line_that_no_instrument_has_is_not_recommended(tmp_path: Path) -> None:
    """All dark images are darker than its offset, and would become one value."""
    data = of_two_settings(tmp_path / "data")
    found = diagnose(open_measurements(data, range=(0, 1)))
    assert found.noise.signal.grows
    assert found.noise.too_dark == pytest.approx(0.1, abs=0.01)
    assert "--gain" not in found.command
    advice = {w.code: w.do for w in found.warnings}["signal_dependent"]
    assert "No instrument has such noise" in advice
    photons = found.noise.signal.photons()
    told = ("--gain", photons.gain, "--offset", photons.offset)
    refused = nediff("train", data, *told, "--out", tmp_path / "run", "--steps", 1, *TINY)
    assert refused.code == 2
    assert "% of the pixels are darker than" in refused.err
    assert not (tmp_path / "run").exists()


def test_correlated_noise_that_is_said_to_be_white_is_noticed(tmp_path: Path) -> None:
    """In training; and, where the truth is at hand, that SURE says something else."""
    random = np.random.default_rng(1)
    for name in ("noisy", "clean"):
        (tmp_path / name).mkdir()
    for k, picture in enumerate(clean("power", count=12, side=96)[:, 0]):
        noise = gaussian_filter(random.normal(size=picture.shape), 0.8, mode="wrap")
        y = picture + SIGMA * noise / noise.std()
        tifffile.imwrite(tmp_path / "noisy" / f"{k}.tif", y.astype(np.float32))
        tifffile.imwrite(tmp_path / "clean" / f"{k}.tif", picture.astype(np.float32))
    run = tmp_path / "run"
    told = SIGMA / 2  # a part of it has the look of white noise
    command = ("train", tmp_path / "noisy", "--sigma", told, "--range", 0, 1, "--out", run)
    said = succeeded(*command, "--steps", 20, "--size", "tiny", "--crop", 32)
    assert "Careful: the noise of neighbouring pixels seems to be correlated" in said.err
    judged = ("evaluate", run, tmp_path / "noisy", "--clean", tmp_path / "clean", "--samples", 0)
    assert "Careful: by the truth it is" in succeeded(*judged).err


def test_white_noise_and_an_honest_estimate_get_no_such_words(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    for name in ("noisy", "clean"):
        (tmp_path / name).mkdir()
    for k, picture in enumerate(clean("power", count=12, side=96)[:, 0]):
        y = picture + SIGMA * random.normal(size=picture.shape)
        tifffile.imwrite(tmp_path / "noisy" / f"{k}.tif", y.astype(np.float32))
        tifffile.imwrite(tmp_path / "clean" / f"{k}.tif", picture.astype(np.float32))
    run = tmp_path / "run"
    command = ("train", tmp_path / "noisy", "--sigma", SIGMA, "--range", 0, 1, "--out", run)
    said = succeeded(*command, "--steps", 20, "--size", "tiny", "--crop", 32)
    assert "Careful" not in said.err
    judged = ("evaluate", run, tmp_path / "noisy", "--clean", tmp_path / "clean", "--samples", 0)
    assert "Careful" not in succeeded(*judged).err


def test_errors_that_are_negative_in_all_are_impossible() -> None:
    """−0.08 ± 0.02 of all values, as of a run whose σ was too large; no class is so sure."""
    classes = [SpreadClass(1.0, -0.1, 0.05)] * 10
    assert Revealed(6, 6, -0.08, 0.02, None, classes).impossible
    assert not Revealed(6, 6, 0.05, 0.05, None, classes).impossible
    assert not Revealed(6, 6, -0.04, 0.02, None, classes).impossible


def test_a_slip_in_the_number_of_samples_is_refused_at_once(tmp_path: Path) -> None:
    data = float_folder(tmp_path / "data")
    refused = nediff("restore", tmp_path, data, "--samples", 10**6, "--out", tmp_path / "out")
    assert refused.code == 2
    assert "10000" in refused.err
    assert not (tmp_path / "out").exists()


def test_budgets_are_checked_before_any_data_are_read(tmp_path: Path) -> None:
    for minutes in ("0", "nan", "-1"):
        refused = nediff(
            "train",
            tmp_path / "none",
            "--sigma",
            0.1,
            "--minutes",
            minutes,
            "--out",
            tmp_path / "r",
        )
        assert refused.code == 2
        assert "more than 0 minutes" in " ".join(refused.err.split())


@pytest.mark.parametrize(("typed", "meant"), [("atuo", "Did you mean auto"), ("0,1", "Write 0.1")])
def test_slips_in_sigma(tmp_path: Path, typed: str, meant: str) -> None:
    data = float_folder(tmp_path / "data")
    refused = nediff("train", data, "--sigma", typed, "--out", tmp_path / "run", "--steps", 1)
    assert refused.code == 2
    assert meant in " ".join(refused.err.split())


def test_resuming_says_whether_there_was_anything_to_go_on_with(tmp_path: Path) -> None:
    data, run = float_folder(tmp_path / "data"), tmp_path / "run"
    command = ("train", data, "--sigma", SIGMA, "--out", run, "--steps", 2, *TINY, "--resume")
    assert f"there is no run in {run} to go on with" in " ".join(succeeded(*command).err.split())
    again = succeeded(*command).err
    assert "no run in" not in again
    assert "it was finished before" in again


def test_long_work_is_heard_of_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line every half minute of a clock that is turned by hand."""
    clock = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    pulse = console.Pulse("restoring")
    for done in range(1, 101):
        clock[0] = 0.5 * done
        pulse(done, 100)
    assert capsys.readouterr().err.splitlines() == ["restoring: 60 of 100"]
