"""A run that was stopped and resumed equals one that was not, bit for bit."""

from __future__ import annotations

import csv
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

import nediff as package
from nediff.cli import train as train_command
from nediff.config import RunConfig
from nediff.correction import Correction, save_correction
from nediff.data import Measurements, open_measurements
from nediff.errors import NediffError, NediffWarning
from nediff.keeping import read_tensors, write_tensors
from nediff.problem import Problem
from nediff.recipes import recipe_named
from nediff.training.batches import BatchSource
from nediff.training.fitting import Plan, plan_run, run_training, start_folder
from nediff.training.metrics import MetricsLog
from tests.command import SIGMA, TINY, float_folder, nediff, smooth, succeeded, tree

STEPS = 24
"""Validations fall on steps 10, 20 and 24."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return float_folder(tmp_path_factory.mktemp("resume") / "data", count=4)


def planned(data: Path, recipe: str = "default") -> tuple[RunConfig, Measurements]:
    simulate = SIGMA if recipe == "supervised" else None
    measurements = open_measurements(data, simulate=simulate)
    plan = Plan(steps=STEPS, size="tiny", crop=24, batch=2, recipe=recipe)
    return plan_run(measurements, Problem.denoising(SIGMA, 1), plan, str(data)), measurements


def stop_after(k: int) -> Callable[[], bool]:
    """Says stop the k-th time it is asked, which is after each step."""
    asked = iter(range(1, 10**9))
    return lambda: next(asked) == k


def tensors(path: Path) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in load_file(path).items()}


def metrics(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def assert_same_run(a: Path, b: Path) -> None:
    """Weights, everything `--resume` needs, and what was measured on the way."""
    for name in ("model.safetensors", "state/state.safetensors"):
        one, other = tensors(a / name), tensors(b / name)
        assert one.keys() == other.keys()
        different = [k for k in one if not torch.equal(one[k], other[k])]
        assert not different, f"{name}: {different[:3]}"
    assert metrics(a) == metrics(b)
    assert (a / "config.yaml").read_bytes() == (b / "config.yaml").read_bytes()


@pytest.fixture(scope="module")
def uninterrupted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config, measurements = planned(data)
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    start_folder(run, config)
    _, finished = run_training(config, measurements, run)
    assert finished
    return run


@pytest.mark.parametrize("stops", [(10,), (13,), (1,), (3, 4, 9, 1)])
def test_stopped_and_resumed_equals_uninterrupted(
    data: Path, uninterrupted: Path, tmp_path: Path, stops: tuple[int, ...]
) -> None:
    """At a validation, between two, before the first, and several times."""
    config, measurements = planned(data)
    start_folder(tmp_path / "run", config)
    for stop in stops:
        _, finished = run_training(config, measurements, tmp_path / "run", stop=stop_after(stop))
        assert not finished
    config, measurements = planned(data)
    _, finished = run_training(config, measurements, tmp_path / "run")
    assert finished
    assert_same_run(tmp_path / "run", uninterrupted)


def test_training_in_memory_gives_the_same(data: Path, uninterrupted: Path) -> None:
    config, measurements = planned(data)
    restorer, _ = run_training(config, measurements, None)
    kept = tensors(uninterrupted / "model.safetensors")
    for name, parameter in restorer.denoiser.named_parameters():
        assert torch.equal(parameter, kept[name])


def test_the_comparison_can_fail(data: Path, uninterrupted: Path, tmp_path: Path) -> None:
    """Forgetting the optimizer's memory is noticed; a state without it is refused."""
    config, measurements = planned(data)
    run = tmp_path / "run"
    start_folder(run, config)
    run_training(config, measurements, run, stop=stop_after(13))
    path = run / "state/state.safetensors"
    _, metadata = read_tensors(path)
    (run / "state/previous.safetensors").unlink()
    state = tensors(path)
    lost = {k: v for k, v in state.items() if not k.startswith("optimizer.")}
    save_file(lost, path, metadata=metadata)
    with pytest.raises(NediffError, match="does not hold the state"):
        run_training(config, measurements, run)
    zeroed = {k: torch.zeros_like(v) if "momentum" in k else v for k, v in state.items()}
    save_file(zeroed, path, metadata=metadata)
    run_training(config, measurements, run)
    with pytest.raises(AssertionError, match=r"model\.safetensors"):
        assert_same_run(run, uninterrupted)


@pytest.mark.parametrize("recipe", ["supervised", "paper", "sure"])
def test_other_recipes(data: Path, tmp_path: Path, recipe: str) -> None:
    for name, stops in (("a", ()), ("b", (7,))):
        config, measurements = planned(data, recipe)
        config = config.model_copy(
            update={"training": config.training.model_copy(update={"steps": 12})}
        )
        start_folder(tmp_path / name, config)
        for stop in stops:
            run_training(config, measurements, tmp_path / name, stop=stop_after(stop))
        run_training(config, measurements, tmp_path / name)
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_before_the_first_validation_the_newest_weights_are_shown(
    data: Path, tmp_path: Path
) -> None:
    config, measurements = planned(data)
    start_folder(tmp_path / "run", config)
    run_training(config, measurements, tmp_path / "run", stop=stop_after(4))
    shown = tensors(tmp_path / "run" / "model.safetensors")
    state = tensors(tmp_path / "run" / "state/state.safetensors")
    assert all(torch.equal(value, state[f"ema.{name}"]) for name, value in shown.items())
    assert package.load(tmp_path / "run").restore(smooth(0).astype(np.float32)).shape == (40, 44)


def test_resuming_a_finished_run_changes_nothing(
    data: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    config, measurements = planned(data)
    _, finished = run_training(config, measurements, run)
    assert finished
    assert_same_run(run, uninterrupted)
    assert (run / "metrics.csv").read_bytes() == (uninterrupted / "metrics.csv").read_bytes()


def test_a_calibration_is_for_the_weights_it_was_found_with(data: Path, tmp_path: Path) -> None:
    """Trained on, a run is no longer calibrated, and says so; with the same weights it still is."""
    config, measurements = planned(data)
    run = tmp_path / "run"
    start_folder(run, config)
    stopped, _ = run_training(config, measurements, run, stop=stop_after(10))
    found = Correction(factor=1.5)
    save_correction(run, found, dict(stopped.denoiser.named_parameters()))
    assert package.load(run).correction == found
    package.load(run).save(tmp_path / "copy")
    assert package.load(tmp_path / "copy").correction == found
    done, finished = run_training(config, measurements, run)
    assert finished
    said = nediff("info", run)
    assert "Careful: " in said.err
    assert "was found with other weights than the run has now" in said.err
    assert "as they are; see nediff calibrate" in said.out
    with pytest.warns(NediffWarning, match="calibrate the run again"):
        assert package.load(run).correction is None
    done.save(tmp_path / "copy")  # over a calibrated run with other weights
    with pytest.warns(NediffWarning, match="calibrate the run again"):
        assert package.load(tmp_path / "copy").correction is None
    save_correction(run, found)  # as older versions did
    assert package.load(run).correction == found


def test_killed_before_the_first_save(data: Path, uninterrupted: Path, tmp_path: Path) -> None:
    """Only config.yaml is there, and a row of a validation whose state was never saved."""
    config, measurements = planned(data)
    start_folder(tmp_path / "run", config)
    (tmp_path / "run" / "metrics.csv").write_text(
        "step,seconds,loss,estimated_psnr\n10,1.0,2.0,3.0\n20,1."
    )
    run_training(config, measurements, tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)


def test_rows_after_the_state_are_dropped_and_none_comes_twice(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, 0) as log:
        for step in (10, 20, 30):
            log.write(step, 1.0, 0.1 * step, 20.0)
    with MetricsLog(tmp_path, 20) as log:
        log.write(30, 9.0, 7.0, 21.0)
    assert [row["step"] for row in metrics(tmp_path)] == ["10", "20", "30"]
    assert metrics(tmp_path)[2]["loss"] == "7.0"


def test_a_batch_is_the_same_whenever_it_is_asked_for(data: Path) -> None:
    recipe = recipe_named("default")

    def source() -> BatchSource:
        return BatchSource(
            open_measurements(data, simulate=0.05, seed=3),
            Problem.denoising(SIGMA),
            16,
            4,
            recipe.pool,
            recipe.pool_weights,
            seed=3,
        )

    forwards, backwards = source(), source()
    first = [forwards.groups(k) for k in range(6)]
    second = [backwards.groups(k) for k in reversed(range(6))][::-1]
    for one, other in zip(first, second, strict=True):
        assert [samples for samples, _ in one] == [samples for samples, _ in other]
        for (_, a), (_, b) in zip(one, other, strict=True):
            assert torch.equal(a.y, b.y)
            assert torch.equal(a.sigma, b.sigma)
    assert not torch.equal(first[0][0][1].y, first[1][0][1].y)


# --- the command line ---------------------------------------------------------------------------


def interrupt_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """The next `nediff train` gets Ctrl-C after so many steps."""
    stop = stop_after(steps)

    def stopped(self: train_command.Stopper) -> bool:
        if stop():
            os.kill(os.getpid(), signal.SIGINT)
        return self.signal is not None

    monkeypatch.setattr(train_command.Stopper, "__call__", stopped)


def test_simulated_noise_is_the_same_after_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "clean"
    data.mkdir()
    for i in range(3):
        np.save(data / f"{i}.npy", smooth(i))
    options = ("--simulate", SIGMA, "--steps", 14, "--seed", 5, *TINY)
    succeeded("train", data, "--out", tmp_path / "a", *options)
    interrupt_after(monkeypatch, 6)
    stopped = nediff("train", data, "--out", tmp_path / "b", *options)
    monkeypatch.undo()
    assert stopped.code == 130
    assert "go on with the same command and --resume" in stopped.err
    # the options are recorded: they need not be given again
    succeeded("train", data, "--out", tmp_path / "b", "--resume")
    assert_same_run(tmp_path / "a", tmp_path / "b")
    config = yaml.safe_load((tmp_path / "b" / "config.yaml").read_text())
    assert config["data"]["simulate"] == SIGMA


def test_renamed_files_are_other_data(tmp_path: Path) -> None:
    """The split and the simulated noise go by name, so a renamed file would change the run."""
    folder = float_folder(tmp_path / "data")
    arguments = ("train", folder, "--sigma", SIGMA, "--out", tmp_path / "run", "--steps", 2, *TINY)
    succeeded(*arguments)
    (folder / "a0.tif").rename(folder / "b0.tif")
    refused = nediff(*arguments, "--resume")
    assert refused.code == 2
    assert "other names" in refused.err


def test_resume_without_a_run_begins_one(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ("train", data, "--sigma", SIGMA, "--steps", 2, "--out", run, *TINY)
    succeeded(*command, "--resume")
    before = {k: v for k, v in tree(run).items() if "tensorboard" not in k}
    outcome = succeeded(*command, "--resume")
    assert "going on with" in outcome.err
    assert {k: v for k, v in tree(run).items() if "tensorboard" not in k} == before


def test_minutes_become_steps_once(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    command = ("train", data, "--sigma", SIGMA, "--minutes", 0.05, "--out", run, *TINY)
    interrupt_after(monkeypatch, 1)
    outcome = nediff(*command)
    config = yaml.safe_load((run / "config.yaml").read_text())["training"]
    assert config["minutes"] == 0.05
    assert config["steps"] > 1
    assert outcome.code == 130
    assert f"{config['steps']} steps" in outcome.err
    monkeypatch.undo()

    def never(*_: object) -> int:
        raise AssertionError("the rate is measured once")

    monkeypatch.setattr(sys.modules["nediff.training.fitting"], "steps_within", never)
    succeeded(*command, "--resume")
    assert yaml.safe_load((run / "config.yaml").read_text())["training"] == config
    assert metrics(run)[-1]["step"] == str(config["steps"])


LONG = ("--steps", 200, "--size", "tiny", "--batch", 1, "--crop", 16, "--recipe", "sure")


@pytest.fixture(scope="module")
def reference(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("reference") / "run"
    succeeded("train", data, "--sigma", SIGMA, "--out", run, *LONG)
    return run


def start(*arguments: object) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "nediff", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_can_go_on(
    data: Path, reference: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    command = ("train", data, "--sigma", SIGMA, "--out", run, *LONG)
    with start(*command) as process:
        assert process.stderr is not None
        heard = next(line for line in process.stderr if line.startswith("step 50:"))
        process.send_signal(number)
        rest = process.stderr.read()
    assert process.returncode == 128 + number, heard + rest
    assert re.search(r"stopped after \d+ of \d+ steps and saved in ", rest)
    assert f"saved in {run}; go on with the same command and --resume" in rest
    assert "Traceback" not in rest
    assert not [name for name in tree(run) if "tmp" in name]
    assert len(metrics(run)) < len(metrics(reference))
    succeeded(*command, "--resume")
    assert_same_run(run, reference)


# --- files --------------------------------------------------------------------------------------


def test_no_file_of_a_run_is_a_pickle(uninterrupted: Path) -> None:
    allowed = {".yaml", ".safetensors", ".csv", ".md"}
    contents: dict[str, Any] = tree(uninterrupted)
    for name, content in contents.items():
        if content is None:
            continue
        assert Path(name).suffix in allowed or "tfevents" in name, name
        assert not content.startswith((b"\x80\x02", b"\x80\x04", b"\x80\x05", b"PK")), name


def test_the_package_never_pickles() -> None:
    forbidden = re.compile(r"torch\.(load|save)\(|import pickle|from pickle|allow_pickle=True|dill")
    assert package.__file__ is not None
    sources = list(Path(package.__file__).parent.rglob("*.py"))
    assert len(sources) > 30
    for source in sources:
        assert not forbidden.search(source.read_text(encoding="utf-8")), source


def test_reading_weights_again_and_again_takes_no_memory(tmp_path: Path) -> None:
    """60,000 tensors; 60 bytes of each, which safetensors' own reader keeps, would be 3.6 MB."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("no /proc here to tell the memory")
    path = tmp_path / "a.safetensors"
    write_tensors(path, {str(i): torch.zeros(3) for i in range(300)})

    def grown(reads: int) -> float:
        before = int(statm.read_text().split()[1])
        for _ in range(reads):
            read_tensors(path)
        return (int(statm.read_text().split()[1]) - before) * resource.getpagesize() / 1e6

    grown(50)
    assert grown(200) < 1.8
