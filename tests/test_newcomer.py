"""What a new user met: advice that could not be followed, silence, slips that were not noticed."""

from __future__ import annotations

import glob
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from nediff.cli import console
from nediff.cli.diagnose import lines_of
from nediff.cli.evaluate import print_pairs
from nediff.cli.levels import estimated_level, warn_if_correlated
from nediff.data import IntensityRange, list_files, would_read
from nediff.diagnosis import diagnose
from nediff.diagnosis.advice import _signal
from nediff.diagnosis.diagnose import _as_options, _too_dark
from nediff.evaluation.revealed import Revealed, SpreadClass
from nediff.noise import Estimate, PoissonGaussian, Whiteness, typical_level
from nediff.restorer import Restorer
from nediff.training.metrics import read_metrics
from tests.command import SIGMA, TINY, float_folder, nediff, noisy, succeeded, tree
from tests.pictures import clean, measured

NO_LAGS = np.pad(np.ones((1, 1)), (0, 3))
WHITE = Whiteness(NO_LAGS, 0.01 + 0 * NO_LAGS, NO_LAGS[:2, :2], np.full((2, 2), 0.01), 1e-3)


def smooth_all_over(seed: int = 0) -> NDArray[np.float64]:
    """Photographs as some cameras make them: nothing is left at the finest scale."""
    noisy = clean("power", count=8, seed=seed, side=128)
    noisy = noisy + 0.02 * np.random.default_rng(seed).normal(size=noisy.shape)
    filtered: NDArray[np.float64] = gaussian_filter(noisy, (0, 0, 1.5, 1.5), mode="wrap")
    return filtered


@pytest.mark.parametrize("seed", range(3))
def test_noise_that_was_smoothed_away_is_not_called_white_or_absent(seed: int) -> None:
    found = diagnose(measured(smooth_all_over(seed).astype(np.float32)))
    whiteness = found.noise.whiteness
    text = "\n".join(lines_of(found))
    assert not (whiteness.white and whiteness.known)
    assert "--sigma correlated" in found.command
    assert {w.code for w in found.warnings} & {"little_noise", "correlated"}
    assert "nan" not in text
    if whiteness.known:
        assert max(abs(k) for k in whiteness.neighbours) <= 1
    else:
        assert "cannot be told" in text


def test_a_line_that_no_instrument_has_is_not_recommended() -> None:
    """var = 0.004 (x − 0.4): without light at 0.4, but a tenth of the pixels lies at 0.15.

    Of the others one in 10⁴ is darker than the least of photons, 0.4 − 3/8 · 0.004.
    """
    line = PoissonGaussian(0.004, -0.0016, 1e-4, 1e-4, 1e-9, 1.0, (0.5, 0.6), (4e-4, 8e-4), (1, 1))
    x = np.where(np.arange(40_000) % 10 == 0, 0.15, 0.7).reshape(1, 200, 200)
    images = [
        (x + 0.03 * np.random.default_rng(k).normal(size=x.shape)).astype("f4") for k in (0, 1)
    ]
    unit = IntensityRange(0.0, 1.0)
    share = _too_dark(line, unit, images)
    assert share == pytest.approx(0.1, abs=1e-3)
    assert _too_dark(line, unit, [image[image > 0.4] for image in images]) < 1e-3
    noise = diagnose(measured(clean("smooth", count=8, side=128).astype("f4"))).noise
    for dark, option in ((share, "--sigma"), (0.0, "--gain")):
        told = replace(noise, signal=line, too_dark=dark, sigma=Estimate(0.03, 0, 0))
        told = replace(told, whiteness=WHITE)
        assert _as_options(told, unit).startswith(option)
        hint = "No instrument has such noise" if dark else "Train with --gain"
        assert hint in _signal(told).do


def test_an_offset_that_would_cut_off_the_data_is_refused(tmp_path: Path) -> None:
    data = float_folder(tmp_path / "data")  # values about 0.2 to 0.8
    told = ("--gain", 0.004, "--offset", 0.5, "--out", tmp_path / "run", "--steps", 1)
    refused = nediff("train", data, *told, *TINY)
    assert refused.code == 2
    assert "% of the pixels are darker than" in " ".join(refused.err.split())
    assert "Careful" not in refused.err
    assert not (tmp_path / "run").exists()
    succeeded("train", data, "--gain", 0.004, *told[4:], *TINY)


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


@pytest.mark.parametrize("white", [True, False])
def test_train_says_of_the_colour_of_noise_what_diagnose_says(
    white: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of noise that grows with the signal, what the signal explains is divided out first."""
    images = measured(clean("power", count=4, side=128).astype("f4"))
    correlated = replace(WHITE, nearest=np.array([[1, 0.5], [0.5, 0]]))
    even = replace(typical_level(images), whiteness=WHITE if white else correlated)
    monkeypatch.setattr("nediff.noise.typical_level", lambda _: even)
    warn_if_correlated(images, "denoising")
    assert ("Careful" not in capsys.readouterr().err) == white


def test_an_estimate_of_correlated_noise_is_not_surer_than_diagnose(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of such noise the white part may be sure while nobody knows how much there is of it all."""
    images = measured((clean("power", count=4, side=128) + smooth_noise(0)).astype("f4"))
    correlated = replace(WHITE, nearest=np.array([[1, 0.5], [0.5, 0]]))
    unsure = Estimate(0.04, 0.003, 0.004)
    even = replace(typical_level(images), whiteness=correlated, sigma=unsure)
    monkeypatch.setattr("nediff.noise.typical_level", lambda _: even)
    found = estimated_level(images, "denoising")
    assert found.total_error >= unsure.total_error
    assert abs(found.value - unsure.value) <= found.total_error
    said = capsys.readouterr().err
    assert "Careful: the noise of neighbouring pixels seems to be correlated" in said
    assert f"± {found.total_error:.2g} of the range" in said
    even = replace(even, whiteness=WHITE)
    assert "correlated" not in (estimated_level(images, "denoising"), capsys.readouterr().err)[1]


def smooth_noise(seed: int) -> NDArray[np.float64]:
    """White noise with a little of its neighbours, of `SIGMA`."""
    noise = np.random.default_rng(seed).normal(size=(4, 1, 128, 128))
    noise = gaussian_filter(noise, (0, 0, 0.4, 0.4), mode="wrap")
    scaled: NDArray[np.float64] = SIGMA * noise / noise.std()
    return scaled


def test_too_few_samples_to_judge_error_bars_by_are_not_passed_over(tmp_path: Path) -> None:
    run, data = tmp_path / "run", float_folder(tmp_path / "data")
    told = ("--sigma", SIGMA, "--range", 0, 1, "--steps", 2, "--out")
    for place in (run, tmp_path / "other"):
        succeeded("train", data, *told, place, *TINY)
    commands = (("evaluate", run, data), ("compare", run, tmp_path / "other", "--images", data))
    for command in commands:
        for samples in (0, 2, 3, 4):
            said = succeeded(*command, "--samples", samples).err
            assert said.count("takes 4 samples or more") == int(samples in (2, 3)), command


def test_white_noise_and_an_honest_estimate_get_no_such_words(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    for name in ("noisy", "clean", "new"):
        (tmp_path / name).mkdir()
    for k, picture in enumerate(clean("power", count=12, side=96)[:, 0]):
        y = picture + SIGMA * random.normal(size=picture.shape)
        tifffile.imwrite(tmp_path / "noisy" / f"{k}.tif", y.astype(np.float32))
        tifffile.imwrite(tmp_path / "clean" / f"{k}.tif", picture.astype(np.float32))
        y = picture + SIGMA * random.normal(size=picture.shape)
        tifffile.imwrite(tmp_path / "new" / f"new{k}.tif", y.astype(np.float32))
    run = tmp_path / "run"
    command = ("train", tmp_path / "noisy", "--sigma", SIGMA, "--range", 0, 1, "--out", run)
    said = succeeded(*command, "--steps", 20, "--size", "tiny", "--crop", 32)
    assert "Careful" not in said.err
    judged = ("--clean", tmp_path / "clean", "--samples", 0)
    assert "Careful" not in succeeded("evaluate", run, tmp_path / "new", *judged).err
    flattered = "names and sizes of those that the run was trained on"
    assert flattered in succeeded("evaluate", run, tmp_path / "noisy", *judged).err


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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, with its `data` beside it."""
    folder = tmp_path_factory.mktemp("newcomer")
    data = float_folder(folder / "data")
    succeeded("train", data, "--sigma", SIGMA, "--out", folder / "run", "--steps", 2, *TINY)
    return folder / "run"


@pytest.mark.parametrize(
    ("images", "out", "words"),
    [
        ("data", "data", "is the folder of the noisy images"),
        ("data", "data/../data/.", "is the folder of the noisy images"),
        ("data/**/*.tif", "data/results", "would read it as one the next time"),
        ("data/**/*.tif", "data", "would read it as one the next time"),
        ("d*/*.tif", "data", None),
        ("data/a0.tif", "data", None),
        ("data", "data/results", None),
        ("data", ".", None),
    ],
)
def test_results_never_come_to_lie_among_the_noisy_images(
    run: Path, tmp_path: Path, images: str, out: str, words: str | None
) -> None:
    data = float_folder(tmp_path / "data")
    before, read = tree(data), [f.place for f in list_files(tmp_path / images)]
    outcome = nediff("restore", run, tmp_path / images, "--out", tmp_path / out)
    if words is not None:
        assert outcome.code == 2
        assert words in " ".join(outcome.err.split())
        assert tree(data) == before
        return
    assert outcome.code == 0, outcome.err
    assert [f.place for f in list_files(tmp_path / images)] == read


@pytest.mark.parametrize("command", ["restore", "evaluate", "calibrate"])
def test_a_run_that_is_named_after_its_images_is_noticed(
    run: Path, tmp_path: Path, command: str
) -> None:
    data, out = run.parent / "data", ["--out", tmp_path / "out"] if command == "restore" else []
    outcome = nediff(command, data, run, *out)
    assert outcome.code == 2
    assert "name the run first, then the images" in " ".join(outcome.err.split())
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_named_like_one_of_results(run: Path, tmp_path: Path) -> None:
    """A sample of `a.tif` is `samples/a_0.tif`, here the name of a noisy image."""
    data = float_folder(tmp_path / "samples", count=1)
    (data / "a0.tif").rename(data / "a.tif")
    (data / "a_0.tif").write_bytes((data / "a.tif").read_bytes())
    before = tree(data)
    command = ("restore", run, data, "--samples", 1, "--steps", 2, "--out", tmp_path)
    refused = nediff(*command, "--overwrite")
    assert refused.code == 2
    assert "would lie among the noisy images" in " ".join(refused.err.split())
    assert tree(data) == before


@pytest.mark.parametrize(
    "pattern", ["*.tif", "**/*.tif", "b/**/*.tif", "*/[!d].tif", "?/c/*", "**", "b*/**/c/d.tif"]
)
def test_what_a_pattern_would_read_is_what_it_reads(tmp_path: Path, pattern: str) -> None:
    files = ["a.tif", "b/a.tif", "b/d.tif", "b/c/d.tif", "b/.e/a.tif", "b/.f.tif", "e/c/d.png"]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = set(tmp_path.glob("**/*")) & {
        Path(p) for p in glob.glob(str(tmp_path / pattern), recursive=True)
    }
    told = {tmp_path / name for name in files if would_read(tmp_path / pattern, tmp_path / name)}
    assert told == {path for path in found if path.is_file()}


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


def test_a_run_is_not_written_among_its_images(tmp_path: Path) -> None:
    data = float_folder(tmp_path / "data")
    before = tree(data)
    told = ("--sigma", SIGMA, "--steps", 1, *TINY)
    refused = nediff("train", data, *told, "--out", tmp_path / "data" / ".." / "data")
    assert refused.code == 2
    assert "is the folder of the images; choose another one" in " ".join(refused.err.split())
    assert tree(data) == before


def test_a_level_in_data_units_is_noticed_by_restore_too(tmp_path: Path) -> None:
    data, run = tmp_path / "y.npy", tmp_path / "run"
    np.save(data, np.stack([100 * noisy(k) for k in range(3)]).astype(np.float32))
    images = (data, "--axes", "NHW")
    known = ("--range", 0, 100, "--sigma", 100 * SIGMA, "--units", "data")
    succeeded("train", *images, *known, "--out", run, "--steps", 2, *TINY)
    for command in (
        ("restore", run, *images, "--out", tmp_path / "out"),
        ("evaluate", run, *images),
    ):
        refused = nediff(*command, "--sigma", 100 * SIGMA)
        assert refused.code == 2
        assert "say --units data" in " ".join(refused.err.split())
    succeeded(*command, "--sigma", 100 * SIGMA, "--units", "data", "--samples", 0)


def test_a_pattern_without_quotes_is_explained(tmp_path: Path) -> None:
    """The shell has put the names of the files in its place."""
    names = [tmp_path / f"{k}.tif" for k in range(50)]
    refused = nediff("train", *names, "--sigma", 0.1, "--out", tmp_path / "run")
    assert refused.code == 2
    assert "a pattern in quotes: 'images/*.tif'" in refused.err
    assert str(names[1]) in refused.err
    assert str(names[9]) not in refused.err


def test_where_no_noise_is_found_there_is_one_sentence(tmp_path: Path) -> None:
    """A ramp: flat, but for the steps of its values."""
    ramp = np.tile(np.linspace(0, 1, 128, dtype=np.float32), (128, 1))
    tifffile.imwrite(tmp_path / "ramp.tif", ramp)
    out = ("--out", tmp_path / "out")
    for command in (
        ("restore", "--pretrained", tmp_path / "ramp.tif", *out),
        ("train", tmp_path / "ramp.tif", "--sigma", "auto", "--steps", 1, *TINY, *out),
    ):
        refused = nediff(*command)
        assert refused.code == 2
        assert "noise was found in these images" in refused.err
        assert "--sigma correlated" in refused.err
        assert "noise estimated" not in refused.err


def test_what_is_not_known_of_photons_is_not_printed(tmp_path: Path) -> None:
    folder = float_folder(tmp_path / "data", count=1)  # too small to see a dependence
    refused = nediff("train", folder, "--gain", "auto", "--out", tmp_path / "run", *TINY)
    assert refused.code == 2
    assert "does not grow with their signal" in refused.err
    assert "inf" not in refused.err.replace(str(tmp_path), "")


def test_the_words_above_a_table_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    classes = [SpreadClass(1.0, 1.0, 0.05)] * 10
    print_pairs(Revealed(6, 6, 1.0, 0.05, None, classes), "before:")
    title = "before: error²/variance by predicted variance, from recorrupted pairs"
    assert title in capsys.readouterr().out.splitlines()


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


@pytest.mark.parametrize("damaged", [False, True])
def test_info_counts_the_steps_as_train_did_when_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """Stopped between two looks at the held-out images, the last of which was at step 40."""
    asked = iter(range(1, 100))
    monkeypatch.setattr("nediff.cli.train.Stopper.__call__", lambda _: next(asked) >= 45)
    run = tmp_path / "run"
    data = float_folder(tmp_path / "data")
    stopped = nediff("train", data, "--sigma", SIGMA, "--out", run, "--steps", 80, *TINY)
    found = re.search(r"stopped after (\d+) of 80 steps", stopped.err)
    assert found, stopped.err
    last = int(read_metrics(run)[-1]["step"])
    assert int(found[1]) > last > 0
    if damaged:
        for path in (run / "state").iterdir():
            path.write_bytes(b"none of ours")
    told = last if damaged else int(found[1])
    assert f"{told} of 80, " in succeeded("info", run).out


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


def test_info_says_that_a_run_comes_from_python(run: Path, tmp_path: Path) -> None:
    """Saved by itself it has no state, and so nothing that could go on."""
    Restorer.load(run).save(tmp_path / "saved")
    told = succeeded("info", tmp_path / "saved").out
    assert "It was saved from Python" in told
    assert "--resume" not in told
