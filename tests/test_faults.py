"""A run survives what can happen to it: the short form of `make faults`, and its parts."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.faults import damage, fuzz, kills, sessions
from nediff.correction import Correction, load_correction, save_correction
from nediff.data import claimed, write_form
from nediff.data.claim import LOCK_FILE
from nediff.data.write import Form
from nediff.errors import NediffError, NediffWarning
from nediff.keeping import Damaged, read_sealed, read_tensors, sealed, write_tensors
from tests.command import SIGMA, TINY, float_folder, nediff, succeeded, tree

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(3), "c": torch.zeros(0)}


# --- files that can be trusted --------------------------------------------------------------------


def test_every_flipped_bit_of_a_tensor_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, TENSORS, {"words": "two"})
    tensors, metadata = read_tensors(path)
    assert metadata == {"words": "two"}
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for place in range(header, len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(bytes(flipped))
        with pytest.raises(Damaged, match="corrupt"):
            read_tensors(path)
    for change in (b"two", b"twO"), (b'"F32"', b'"I32"'), (b"[2,3]", b"[3,2]"):
        path.write_bytes(whole.replace(*change))
        with pytest.raises(Damaged, match="corrupt"):
            read_tensors(path)


def test_a_text_that_is_cut_or_changed_is_noticed(tmp_path: Path) -> None:
    path, text = tmp_path / "a.yaml", "steps: 10\nseed: 3\n"
    path.write_text(sealed(text))
    assert read_sealed(path) == text
    path.write_text(text)  # of an older version, or edited
    assert read_sealed(path) == text
    for broken in (sealed(text)[:-5], sealed(text).replace("10", "11"), sealed(text) + "a: 1\n"):
        path.write_text(broken)
        with pytest.raises(Damaged, match="remove its first line"):
            read_sealed(path)


def _badly(tensors: Any, path: Path, metadata: Any) -> None:
    """A disk that keeps other bytes than it was given."""
    save_file(tensors, path, metadata=metadata)
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def test_the_generation_before_is_kept_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, previous = tmp_path / "state.safetensors", tmp_path / "previous.safetensors"

    def write(number: float) -> None:
        write_tensors(path, {"a": torch.tensor([number])}, {}, previous)

    def now() -> list[float]:
        return [load_file(p)["a"].item() for p in (path, previous) if p.exists()]

    write(1)
    assert now() == [1]
    write(2)
    assert now() == [2, 1]
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(1, "no links here")))
        write(3)
    assert now() == [3, 2]
    with monkeypatch.context() as patched:
        patched.setattr("nediff.keeping.save_file", _badly)
        with pytest.raises(NediffError, match="corrupt"):
            write(4)
    assert now() == [3, 2]
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_killed_inside_the_library_that_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes to a name of its own first; that goes too, before the next process writes."""

    def die(_: Any, path: Path, metadata: Any) -> None:
        (Path(path).parent / ".tmpAb12Cd").write_bytes(b"half")
        os._exit(9)

    path = tmp_path / "a.safetensors"
    write_tensors(path, TENSORS)
    with monkeypatch.context() as patched:
        patched.setattr("nediff.keeping.save_file", die)
        if (child := os.fork()) == 0:
            write_tensors(path, {})
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert list(tmp_path.rglob(".tmpAb12Cd"))
    with claimed(tmp_path):
        pass
    assert list(tree(tmp_path)) == ["a.safetensors"]
    assert read_tensors(path)[0].keys() == TENSORS.keys()


def test_who_may_read_a_run_may_read_its_weights(tmp_path: Path) -> None:
    path, text = tmp_path / "a.safetensors", tmp_path / "a.txt"
    before = os.umask(0o027)
    try:
        write_tensors(path, TENSORS)
        text.write_text("as any other file")
    finally:
        os.umask(before)
    assert path.stat().st_mode == text.stat().st_mode


def test_a_calibration_that_was_changed_is_refused(tmp_path: Path) -> None:
    save_correction(tmp_path, Correction(factor=1.5, floor=0.1))
    assert load_correction(tmp_path) == Correction(factor=1.5, floor=0.1)
    path = tmp_path / "calibration.json"
    path.write_text(path.read_text().replace("1.5", "1.7"))
    with pytest.raises(NediffError, match="is damaged"):
        load_correction(tmp_path)


# --- one process per folder -----------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from nediff.data import claimed, write_form
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_folder_is_claimed_by_one_process_and_free_when_it_dies(tmp_path: Path) -> None:
    data, out = float_folder(tmp_path / "data"), tmp_path / "out"
    command = [sys.executable, "-c", HOLD, str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(NediffError, match="Another nediff process is writing"), claimed(out):
            pass
        refused = nediff("train", data, "--sigma", SIGMA, "--steps", 1, "--out", out, *TINY)
        assert refused.code == 2
        assert "Another nediff process is writing to" in refused.err
        holder.send_signal(signal.SIGKILL)
    with claimed(out):
        assert (out / LOCK_FILE).exists()
        with claimed(out):  # again, by the same process
            pass
    assert not (out / LOCK_FILE).exists()


def test_a_claim_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), claimed(tmp_path / "a/b"):
        raise ValueError("no")
    assert not tree(tmp_path)
    (tmp_path / ".tmp-0123abcd-state.safetensors").write_bytes(b"half")
    (tmp_path / ".tmp-mine").write_bytes(b"not ours")
    with claimed(tmp_path):
        pass
    assert list(tree(tmp_path)) == [".tmp-mine"]


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """A run that was stopped one step before its end, its data, and what it should become."""
    sessions.warm_up()
    place, (data, _), expected = damage.interrupted(
        tmp_path_factory.mktemp("faults"), False, sessions.STEPS - 1
    )
    return place, data, expected


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("state/state.safetensors", "the state before"),
        ("state/rehearsal-1.safetensors", "this copy is used"),
        ("config.yaml", "this copy is used"),
        ("sigmas.csv", "this copy is used"),
        ("metrics.csv", ""),
        ("model.safetensors", ""),
    ],
)
def test_a_run_goes_on_without_a_file(
    stopped: tuple[Path, Path, Any], tmp_path: Path, name: str, told: str
) -> None:
    place, data, expected = stopped
    run = Path(shutil.copytree(place, tmp_path / "run"))
    content = bytearray((run / name).read_bytes())
    content[-3] ^= 2
    (run / name).write_bytes(bytes(content))
    outcome = succeeded("train", data, "--out", run, "--resume")
    assert ("Careful: " in outcome.err) == bool(told)
    assert told in outcome.err
    assert sessions.same(sessions.contents(run), expected)


def test_two_damaged_states_are_refused(stopped: tuple[Path, Path, Any], tmp_path: Path) -> None:
    place, data, _ = stopped
    run = Path(shutil.copytree(place, tmp_path / "run"))
    for name in ("state", "previous"):
        (run / f"state/{name}.safetensors").write_bytes(b"\0" * 1000)
    outcome = nediff("train", data, "--out", run, "--resume")
    assert outcome.code == 2
    assert "state.safetensors is corrupt" in outcome.err


def test_the_judge_of_the_campaign_notices_a_difference(
    stopped: tuple[Path, Path, Any],
) -> None:
    place, _, expected = stopped
    assert sessions.same(expected, expected)
    assert not sessions.same(sessions.contents(place), expected)


def test_kills_of_training(tmp_path: Path) -> None:
    sessions.warm_up()
    found = kills.train_kills(tmp_path, 6, 1)
    assert not found["problems"]
    assert found["kills"] == 6
    assert found["equal"] == found["runs"]
    assert found["leftovers"] == 0


def test_kills_of_restoring(tmp_path: Path) -> None:
    sessions.warm_up()
    found = kills.restore_kills(tmp_path, 4)
    assert not found["problems"]
    assert found["equal"] == found["runs"]
    assert found["files lost"] == found["leftovers"] == 0


def test_killed_between_two_outputs_of_a_file(
    stopped: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command finishes what is missing; another one does not overwrite."""
    place, data, _ = stopped
    command = ("restore", place, data, "--out", tmp_path / "out", "--sigma", SIGMA, "--samples", 2)

    def killed_before_the_second(form: Form, path: Path, images: list[Any]) -> None:
        if path.parent.name != "restored":
            os._exit(9)
        write_form(form, path, images)

    with monkeypatch.context() as patched:
        patched.setattr("nediff.cli.restore.write_form", killed_before_the_second)
        if (child := os.fork()) == 0:
            nediff(*command)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert (tmp_path / "out/restored/a0.tif").exists()
    other = nediff(*command, "--seed", 5)
    assert other.code == 2
    assert "exists already" in other.err
    succeeded(*command)
    succeeded("restore", *command[1:4], tmp_path / "again", *command[5:])
    files = {k: v for k, v in tree(tmp_path / "out").items() if ".nediff" not in k}
    assert files == {k: v for k, v in tree(tmp_path / "again").items() if ".nediff" not in k}
    assert not (tmp_path / "out/.nediff-unfinished").exists()


@pytest.mark.parametrize("moment", ["shutil.rmtree", "nediff.cli.ledger.Ledger.tidy"])
def test_killed_when_all_was_done(
    stopped: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The last file is written down as done, but what tells that it was begun is still there."""
    place, data, _ = stopped
    out, image = tmp_path / "out", sorted(data.iterdir())[0]
    command = ("restore", place, image, "--out", out, "--sigma", SIGMA)
    with monkeypatch.context() as patched:
        if (child := os.fork()) == 0:
            patched.setattr(moment, lambda *_, **__: os._exit(9))
            nediff(*command)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert (out / ".nediff-unfinished").exists()
    succeeded(*command)
    assert not sessions.leftovers(out)


def test_warnings_are_said_in_words(stopped: tuple[Path, Path, Any], tmp_path: Path) -> None:
    place, _, _ = stopped
    run = Path(shutil.copytree(place, tmp_path / "run"))
    (run / "config.yaml").unlink()
    from nediff.runs import load_config

    with pytest.warns(NediffWarning, match=r"config\.yaml is missing.*this copy is used"):
        load_config(run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_config(place)


def _tell_of_pickles() -> None:
    """In the fork: the interpreter itself says when anything is unpickled, by whomever."""

    def hear(event: str, found: tuple[object, ...]) -> None:
        if event == "pickle.find_class":
            print("INTRUDER", *found, flush=True)

    sys.addaudithook(hear)


def _unpickle_something() -> None:
    _tell_of_pickles()
    pickle.loads(pickle.dumps(Path("a")))


def test_nothing_is_unpickled_on_the_way(stopped: tuple[Path, Path, Any], tmp_path: Path) -> None:
    place, data, _ = stopped
    run, log = Path(shutil.copytree(place, tmp_path / "run")), tmp_path / "log"
    train = ("train", data, "--out", run, "--resume")
    restore = ("restore", run, data, "--out", tmp_path / "out", "--sigma", SIGMA, "--samples", 2)
    for command in (train, restore):
        ended = sessions.run(log, *command, patch=_tell_of_pickles)
        assert ended.code == 0, ended.said
        assert "INTRUDER" not in ended.said
    noticed = sessions.run(log, "--version", patch=_unpickle_something)
    assert "INTRUDER pathlib" in noticed.said


# --- fuzzing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(fuzz.WHOLE))
def test_readers_of_changed_files(tmp_path: Path, name: str) -> None:
    assert fuzz.fuzz_reader(tmp_path, name, 25, seed=1) >= 20


def test_changed_settings_and_command_lines(
    stopped: tuple[Path, Path, Any], tmp_path: Path
) -> None:
    place, data, _ = stopped
    run = Path(shutil.copytree(place, tmp_path / "run"))
    assert fuzz.fuzz_config(run, 40, seed=1)["config.yaml"] >= 50
    assert fuzz.fuzz_command_line(tmp_path, run, data, 40, seed=1)["command line"] >= 35


def test_results_of_processes_are_added_up() -> None:
    from benchmarks.faults.__main__ import added

    parts = [{"a": 1, "b": {"c": 2}, "d": ["x"]}, {"a": 3, "b": {"c": 1, "e": 1}, "d": []}]
    assert added(parts) == {"a": 4, "b": {"c": 3, "e": 1}, "d": ["x"]}
    assert json.dumps(added(parts))


def test_a_batch_of_one_waits_for_no_samples_of_its_own(
    stopped: tuple[Path, Path, Any],
) -> None:
    """It draws none, so a resumed run must not look for them."""
    from nediff.runs import load_config
    from nediff.training.loop import rehearsal_round

    config = load_config(stopped[0])
    last = config.training.steps - 1
    assert rehearsal_round(config, last) == 1
    one = config.training.model_copy(update={"batch": 1})
    assert rehearsal_round(config.model_copy(update={"training": one}), last) == 0
