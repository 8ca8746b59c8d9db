"""Several processes together do what one does alone (CPU processes, gloo).

What is compared was computed from the same numbers in another order, so it agrees to rounding.
A gradient is a sum over at most 16 crops whose terms are at most as large as the largest: its
rounding error is some 2⁻²⁴ of that. Muon makes all directions of it equally large, noise too, and
moves weights by up to 10⁻² a step: a dozen steps later weights were seen to agree to 2 · 10⁻⁷.
The tests allow 2 · 10⁻⁵; what is wrong is seen to be a hundred times further off.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import tifffile
import torch
from safetensors.torch import load_file
from torch import distributed

from nediff.cli.launch import use_all_devices
from nediff.keeping import read_tensors
from nediff.processes import ALONE, ASK_AGAIN, Processes, agreed_name
from tests.command import SIGMA, float_folder, noisy, succeeded, tree
from tests.test_resume import metrics
from tests.together import SMALL_PARTS, keeping_samples, launch, small_paper, torchrun

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not torch.distributed.is_available(), reason="needs gloo on Linux"
)

CLOSE = 2e-5
STEPS = 12
"""Validations, and with them states on disk, fall on steps 10 and 12."""
TINY = ("--size", "tiny", "--batch", 4, "--crop", 16, "--steps", STEPS)
MASKED = ("--operator", "inpainting", "--mask-fraction", 0.6, "--simulate", SIGMA)


def train(data: Path, out: Path, *options: object) -> tuple[object, ...]:
    noise = () if "--simulate" in options else ("--sigma", SIGMA)
    return ("train", data, "--out", out, *noise, *TINY, *options)


def distance(a: Path, b: Path, name: str = "state/state.safetensors") -> float:
    """The largest difference of any two numbers of two runs."""
    one, other = load_file(a / name), load_file(b / name)
    assert one.keys() == other.keys()
    return max(float((one[k] - other[k]).abs().max()) for k in one)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distributed")


@pytest.fixture(scope="module")
def data(place: Path) -> Path:
    return float_folder(place / "data", count=5)


@pytest.fixture(scope="module")
def mixed(place: Path) -> Path:
    """Images to restore, small ones and some that are taken apart."""
    folder = place / "mixed"
    folder.mkdir()
    for i, side in enumerate((24, 72, 24, 24, 80)):
        tifffile.imwrite(folder / f"{i}.tif", noisy(i, side, side + 4).astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def alone(place: Path, data: Path, mixed: Path) -> Path:
    """What one process does."""
    runs = place / "alone"
    succeeded(*train(data, runs / "plain"))
    with keeping_samples():
        succeeded(*train(data, runs / "masked", *MASKED))
    with patch("nediff.restorer.TILED_FROM", SMALL_PARTS):
        succeeded(*restore(runs / "plain", mixed, runs / "restored"))
    return runs


def restore(run: Path, images: Path, out: Path) -> tuple[object, ...]:
    return ("restore", run, images, "--out", out, "--samples", 2, "--steps", 3, "--tile", 64)


@pytest.fixture(scope="module")
def two(place: Path, data: Path, mixed: Path, alone: Path) -> list[list[dict[str, Any]]]:
    """How these commands ended in two processes."""
    runs = place / "two"
    orders: list[dict[str, Any]] = [
        {"args": train(data, runs / "plain")},
        {"args": train(data, runs / "masked", *MASKED, "--micro-batch", 1), "keep": True},
        {"args": train(data, runs / "stopped"), "stop_at": 3},
        {"args": restore(alone / "plain", mixed, runs / "restored")},
        {"args": restore(alone / "plain", place / "nothing", runs / "nowhere")},
        {"args": ("diagnose", data)},
    ]
    return launch(runs, 2, orders)


def test_two_processes_learn_what_one_does(place: Path, alone: Path, two: list[Any]) -> None:
    assert [process[0]["code"] for process in two] == [0, 0]
    assert distance(alone / "plain", place / "two" / "plain") < CLOSE
    assert "2 processes" in two[0][0]["err"]
    assert two[1][0]["err"] == ""
    for one, both in zip(metrics(alone / "plain"), metrics(place / "two" / "plain"), strict=True):
        assert {k: float(v) for k, v in both.items()} == pytest.approx(
            {k: float(v) for k, v in one.items()}, abs=1e-4
        )
    configs = [(p / "plain" / "config.yaml").read_text() for p in (alone, place / "two")]
    assert configs[0] == configs[1]


def test_masks_rehearsal_and_spread_too(place: Path, alone: Path, two: list[Any]) -> None:
    """And in parts of one crop at a time; the spread is learned after the training."""
    assert [process[1]["code"] for process in two] == [0, 0]
    for name in ("state/state.safetensors", "spread.safetensors", "state/rehearsal-1.safetensors"):
        assert distance(alone / "masked", place / "two" / "masked", name) < CLOSE, name


def test_another_batch_is_further_off(place: Path, data: Path, alone: Path) -> None:
    """What the comparison is for: half of the batch, as one process alone would have it."""
    succeeded(*train(data, place / "half", "--batch", 2))
    assert distance(alone / "plain", place / "half", "model.safetensors") > 100 * CLOSE


def test_four_parts_of_a_batch_make_the_same_step(place: Path, data: Path, alone: Path) -> None:
    succeeded(*train(data, place / "parts", "--micro-batch", 1))
    assert distance(alone / "plain", place / "parts") < CLOSE


def test_a_signal_to_one_stops_both_at_the_same_step(
    place: Path, data: Path, alone: Path, two: list[Any]
) -> None:
    run = place / "two" / "stopped"
    assert [process[2]["code"] for process in two] == [143, 143]
    assert "stopped after 4 of" in two[0][2]["err"]
    _, metadata = read_tensors(run / "state/state.safetensors")
    assert '"step": 4' in metadata["progress"]
    # one process goes on where two were
    succeeded(*train(data, run), "--resume")
    assert distance(alone / "plain", run) < CLOSE


def test_images_are_restored_once_and_the_same(place: Path, alone: Path, two: list[Any]) -> None:
    """Byte by byte: no sum is taken in another order."""
    assert [process[3]["code"] for process in two] == [0, 0]
    one, both = (tree(p / "restored") for p in (alone, place / "two"))
    lists = [sorted((t.pop(".nediff-restored") or b"").splitlines()) for t in (one, both)]
    assert lists[0] == lists[1]
    assert len(lists[0]) == 5
    assert one.keys() == both.keys()
    assert [name for name in one if one[name] != both[name]] == []


def test_what_all_would_say_is_said_once(two: list[Any]) -> None:
    for number, words in ((4, "does not exist"), (5, "runs in one process")):
        assert [process[number]["code"] for process in two] == [2, 2]
        said = [process[number]["err"] for process in two if process[number]["err"]]
        assert len(said) == 1
        assert words in said[0]


def test_four_processes(place: Path, data: Path, alone: Path) -> None:
    """With a batch of four, some have no crop of a size that others have."""
    launch(place / "four", 4, [{"args": train(data, place / "four" / "plain")}])
    assert distance(alone / "plain", place / "four" / "plain") < CLOSE


def test_a_killed_worker_is_replaced(place: Path, data: Path, two: list[Any]) -> None:
    """torchrun starts all anew, which go on from step 10: as if nothing had happened."""
    folder = place / "elastic"
    order = {"args": (*train(data, folder / "plain"), "--resume"), "kill_at": 11}
    ended = launch(folder, 2, [order], restarts=1)
    assert "going on with" in ended[0][0]["err"]
    assert distance(place / "two" / "plain", folder / "plain") == 0
    assert metrics(place / "two" / "plain") == metrics(folder / "plain")


def test_processes_that_have_joined_end_by_themselves(tmp_path: Path) -> None:
    """Without `leave`, one of four was aborted at its end in 8 of 10 tries."""
    script = tmp_path / "join.py"
    script.write_text(
        "import torch\nfrom nediff.processes import joined\n"
        "processes = joined()\n"
        "assert float(processes.add(torch.ones(1000)).sum()) == 4000\n"
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*launcher, "--nproc-per-node=4", str(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.parametrize("late", [0, 1, 2])
def test_processes_started_anew_do_not_hear_the_dead(late: int) -> None:
    """Whoever comes last, what an earlier attempt left in torchrun's store deceives nobody."""
    store = distributed.HashStore()
    earlier = joined_by(store, late)
    store.set("nediff asks 1", "a word of one who died before it was answered")
    now = joined_by(store, late)
    assert len(set(earlier)) == len(set(now)) == 1
    assert earlier[0] != now[0]


def joined_by(store: Any, late: int) -> list[str]:
    """The name that three threads agree on, each in the place of a process."""
    with ThreadPoolExecutor(3) as pool:
        order = [k for k in range(3) if k != late]
        early = {k: pool.submit(agreed_name, store, k, 3) for k in order}
        with pytest.raises(NotYet):
            next(iter(early.values())).result(timeout=3 * ASK_AGAIN)  # it waits for the late one
        last = pool.submit(agreed_name, store, late, 3).result(timeout=60)
        return [last, *(k.result(timeout=60) for k in early.values())]


def test_the_failure_of_one_ends_all_with_its_sentence(place: Path, data: Path) -> None:
    folder = place / "failing"
    ended = torchrun(folder, 2, [{"args": train(data, folder / "plain"), "fail_at": 2}])
    assert ended.returncode != 0
    assert ended.stderr.count("nediff: The disk of this machine is full.") == 1
    assert "nediff/processes.py" not in ended.stderr  # no traceback of the one that had to stop


def test_weights_in_shards(place: Path, data: Path) -> None:
    """FSDP: stopped in the middle, gone on with, and again by one process that has no shards."""
    runs = place / "sharded"
    paper = ("--size", "paper", "--batch", 8)
    orders: list[dict[str, Any]] = [
        {"args": train(data, runs / "run", *paper), "sharded": True, "stop_at": 4},
        {"args": (*train(data, runs / "run", *paper), "--resume"), "sharded": True, "stop_at": 8},
        {"args": train(data, runs / "small"), "sharded": True},
    ]
    ended = launch(runs, 2, orders)
    assert [[order["code"] for order in process] for process in ended] == [[143, 143, 2]] * 2
    assert "FSDP is for --size paper" in ended[0][2]["err"] + ended[1][2]["err"]
    with small_paper():
        succeeded(*train(data, runs / "run", *paper), "--resume")
        succeeded(*train(data, place / "whole", *paper))
    assert distance(runs / "run", place / "whole") < CLOSE


def test_alone_all_gpus_of_the_machine_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: started.append(command))
    monkeypatch.setattr(sys, "argv", ["nediff", "train", "data", "--out", "run"])
    use_all_devices()
    assert started == []  # no GPU here, or one
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    use_all_devices()
    assert "--nproc-per-node=3" in started[0]
    assert started[0][-6:] == ["-m", "nediff", "train", "data", "--out", "run"]
    monkeypatch.setenv("WORLD_SIZE", "3")
    use_all_devices()
    assert len(started) == 1


def test_processes_share_without_loss() -> None:
    items = list(range(11))
    shares = [Processes(k, 3).share(items) for k in range(3)]
    assert sorted(i for share in shares for i in share) == items
    assert ALONE.share(items) == items
    assert not ALONE.several
    assert os.environ.get("WORLD_SIZE", "1") == "1"
