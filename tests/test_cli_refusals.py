"""Every bad input: one sentence, exit code 2, nothing half-written."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
import tifffile
import yaml
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from nediff import keeping
from nediff.cli.ledger import FINISHED
from nediff.cli.signals import handling, interrupt
from nediff.restorer import Restorer
from nediff.training import Trainer
from tests.command import SIGMA, TINY, Outcome, float_folder, nediff, noisy, succeeded, tree


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data` and a `run` trained on it for two steps."""
    folder = tmp_path_factory.mktemp("trained")
    float_folder(folder / "data")
    succeeded(
        "train", folder / "data", "--sigma", SIGMA, "--out", folder / "run", "--steps", 2, *TINY
    )
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return float_folder(tmp_path / "data")


@pytest.fixture
def run(tmp_path: Path, trained: Path) -> Path:
    return Path(shutil.copytree(trained / "run", tmp_path / "run"))


def assert_one_sentence(outcome: Outcome, match: str) -> None:
    """Exit code 2, and standard error ends in one line of ours that says it."""
    assert outcome.code == 2, outcome
    lines = outcome.err.splitlines()
    assert [line for line in lines if line.startswith("nediff: ")] == lines[-1:], outcome.err
    assert "Traceback" not in outcome.err
    assert re.search(match, lines[-1]), lines[-1]
    assert lines[-1].endswith((".", "?"))


def assert_refused(tmp_path: Path, match: str, *arguments: object) -> None:
    """The command is refused with that sentence and changes nothing."""
    before = tree(tmp_path)
    assert_one_sentence(nediff(*arguments), match)
    assert tree(tmp_path) == before


def assert_train_refused(tmp_path: Path, match: str, data: object, *options: object) -> None:
    sigma = () if "--sigma" in options or "--no-sigma" in options else ("--sigma", SIGMA)
    budget = () if "--steps" in options or "--minutes" in options else ("--steps", 2)
    rest = [o for o in options if o != "--no-sigma"]
    out = () if "--out" in options else ("--out", tmp_path / "out")
    assert_refused(tmp_path, match, "train", data, *sigma, *budget, *out, *TINY, *rest)


# --- data ---------------------------------------------------------------------------------------


def test_missing_and_empty_folder(tmp_path: Path) -> None:
    assert_train_refused(tmp_path, "nowhere does not exist", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert_train_refused(tmp_path, "empty has no images", tmp_path / "empty")
    assert_train_refused(tmp_path, "No image matches", tmp_path / "empty" / "*.png")


def png(folder: Path, name: str, side: int = 40, channels: int = 1) -> Path:
    random = np.random.default_rng(7)
    shape = (side, side) if channels == 1 else (side, side, channels)
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(imagecodecs.png_encode(random.integers(0, 256, shape).astype(np.uint8)))
    return path


def test_damaged_images(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for i in range(3):
        png(folder, f"{i}.png")
    whole = (folder / "1.png").read_bytes()
    (folder / "1.png").write_bytes(whole[: len(whole) // 2])
    assert_train_refused(tmp_path, r"1\.png cannot be read as PNG", folder)
    (folder / "1.png").write_text("only a text")
    assert_train_refused(tmp_path, r"1\.png cannot be read as PNG", folder)
    (folder / "1.png").write_bytes(b"")
    assert_train_refused(tmp_path, r"1\.png cannot be read as PNG", folder)


@pytest.mark.parametrize("name", ["text.tif", "text.jpg", "text.webp", "text.npy"])
def test_text_under_another_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("line\nafter\nline\n" * 40)
    assert_train_refused(tmp_path, rf"{name} cannot be read as", tmp_path / name)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("suffix", ["tif", "npy"])
def test_pixels_that_are_no_numbers(data: Path, tmp_path: Path, bad: float, suffix: str) -> None:
    image = noisy(9).astype(np.float32)
    image[3, 5] = bad
    path = data / f"bad.{suffix}"
    if suffix == "npy":
        np.save(path, image)
    else:
        tifffile.imwrite(path, image)
    assert_train_refused(
        tmp_path, rf"bad\.{suffix} has 1 pixel\(s\) that are NaN or infinite.*row 3", data
    )


def test_mixed_channels(tmp_path: Path) -> None:
    folder = png(tmp_path / "data", "grey.png").parent
    png(folder, "rgb.png", channels=3)
    assert_train_refused(tmp_path, r"grey\.png has 1 channel\(s\) but rgb\.png has 3", folder)


def test_image_smaller_than_the_crop(data: Path, tmp_path: Path) -> None:
    tifffile.imwrite(data / "small.tif", noisy(5, 20, 60).astype(np.float32))
    assert_train_refused(tmp_path, "smallest image is 20 pixels on a side.*crop of 24", data)


@pytest.mark.parametrize("sigma", [0, -0.1, "nan", "inf"])
def test_sigma_that_is_none(data: Path, tmp_path: Path, sigma: object) -> None:
    assert_train_refused(tmp_path, "must be a positive number", data, "--sigma", sigma)


def test_absurd_sigma(data: Path, tmp_path: Path) -> None:
    eight_bit = png(tmp_path / "8", "a.png").parent
    assert_train_refused(tmp_path, "larger than.*say --units data", eight_bit, "--sigma", 25)
    assert_train_refused(
        tmp_path, "cannot be larger than the total variation", data, "--sigma", 0.6
    )
    assert_train_refused(tmp_path, "practically no noise", data, "--sigma", 1e-9)
    assert_train_refused(
        tmp_path, "practically no noise", eight_bit, "--sigma", 1e-5, "--units", "data"
    )


def test_range_that_is_none(data: Path, tmp_path: Path) -> None:
    assert_train_refused(tmp_path, "is not a range", data, "--range", 1, 0)
    assert_train_refused(tmp_path, "is not a range", data, "--range", 0, "nan")


# --- options ------------------------------------------------------------------------------------


def test_contradicting_options(data: Path, tmp_path: Path) -> None:
    assert_train_refused(
        tmp_path, "--minutes or --steps, not both", data, "--minutes", 1, "--steps", 2
    )
    assert_train_refused(tmp_path, "How strong is the noise", data, "--no-sigma")
    assert_train_refused(tmp_path, "no recipe 'best' for denoising", data, "--recipe", "best")
    assert_train_refused(tmp_path, "needs clean images", data, "--recipe", "supervised")
    assert_train_refused(tmp_path, "--sigma 0.1 would be wrong", data, "--simulate", 0.2)
    assert_train_refused(
        tmp_path, "simulate must be a positive", data, "--simulate", 0, "--no-sigma"
    )
    assert_train_refused(
        tmp_path, "no homogeneous form", data, "--size", "paper", "--kind", "homogeneous"
    )
    for minutes in (0, -1, "nan", "inf"):
        assert_train_refused(tmp_path, "more than 0 minutes", data, "--minutes", minutes)


@pytest.mark.parametrize(
    "arguments",
    [
        ("trian",),
        ("train",),
        ("train", "data"),
        ("train", "data", "--out", "out", "--steps", "0"),
        ("train", "data", "--out", "out", "--steps", "many"),
        ("train", "data", "--out", "out", "--size", "huge"),
        ("train", "data", "--out", "out", "--seed", "99999999999999999999"),
        ("restore", "run", "data"),
        ("restore", "run", "data", "--out", "out", "--solver", "magic"),
        ("restore", "run", "data", "--out", "out", "--samples", "-1"),
        ("evaluate", "run"),
    ],
)
def test_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str]) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = nediff(*arguments)
    assert_one_sentence(outcome, r"(No such|Missing|Invalid value).*(Did you mean|--help)")
    assert len(outcome.err.splitlines()) == 1
    assert not tree(tmp_path)


# --- runs to train ------------------------------------------------------------------------------


def test_existing_run(data: Path, run: Path, tmp_path: Path) -> None:
    assert_train_refused(tmp_path, "already holds a run; add --resume", data, "--out", run)


def test_out_is_a_file(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert_train_refused(tmp_path, "is a file, not a folder", data, "--out", tmp_path / "file")
    assert_train_refused(
        tmp_path, "is a file, not a folder", data, "--out", tmp_path / "file", "--resume"
    )
    assert_train_refused(
        tmp_path, "Cannot make the folder", data, "--out", tmp_path / "file" / "run"
    )


@pytest.mark.parametrize("options", [(), ("--resume",)])
def test_a_run_without_its_configuration_is_not_taken_over(
    data: Path, run: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (run / "config.yaml").unlink()
    (run / "state/config.yaml").unlink()  # its copy
    assert_train_refused(tmp_path, "lost its config.yaml", data, "--out", run, *options)


def test_resuming_with_other_data(run: Path, tmp_path: Path) -> None:
    more = float_folder(tmp_path / "more", count=4)
    assert_train_refused(
        tmp_path, "other data .images: 3 then, 4 now", more, "--out", run, "--resume"
    )
    other = float_folder(tmp_path / "other")
    tifffile.imwrite(other / "a1.tif", noisy(77).astype(np.float32))
    assert_train_refused(
        tmp_path, "other data .standard deviation", other, "--out", run, "--resume"
    )
    colour = png(tmp_path / "colour", "a.png", channels=3).parent
    for name in ("b.png", "c.png"):
        shutil.copy(colour / "a.png", colour / name)
    assert_train_refused(
        tmp_path, "other data .channels: 1 then, 3 now", colour, "--out", run, "--resume"
    )


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--sigma", "0.05"), "begun with 0.1, not with --sigma 0.05"),
        (("--steps", "50"), "begun with 2, not with --steps 50"),
        (("--minutes", "5"), "begun without it, not with --minutes 5"),
        (("--seed", "3"), "begun with 0, not with --seed 3"),
        (("--recipe", "sure"), "begun with default, not with --recipe sure"),
        (("--kind", "standardised"), "begun with edm, not with --kind standardised"),
        (("--simulate", "0.1"), "begun without it, not with --simulate 0.1"),
        (("--range", "0", "2"), "begun with the intensity range 0 to 1"),
        (("--precision", "bf16"), "begun with fp32, not with --precision bf16"),
        (("--compile",), "begun without it, not with --compile;"),
        (("--sigma", "auto"), "begun with a noise level that was given, not with --sigma auto"),
        (("--sigma", "learn"), "that was given, not with --sigma learn"),
        (("--sigma", "correlated"), "that was given, not with --sigma correlated"),
        (("--size", "small"), "begun with tiny, not with --size small"),
        (("--crop", "40"), "begun with 24, not with --crop 40"),
    ],
)
def test_resuming_with_other_options(
    data: Path, run: Path, tmp_path: Path, options: tuple[str, ...], match: str
) -> None:
    assert_train_refused(tmp_path, match, data, "--out", run, "--resume", *options)


def test_damaged_state_is_not_resumed(data: Path, run: Path, tmp_path: Path) -> None:
    path = run / "state/state.safetensors"
    (run / "state/previous.safetensors").unlink()  # a run would go on from that
    whole, tensors = path.read_bytes(), load(path.read_bytes())
    path.write_bytes(whole[:-100])
    assert_train_refused(tmp_path, "state.safetensors is corrupt", data, "--out", run, "--resume")
    shutil.copy(run / "model.safetensors", path)
    assert_train_refused(tmp_path, "does not hold the state", data, "--out", run, "--resume")
    key = next(k for k in tensors if k.startswith("optimizer.momentum."))
    unchecked = {k: v for k, v in _metadata(whole).items() if k != keeping.CHECKSUM}
    save_file(tensors | {key: tensors[key].flatten()}, path, metadata=unchecked)
    assert_train_refused(tmp_path, "has shape", data, "--out", run, "--resume")


def _metadata(content: bytes) -> dict[str, str]:
    """Of a safetensors file, whose header is JSON after eight bytes of length."""
    length = int.from_bytes(content[:8], "little")
    notes = json.loads(content[8 : 8 + length])["__metadata__"][keeping.NOTES]
    found: dict[str, str] = json.loads(notes)
    return found


# --- runs to use --------------------------------------------------------------------------------


def restore(tmp_path: Path, match: str, run: Path, images: object, *options: object) -> None:
    out = () if "--out" in options else ("--out", tmp_path / "out")
    assert_refused(tmp_path, match, "restore", run, images, *out, *options)


def test_a_folder_that_is_no_run(data: Path, tmp_path: Path) -> None:
    restore(tmp_path, "no such folder", tmp_path / "nowhere", data)
    restore(tmp_path, "it has no config.yaml", data, data)
    assert_refused(tmp_path, "it has no config.yaml", "evaluate", data, data)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a: [1, 2", "is not valid YAML"),
        ("", "is not a valid run"),
        ("just words", "is not a valid run"),
        ("version: '1'\ntypo: 3\n", "is not a valid run"),
        (b"\xff\xfe\x00", "is damaged: it is no text"),
    ],
)
def test_corrupt_configuration(
    data: Path, run: Path, tmp_path: Path, text: str | bytes, match: str
) -> None:
    (run / "config.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    (run / "state/config.yaml").unlink()
    restore(tmp_path, rf"config\.yaml {match}", run, data)
    assert_train_refused(tmp_path, rf"config\.yaml {match}", data, "--out", run, "--resume")


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("data", "colour", "red"),
        ("data", "sigma", -1.0),
        ("network", "size", "huge"),
        ("training", "steps", "many"),
        ("data", "low", 2.0),
    ],
)
def test_invalid_configuration(
    data: Path, run: Path, tmp_path: Path, section: str, field: str, value: object
) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    config[section][field] = value
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    expected = ".*is not a range" if field == "low" else rf"{section}\.{field}: "
    restore(tmp_path, rf"config\.yaml is not a valid run: {expected}", run, data)


def test_corrupt_weights(data: Path, run: Path, tmp_path: Path) -> None:
    path = run / "model.safetensors"
    whole = path.read_bytes()
    path.unlink()
    restore(tmp_path, "model.safetensors is missing", run, data)
    for damaged in (whole[:-100], whole[:20], b"", b"{}" * 50, whole + b"x"):
        path.write_bytes(damaged)
        restore(tmp_path, "model.safetensors is corrupt", run, data)
    for position in (0, 7, 8, 12):
        flipped = bytearray(whole)
        flipped[position] ^= 0x40
        path.write_bytes(bytes(flipped))
        restore(tmp_path, "model.safetensors (is corrupt|does not fit)", run, data)


def test_weights_that_do_not_fit(data: Path, run: Path, tmp_path: Path) -> None:
    path = run / "model.safetensors"
    whole, tensors = path.read_bytes(), load(path.read_bytes())
    name = next(k for k, v in tensors.items() if v.ndim == 4)
    save_file(tensors | {name: tensors[name].flatten()}, path)
    restore(tmp_path, f"'{re.escape(name)}' has shape", run, data)
    save_file(tensors | {"extra": tensors[name].clone()}, path)
    restore(tmp_path, "does not fit the network of this run: 'extra' differs", run, data)
    save_file({k: v for k, v in tensors.items() if k != name}, path)
    restore(tmp_path, "does not fit the network of this run", run, data)
    save_file(tensors | {name: tensors[name] * np.nan}, path)
    restore(tmp_path, "holds values that are not finite", run, data)
    path.write_bytes(whole)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["network"]["size"] = "small"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    restore(tmp_path, "does not fit", run, data)


# --- restoring ----------------------------------------------------------------------------------


def test_images_that_cannot_be_restored(data: Path, run: Path, tmp_path: Path) -> None:
    restore(tmp_path, "does not exist", run, tmp_path / "nothing")
    colour = png(tmp_path / "colour", "a.png", channels=3).parent
    restore(tmp_path, r"a\.png has 3 channel\(s\); this run was trained on 1", run, colour)
    image = noisy(3).astype(np.float32)
    image[0, 0] = np.nan
    tifffile.imwrite(data / "a9.tif", image)
    restore(tmp_path, r"a9\.tif has 1 pixel\(s\) that are NaN", run, data)


def test_a_damaged_image_among_good_ones_stops_before_anything_is_written(
    run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    for i in range(3):
        png(folder, f"{i}.png")
    whole = (folder / "1.png").read_bytes()
    (folder / "1.png").write_bytes(whole[: len(whole) // 2])
    restore(tmp_path, r"1\.png cannot be read", run, folder, "--samples", 2)


def test_existing_outputs(data: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    succeeded("restore", run, data / "a1.tif", "--out", out)
    other = ("--sigma", SIGMA / 2)  # the same request would go on with the others
    restore(tmp_path, r"a1\.tif exists already; .*--overwrite", run, data, *other)
    succeeded("restore", run, data, "--out", out, "--overwrite")
    assert len(list((out / "restored").iterdir())) == 3
    match = "would replace the noisy one"
    restore(tmp_path, match, run, out / "restored", "--out", out, "--overwrite")
    (tmp_path / "file").write_text("x")
    restore(tmp_path, "is a file, not a folder", run, data, "--out", tmp_path / "file")


def test_two_inputs_for_one_output(data: Path, run: Path, tmp_path: Path) -> None:
    np.save(data / "a1.npy", noisy(4).astype(np.float32))
    restore(tmp_path, "would both be written to", run, data, "--samples", 1)
    succeeded("restore", run, data, "--out", tmp_path / "out")


# --- evaluating ---------------------------------------------------------------------------------


def test_evaluations_that_make_no_sense(data: Path, run: Path, tmp_path: Path) -> None:
    def evaluate(match: str, *options: object) -> None:
        assert_refused(
            tmp_path, match, "evaluate", run, data, "--json", tmp_path / "a.json", *options
        )

    evaluate("--clean or --simulate, not both", "--clean", data, "--simulate", SIGMA)
    evaluate("is another level", "--simulate", 0.05)
    fewer = float_folder(tmp_path / "fewer", count=2)
    evaluate("3 noisy images and 2 clean ones", "--clean", fewer)
    other = float_folder(tmp_path / "other", height=48)
    evaluate("44 × 40 pixels and its clean partner a0.tif is 44 × 48", "--clean", other)
    evaluate("nowhere does not exist", "--clean", tmp_path / "nowhere")
    colour = png(tmp_path / "colour", "a.png", channels=3).parent
    assert_refused(tmp_path, r"3 channel\(s\); this run", "evaluate", run, colour)
    assert_refused(tmp_path, "is a folder; give --json", "evaluate", run, data, "--json", tmp_path)


# --- letters ------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere such names cannot be made")
def test_names_that_are_no_text(data: Path, run: Path, tmp_path: Path) -> None:
    """As of an old disk: é in Latin-1."""
    strange = Path(shutil.copytree(data, tmp_path / "strange"))
    image = Path(os.fsdecode(bytes(strange) + b"/caf\xe90.tif"))
    (strange / "a0.tif").rename(image)
    match = r"caf\?0.tif is no text in UTF-8 .*; rename it"
    assert_train_refused(tmp_path, match, strange, "--out", tmp_path / "new", "--sigma", SIGMA)
    for command in ("restore", "evaluate"):
        out = ("--out", tmp_path / "out") if command == "restore" else ()
        assert_refused(tmp_path, match, command, run, image, *out)
    place = run.rename(tmp_path / image.stem)  # a folder of ours may be called so
    said = nediff("info", place, "--json", tmp_path / "said.json")
    assert said.code == 0, said.err
    assert json.loads((tmp_path / "said.json").read_text())["run"] == str(place)


def test_letters_that_the_terminal_has_not(run: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"}
    for options in ((), ("--json",)):
        command = [sys.executable, "-m", "nediff", "info", str(run), *options]
        done = subprocess.run(command, capture_output=True, env=environment)
        assert done.returncode == 0, done.stderr
        assert b"given" in done.stdout
    assert json.loads(done.stdout)["run"] == str(run)


# --- disks --------------------------------------------------------------------------------------


def files(folder: Path) -> dict[str, bytes]:
    """Contents by name, but for the list of what was restored."""
    found = tree(folder).items()
    return {k: content for k, content in found if content is not None and FINISHED not in k}


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_no_place_to_write(
    data: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def replace(source: object, target: object) -> None:
        raise OSError(number, os.strerror(number))

    before = files(tmp_path)
    monkeypatch.setattr(os, "replace", replace)
    reason = f"Cannot write .*{os.strerror(number)}"
    assert_one_sentence(nediff("restore", run, data, "--out", tmp_path / "out"), reason)
    assert files(tmp_path) == before
    arguments = ("train", data, "--sigma", SIGMA, "--steps", 2, "--out", tmp_path / "new", *TINY)
    assert_one_sentence(nediff(*arguments), reason)
    assert files(tmp_path) == before
    assert_one_sentence(nediff("evaluate", run, data, "--json", tmp_path / "a.json"), reason)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "error", [SafetensorError("Error while serializing: I/O error: full"), OSError(28, "full")]
)
def test_full_disk_while_saving_keeps_the_state_before(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    saves: list[Path] = []

    def save(tensors: object, path: Path, metadata: object = None) -> None:
        saves.append(path)
        # weights and state at step 10, samples for rehearsal, weights at step 20, then no more
        if len(saves) > 4:
            path.write_bytes(b"half")
            raise error
        save_file(tensors, path, metadata=metadata)

    monkeypatch.setattr(keeping, "save_file", save)
    run = tmp_path / "run"
    command = ("train", data, "--sigma", SIGMA, "--steps", 20, "--out", run, *TINY)
    assert_one_sentence(nediff(*command), r"Cannot write state\.safetensors .*full")
    assert not [name for name in files(tmp_path) if "tmp" in name]
    monkeypatch.undo()
    outcome = succeeded(*command, "--resume")
    assert "step 20:" in outcome.err
    assert "step 10:" not in outcome.err


def test_training_that_diverges_is_not_saved(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Trainer.step

    def diverging(self: Trainer, step: int) -> Tensor:
        loss = real(self, step)
        return loss if step < 10 else loss * float("nan")

    monkeypatch.setattr(Trainer, "step", diverging)
    command = ("train", data, "--sigma", SIGMA, "--steps", 20, "--out", tmp_path / "run", *TINY)
    assert_one_sentence(nediff(*command), "diverged at step 11")
    monkeypatch.undo()
    assert "step 20:" in succeeded(*command, "--resume").err


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A disk of so many bytes, where this user may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = f"size={request.param}"
    try:
        command = ["mount", "-t", "tmpfs", "-o", options, "nediff-test", str(folder)]
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def process(*arguments: object) -> Outcome:
    command = [sys.executable, "-m", "nediff", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("small_disk", ["12k", "100k", "600k"], indirect=True)
def test_disk_that_is_full_while_training(data: Path, small_disk: Path) -> None:
    run = small_disk / "run"
    outcome = process("train", data, "--sigma", SIGMA, "--steps", 2, "--out", run, *TINY)
    assert_one_sentence(outcome, "Cannot write|Cannot make|No space left")
    names = [name for name in files(small_disk) if "tensorboard" not in name]
    assert not [name for name in names if "tmp" in name or "state." in name]


@pytest.mark.parametrize("small_disk", ["16k"], indirect=True)
def test_disk_that_is_full_while_restoring(data: Path, run: Path, small_disk: Path) -> None:
    outcome = process("restore", run, data, "--out", small_disk / "out")
    assert_one_sentence(outcome, "Cannot write a1.tif in the folder .*No space left on device")
    assert list(files(small_disk)) == ["out/restored/a0.tif"]
    assert tifffile.imread(small_disk / "out/restored/a0.tif").shape == (40, 44)


# --- signals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_closed_terminal_is_heard_unless_nohup_says_otherwise(begun: signal.Handlers) -> None:
    before = signal.signal(signal.SIGHUP, begun)
    heard: list[int] = []
    try:
        with handling(lambda number, _: heard.append(number)):
            assert begun is signal.SIG_IGN or signal.getsignal(signal.SIGHUP) is not begun
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is begun
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == ([] if begun is signal.SIG_IGN else [signal.SIGHUP])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_restoring_between_whole_files(
    data: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    calls: list[int] = []
    true_restore = Restorer.restore

    def restore(self: Restorer, y: object, sigma: float | None = None) -> object:
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), number)
        return true_restore(self, y, sigma)  # type: ignore[type-var]

    monkeypatch.setattr(Restorer, "restore", restore)
    before = signal.getsignal(number)
    outcome = nediff("restore", run, data, "--out", tmp_path / "out")
    assert outcome.code == 128 + number
    last = outcome.err.splitlines()[-1]
    assert last.startswith("nediff: interrupted")
    assert last.endswith("written so far are whole, and the same command goes on.")
    assert list(files(tmp_path / "out")) == ["restored/a0.tif"]
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(
    ("command", "stopped_in", "words"),
    [
        (
            ("train", "DATA", "--sigma", SIGMA, "--out", "OUT"),
            "cli.train.plan_run",
            "nothing was written",
        ),
        (("diagnose", "DATA"), "cli.diagnose.diagnose", "nothing was written"),
        (("evaluate", "RUN", "DATA"), "cli.evaluate._judge", "nothing was written"),
        (("calibrate", "RUN", "DATA"), "cli.calibrate.calibrate", "nothing was changed"),
    ],
)
def test_an_interrupted_command_says_what_it_leaves(
    data: Path,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[object, ...],
    stopped_in: str,
    words: str,
) -> None:
    monkeypatch.setattr(f"nediff.{stopped_in}", lambda *_, **__: interrupt(signal.SIGINT, None))
    places = {"DATA": data, "RUN": run, "OUT": tmp_path / "out"}
    before = tree(tmp_path)
    outcome = nediff(*(places.get(str(word), word) for word in command))
    assert outcome.code == 130
    assert outcome.err.splitlines()[-1] == f"nediff: interrupted; {words}."
    assert tree(tmp_path) == before


def test_lines_are_not_wrapped_and_brackets_are_kept(data: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / ("[bold]" + "long name " * 12 + "[/nothing]")
    outcome = succeeded("restore", run, data, "--out", out)
    assert f"restored into {out}\n" in outcome.err
