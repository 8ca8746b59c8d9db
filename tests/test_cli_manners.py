"""Manners of the command line: JSON for programs, quiet, info, compare, and what was meant."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nediff.errors import did_you_mean, did_you_mean_path
from nediff.keeping import CHECKSUM
from nediff.runs import load_config
from nediff.training.metrics import read_metrics
from tests.command import SIGMA, TINY, float_folder, nediff, smooth, succeeded


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`data`, and two runs on it, of two and of three steps."""
    folder = tmp_path_factory.mktemp("manners")
    float_folder(folder / "data")
    for name, steps in (("first", 2), ("second", 3)):
        succeeded(
            *("train", folder / "data", "--sigma", SIGMA, "--out", folder / name),
            *("--steps", steps, "--json", folder / f"{name}.json", *TINY),
        )
    return folder


def read(text: str) -> Any:
    """Strict JSON: NaN and Infinity are none."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


# --- JSON ---------------------------------------------------------------------------------------


def test_the_summary_of_a_training_is_what_info_says(world: Path) -> None:
    after = read((world / "first.json").read_text())
    assert read(succeeded("info", world / "first", "--json").out) == after
    config, rows = load_config(world / "first"), read_metrics(world / "first")
    assert after["finished"] is True
    assert after["steps_done"] == config.training.steps == 2
    assert after["estimated_psnr"] == max(float(row["estimated_psnr"]) for row in rows)
    assert math.isclose(after["noisy_psnr"], 20.0, abs_tol=1e-9)  # −10 log₁₀ 0.1²
    assert after["images"] == 3
    assert after["clean"] is False


def test_an_unfinished_run_is_called_so(world: Path, tmp_path: Path) -> None:
    from nediff.runs import save_config

    config = load_config(world / "first")
    more = config.training.model_copy(update={"steps": 9})
    save_config(tmp_path / "run", config.model_copy(update={"training": more}))
    outcome = succeeded("info", tmp_path / "run")
    assert "not finished" in outcome.out
    assert "no weights" in outcome.out
    assert read(succeeded("info", tmp_path / "run", "--json").out)["finished"] is False


def test_json_takes_the_place_of_words(world: Path, tmp_path: Path) -> None:
    for command in (
        ("diagnose", world / "data"),
        ("evaluate", world / "first", world / "data", "--samples", 2),
        ("compare", world / "first", world / "second"),
        ("restore", world / "first", world / "data", "--out", tmp_path / "a"),
        ("reproduce", "theorem", "--plan", "--out", tmp_path / "b"),
    ):
        assert isinstance(read(succeeded(*command, "--json").out), dict), command
        file = tmp_path / f"{command[0]}.json"
        out = tmp_path / "c" if command[0] == "restore" else None
        again = (*command[:-1], out) if out else command
        words = succeeded(*again, "--json", file)
        assert isinstance(read(file.read_text()), dict)
        assert command[0] == "restore" or words.out.strip()
        assert not words.out.startswith("{")


def test_restore_says_which_files_it_wrote(world: Path, tmp_path: Path) -> None:
    command = ("restore", world / "first", world / "data", "--out", tmp_path / "out")
    done = read(succeeded(*command, "--samples", 2, "--steps", 3, "--json").out)
    written = {p for p in (tmp_path / "out").rglob("*.tif")}
    told = {Path(path) for file in done["files"] for path in file["outputs"].values()}
    assert told == written
    assert len(written) == 3 * 5  # restored, mean, sd and two samples of each
    again = read(succeeded(*command, "--samples", 2, "--steps", 3, "--json").out)
    assert again["files"] == []


def test_calibrate_reports_what_it_stored(world: Path, tmp_path: Path) -> None:
    import shutil

    run = Path(shutil.copytree(world / "first", tmp_path / "run"))
    said = read(succeeded("calibrate", run, float_folder(tmp_path / "four", 4), "--json").out)
    stored = read((run / "calibration.json").read_text())
    assert said["correction"] == {k: v for k, v in stored.items() if k not in (CHECKSUM, "weights")}
    assert {"before", "after"} <= said.keys()
    assert read(succeeded("info", run, "--json").out)["calibrated"] is True


def test_restore_says_whether_the_calibration_was_used(world: Path, tmp_path: Path) -> None:
    """It is for samples that are drawn as they were when it was found."""
    from nediff.correction import Correction
    from nediff.restorer import Restorer

    run = Restorer.load(world / "first")
    run.correction = Correction(factor=1.5)
    run.save(tmp_path / "run")
    command = ("restore", tmp_path / "run", world / "data" / "a0.tif", "--json", "--out")
    right = succeeded(*command, tmp_path / "a", "--samples", 1)
    assert read(right.out)["calibrated"] is True
    assert "Careful" not in right.err
    for number, options in enumerate((("--steps", 3), ("--solver", "euler"))):
        other = succeeded(*command, tmp_path / f"b{number}", "--samples", 1, *options)
        assert read(other.out)["calibrated"] is False
        assert "were calibrated for samples by --solver dpm2m --steps 10; these" in other.err
    without = succeeded(*command, tmp_path / "c", "--steps", 3)
    assert read(without.out)["calibrated"] is False
    assert "Careful" not in without.err


def test_json_takes_no_option_for_its_file(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read(succeeded("info", world / "first", "--json", "-q").out)["steps"] == 2
    assert read(succeeded("info", "--json", "-", world / "first").out)["steps"] == 2
    assert not list(tmp_path.iterdir())
    outcome = nediff("info", "--json", world / "first")
    assert outcome.code == 2
    assert f"--json took {world / 'first'} for the file" in outcome.err
    assert "put --json at the end" in outcome.err
    assert "--json took" not in nediff("info", "--json").err


def test_json_is_never_written_to_a_folder(world: Path, tmp_path: Path) -> None:
    for command in (("info", world / "first"), ("compare", world / "first", world / "second")):
        outcome = nediff(*command, "--json", tmp_path)
        assert outcome.code == 2
        assert "is a folder; give --json" in outcome.err


# --- quiet --------------------------------------------------------------------------------------


def test_quiet_leaves_results_and_warnings(world: Path, tmp_path: Path) -> None:
    train = ("train", world / "data", "--sigma", SIGMA, "--steps", 2, *TINY)
    loud = succeeded(*train, "--out", tmp_path / "loud")
    assert "training 'tiny'" in loud.err
    quiet = succeeded(*train, "--out", tmp_path / "quiet", "--quiet")
    assert quiet.err == ""
    assert quiet.out == ""
    info = succeeded("info", tmp_path / "quiet", "-q")
    assert "recipe" in info.out
    # and the next command of the same process is not silenced
    restore = ("restore", tmp_path / "quiet", world / "data", "--out")
    assert "restored into" in succeeded(*restore, tmp_path / "r").err


def test_quiet_results_stand_alone(world: Path, tmp_path: Path) -> None:
    """On standard output the very words as without it, and nothing beside them."""
    import shutil

    first, data = world / "first", float_folder(tmp_path / "four", 4)
    run = Path(shutil.copytree(first, tmp_path / "run"))
    for command in (
        ("diagnose", data, "--html", tmp_path / "page.html"),
        ("evaluate", first, data, "--samples", 2),
        ("compare", first, world / "second", "--images", data, "--samples", 2),
        ("info", first),
        ("calibrate", run, data),
        ("reproduce", "theorem", "--plan", "--out", tmp_path / "r"),
    ):
        loud, quiet = succeeded(*command), succeeded(*command, "--quiet")
        assert quiet.out == loud.out != "", command
        careful = [line for line in loud.err.splitlines() if line.startswith("Careful:")]
        assert quiet.err.splitlines() == careful


def test_quiet_does_not_silence_a_warning(world: Path, tmp_path: Path) -> None:
    import numpy as np
    import tifffile

    (tmp_path / "other").mkdir()
    tifffile.imwrite(tmp_path / "other" / "a.tif", (1000 * smooth(0)).astype(np.float32))
    command = ("restore", world / "first", tmp_path / "other", "--out", tmp_path / "r")
    assert "Careful:" in succeeded(*command, "--quiet").err


def test_a_level_is_simulated_that_was_typed_as_it_was_printed(tmp_path: Path) -> None:
    """σ of 1/30 is printed as 0.0333333, and 0.03333 of the range."""
    run, clean = tmp_path / "run", tmp_path / "clean.npy"
    np.save(clean, np.stack([smooth(k) for k in range(3)]).astype(np.float32))
    data = (clean, "--axes", "NHW")
    simulated = ("--simulate", 1 / 30, "--range", 0, 1)
    succeeded("train", *data, *simulated, "--out", run, "--steps", 2, *TINY)
    evaluate = ("evaluate", run, *data, "--samples", 0, "--json")
    exact = succeeded(*evaluate, "--simulate", 1 / 30).out
    for printed in (0.0333333, 0.03333):
        assert succeeded(*evaluate, "--simulate", printed).out == exact
    assert (
        "σ = 0.0333333; --simulate 0.034 is another" in nediff(*evaluate, "--simulate", 0.034).err
    )


# --- compare ------------------------------------------------------------------------------------


def test_compare_evaluates_on_the_same_measurements(world: Path, tmp_path: Path) -> None:
    on = ("--images", world / "data", "--samples", 2, "--seed", 5)
    found = read(succeeded("compare", world / "first", world / "second", *on, "--json").out)
    for row in found["runs"]:
        alone = ("evaluate", row["run"], world / "data", "--samples", 2, "--seed", 5)
        assert row["evaluation"] == read(succeeded(*alone, "--json").out)
    figures = [row["evaluation"]["blind"]["estimated_psnr"] for row in found["runs"]]
    assert figures[0] != figures[1]
    table = succeeded("compare", world / "first", world / "second", *on).out
    assert "PSNR without truth" in table


@pytest.mark.parametrize(
    ("option", "match"),
    [("--clean", "--clean or --simulate, not both"), ("--sigma", "leave --sigma out")],
)
def test_compare_refuses_options_that_contradict_each_other(
    world: Path, option: str, match: str
) -> None:
    value = world / "data" if option == "--clean" else SIGMA
    on = ("--images", world / "data", "--simulate", SIGMA, "--samples", 0, option, value)
    outcome = nediff("compare", world / "first", world / "second", *on)
    assert outcome.code == 2
    assert match in outcome.err


def test_compare_says_how_images_are_given(world: Path) -> None:
    outcome = nediff("compare", world / "first", world / "second", world / "data")
    assert outcome.code == 2
    assert f"--images {world / 'data'}" in outcome.err


def test_a_training_says_that_the_noise_is_less_than_it_was_told(tmp_path: Path) -> None:
    """Ramps with noise of 0.02, of which 0.1 is said; after a few steps that shows."""
    rows, columns = np.mgrid[:64, :64] / 63 - 0.5
    ramps = np.stack([0.5 + 0.8 * (np.cos(k) * rows + np.sin(k) * columns) for k in range(8)])
    noisy = ramps + np.random.default_rng(0).normal(0, 0.02, ramps.shape)
    np.save(tmp_path / "y.npy", noisy.astype(np.float32))
    data = (tmp_path / "y.npy", "--axes", "NHW", "--range", "0", "1")
    out = tmp_path / "run"
    told = succeeded("train", *data, "--sigma", 0.1, "--out", out, "--steps", 60, *TINY)
    assert "σ must be too large" in told.err
    assert "σ is too large" in succeeded("info", out).out
    assert "σ must be too large" in succeeded("evaluate", out, *data[:3], "--samples", 0).out
    right = tmp_path / "right"
    told = succeeded("train", *data, "--sigma", 0.02, "--out", right, "--steps", 60, *TINY)
    assert "too large" not in told.err


def test_compare_refuses_what_cannot_be_compared(world: Path, tmp_path: Path) -> None:
    from nediff.restorer import Restorer

    other = Restorer.load(world / "second")
    data = other.config.data
    for update, words in (({"sigma": 0.05}, "noise levels"), ({"high": 2.0}, "intensity ranges")):
        changed = other.config.model_copy(update={"data": data.model_copy(update=update)})
        other.config, folder = changed, tmp_path / words.replace(" ", "-")
        other.save(folder)
        runs = ("compare", world / "first", folder)
        outcome = nediff(*runs, "--images", world / "data")
        assert outcome.code == 2
        assert words in outcome.err
        said = " ".join(succeeded(*runs).err.split())
        assert f"Careful: these runs have different {words}, so their held-out PSNRs" in said
        assert ("--images and --sigma" in said) == (words == "noise levels")
    assert "two different runs" in nediff("compare", world / "first", world / "first").err
    needless = nediff("compare", world / "first", world / "second", "--sigma", SIGMA)
    assert "about --images" in needless.err


def test_compare_says_when_runs_were_judged_by_other_images(world: Path, tmp_path: Path) -> None:
    """The data and the seed say which images are held out; the steps do not matter."""
    assert succeeded("compare", world / "first", world / "second").err == ""
    other = float_folder(tmp_path / "other", count=4)
    train = ("train", "--sigma", SIGMA, "--steps", 2, *TINY)
    succeeded(*train, other, "--out", tmp_path / "data")
    succeeded(*train, world / "data", "--seed", 1, "--out", tmp_path / "seed")
    for words in ("data", "seed"):
        said = succeeded("compare", world / "first", tmp_path / words).err
        assert f"Careful: these runs have different {words}" in said
        assert "--images evaluates them on the same measurements" in said
    on = ("--images", world / "data", "--samples", 0)
    assert "different" not in succeeded("compare", world / "first", tmp_path / "data", *on).err


# --- what was meant -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("trian", "x"), "Did you mean train?"),
        (("train", "x", "--sgima", "1"), "Did you mean --sigma?"),
        (("--vesion",), "Did you mean --version?"),
        (("train", "x", "--out", "y", "--operator", "inpaintin"), "Did you mean inpainting?"),
        (("restore", "x", "y", "--out", "z", "--solver", "huen"), "Did you mean heun?"),
        (
            ("train", "x", "--out", "y", "--sigma", "0.1", "--recipe", "papr"),
            "Did you mean paper?",
        ),
        (("reproduce", "tabel1"), "Did you mean table1?"),
        (("restore", "a"), "Missing option '--out'. See nediff restore --help."),
    ],
)
def test_the_first_mistake_is_answered(typed: tuple[str, ...], meant: str) -> None:
    outcome = nediff(*typed)
    assert outcome.code == 2
    assert outcome.err.startswith("nediff: ")
    assert outcome.err.rstrip().endswith(meant)
    assert len(outcome.err.splitlines()) == 1


def test_a_path_that_is_nearly_there(world: Path, tmp_path: Path) -> None:
    for command in (("diagnose", world / "dta"), ("info", world / "frist")):
        meant = {"dta": "data", "frist": "first"}[command[1].name]
        assert nediff(*command).err.rstrip().endswith(f"Did you mean {world / meant}?")
    assert f"Did you mean {world / 'first'} or {world / 'second'}?" in nediff("info", world).err


def test_nothing_is_suggested_that_is_not_alike_or_not_there(tmp_path: Path) -> None:
    assert did_you_mean("quartz", ["train", "restore"]) == ""
    (tmp_path / "images").mkdir()
    assert did_you_mean_path(tmp_path / "imagse") == f" Did you mean {tmp_path / 'images'}?"
    assert did_you_mean_path(tmp_path / "imagse" / "a.tif") == ""  # no such file in images
    assert did_you_mean_path(tmp_path / "quartz") == ""


def test_without_a_command_there_is_help() -> None:
    outcome = succeeded()
    for command in ("train", "restore", "info", "compare"):
        assert command in outcome.out


COMMANDS = ("train", "diagnose", "restore", "evaluate", "calibrate", "info", "compare", "demo")
COMMANDS += ("app", "reproduce")
WIDTH = 80


@pytest.mark.parametrize("command", COMMANDS)
def test_help_reads_well_in_80_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paragraphs are filled, and no word is cut in two: all of them are of the source."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    lines = succeeded(command, "--help").out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    text = [line.strip() for line in lines[: next(k for k, x in enumerate(lines) if "╭" in x)]]
    for line, following in pairwise(text):
        if line and following:  # the next word did not fit
            assert 1 + len(line) + 1 + len(following.split()[0]) > WIDTH - 2, line
    assert not [line for line in lines if "<bool>" in line or "|" in line]


def test_help_names_every_choice_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    from nediff.cli.options import Group, Kind, Operator, Pattern, Precision, Size, Solver, Tracker

    monkeypatch.setenv("COLUMNS", str(WIDTH))
    listed = [
        ("train", (Group, Kind, Operator, Pattern, Precision, Size, Tracker)),
        ("restore", (Solver,)),
    ]
    for command, choices in listed:
        words = set(re.findall(r"\w+", succeeded(command, "--help").out))
        for choice in choices:
            assert {str(c.value) for c in choice} <= words


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_what_is_no_seed_is_refused(tmp_path: Path, seed: int) -> None:
    outcome = nediff("diagnose", tmp_path, "--seed", seed)
    assert outcome.code == 2
    assert f"{seed} is no seed; give one from 0 to 4294967295." in outcome.err


def test_brackets_in_help_are_no_markup() -> None:
    assert "nediff[app]" in succeeded("app", "--help").out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("nediff re", ["restore", "reproduce"]),
        ("nediff train d --recipe s", ["sure", "supervised"]),
        ("nediff reproduce t", ["theorem", "table1", "table2"]),
    ],
)
def test_completion_in_the_shell(typed: str, meant: list[str]) -> None:
    """What bash asks for when TAB is pressed after what was typed."""
    place = str(len(typed.split()) - 1)
    asked = {"_NEDIFF_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": place}
    code = "import sys; sys.argv = ['nediff']; from nediff.cli.main import main; main()"
    outcome = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True
    )
    assert outcome.stdout.split() == meant


def test_what_the_shell_completes_is_what_there_is() -> None:
    from nediff.cli import options
    from nediff.experiments.catalogue import EXPERIMENTS as EXPERIMENTS_THERE_ARE
    from nediff.recipes import _FOR_OPERATORS, RECIPES

    assert set(options.RECIPES) == {*RECIPES, *_FOR_OPERATORS}
    assert set(options.EXPERIMENTS) == {*EXPERIMENTS_THERE_ARE}
