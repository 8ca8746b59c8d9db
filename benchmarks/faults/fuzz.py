"""Hypothesis against the readers, the configuration and the command line.

Every case must end in images, or in one sentence: no other exception, no hang, no memory beyond a
bound, nothing half-written.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import h5py
import imagecodecs
import numpy as np
import tifffile
import yaml
import zarr
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st

from benchmarks.faults import sessions
from benchmarks.faults.sessions import NEVER, Deadline
from nediff.data import list_files, read_plain, scan
from nediff.errors import NediffError

SECONDS, WAITING = 30, 900
"""Of work, or of the clock (the machine may be busy), after which a case is taken to hang."""
MEMORY = 4 * 2**30
"""Of address space that a case may take, beyond what the process has."""

Reader = Callable[[Path], None]


class Hang(BaseException):
    """A case that took too long."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Little memory and time."""

    def late(*_: object) -> None:
        raise Hang

    before = [signal.signal(kind, late) for kind in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(WAITING)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for kind, old in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(kind, old)


# --- files ---------------------------------------------------------------------------------------

GREY = (np.arange(24 * 20).reshape(24, 20) % 251).astype(np.uint8)


def _hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        made = file.create_dataset("data", data=GREY, chunks=(8, 8), compression="gzip")
        made.attrs["axes"] = "YX"


def _zarr(path: Path) -> None:
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    made = group.create_array("0", shape=GREY.shape, chunks=(12, 12), dtype=GREY.dtype)
    made[...] = GREY


WHOLE: dict[str, Callable[[Path], None]] = {
    "a.png": lambda path: path.write_bytes(imagecodecs.png_encode(GREY)) and None,
    "a.tif": lambda path: tifffile.imwrite(path, GREY),
    "packed.tif": lambda path: tifffile.imwrite(path, GREY, compression="zlib"),
    "a.npy": lambda path: np.save(path, GREY),
    "a.jpg": lambda path: path.write_bytes(imagecodecs.jpeg_encode(GREY)) and None,
    "a.npz": lambda path: np.savez_compressed(path, a=GREY),
    "a.h5": _hdf5,
    "a.zarr": _zarr,
}
"""One of each, to be changed."""


def read_everything(path: Path) -> None:
    """As `nediff train` and `restore` do; a mask or a kernel too."""
    with contextlib.suppress(NediffError):
        files = list_files(path)
        scan(files)
        files[0].read(0)
    if path.is_file():
        with contextlib.suppress(NediffError):
            read_plain(path)


changes = st.lists(
    st.tuples(
        st.sampled_from(("flip", "cut", "insert", "zero", "number")),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=6,
)


def changed(content: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    """The contents of a file after some accidents, or the work of somebody who knows it."""
    out = bytearray(content)
    for kind, where, value in edits:
        at = int(where * max(len(out), 1))
        if kind == "flip" and out:
            out[at] ^= value[0] or 1
        elif kind == "cut":
            del out[at:]
        elif kind == "insert":
            out[at:at] = value
        elif kind == "zero":
            out[at : at + 64] = bytes(len(out[at : at + 64]))
        else:  # the largest number there is, where a size may be
            out[at : at + 4] = b"\xff\xff\xff\x7f"
    return bytes(out)


def change_file(place: Path, edits: list[tuple[str, float, bytes]], which: float) -> None:
    """One file, or one of a Zarr folder; their metadata more often than their chunks."""
    path = place
    if place.is_dir():
        inner = sorted(p for p in place.rglob("*") if p.is_file())
        wordy = [p for p in inner if p.name.startswith(".z")]
        inner += 3 * wordy
        path = inner[int(which * len(inner))]
    path.write_bytes(changed(path.read_bytes(), edits))


def fuzz_readers(folder: Path, cases: int, seed: int) -> Counter[str]:
    """So many cases of each kind of file."""
    count: Counter[str] = Counter()
    for name in WHOLE:
        count[f"reader {name}"] += fuzz_reader(folder, name, cases, seed)
    return count


def fuzz_reader(folder: Path, name: str, cases: int, seed: int) -> int:
    """Of one kind."""
    whole, place = folder / "whole" / name, folder / "case" / name
    whole.parent.mkdir(exist_ok=True)
    if not whole.exists():
        WHOLE[name](whole)
    done = []

    @with_seed(seed)
    @settings(**_settings(cases))
    @given(edits=changes, which=st.floats(0, 1, exclude_max=True))
    def attempt(edits: list[tuple[str, float, bytes]], which: float) -> None:
        shutil.rmtree(place.parent, ignore_errors=True)
        place.parent.mkdir()
        shutil.copytree(whole, place) if whole.is_dir() else shutil.copy(whole, place)
        change_file(place, edits, which)
        with bounded():
            read_everything(place)
        done.append(name)

    attempt()
    return len(done)


# --- configuration -------------------------------------------------------------------------------

odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=12),
    st.lists(st.integers(-3, 9), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
    st.sampled_from((10**9, 10**12, -1, 0, 1e308, "../../etc/passwd", "inf", "physics", "mri")),
)
texts = st.one_of(
    st.text(max_size=200),
    st.sampled_from(
        (
            "!!python/object/apply:os.system ['echo in']",
            "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]",
            "[" * 5000,
            "{" * 5000,
            "a: " + "9" * 5000,
            "a: 2001-99-99",
            "a: 1e999999999",
            "a: !!binary zz",
            "? " * 1000,
        )
    ),
)


def fuzz_config(run: Path, cases: int, seed: int) -> Counter[str]:
    """One setting of config.yaml changed, or the whole text; the run is then loaded."""
    import nediff

    count: Counter[str] = Counter()
    text = (run / "config.yaml").read_text()
    good = yaml.safe_load(text)
    places = [
        (part, key) for part, value in good.items() if isinstance(value, dict) for key in value
    ]

    def load() -> None:
        with bounded(), contextlib.suppress(NediffError):
            nediff.load(run)

    @with_seed(seed)
    @settings(**_settings(cases))
    @given(place=st.sampled_from(places), value=odd)
    def setting(place: tuple[str, str], value: object) -> None:
        changed_config = json.loads(json.dumps(good))
        changed_config[place[0]][place[1]] = value
        (run / "config.yaml").write_text(yaml.safe_dump(changed_config), encoding="utf-8")
        load()
        count["config.yaml"] += 1

    @with_seed(seed)
    @settings(**_settings(cases // 2))
    @given(content=texts)
    def whole(content: str) -> None:
        (run / "config.yaml").write_bytes(content.encode("utf-8", "surrogatepass"))
        load()
        count["config.yaml"] += 1

    spare = run / "state/config.yaml"
    kept = spare.read_bytes() if spare.is_file() else None
    spare.unlink(missing_ok=True)
    try:
        setting()
        whole()
    finally:
        (run / "config.yaml").write_text(text)
        if kept is not None:
            spare.write_bytes(kept)
    return count


# --- the command line ----------------------------------------------------------------------------

OPTIONS = (
    *("--sigma", "--units", "--steps", "--minutes", "--recipe", "--size", "--kind", "--crop"),
    *("--batch", "--seed", "--simulate", "--gain", "--read-noise", "--offset", "--axes", "--tile"),
    *("--operator", "--mask", "--mask-fraction", "--pattern", "--kernel", "--factor", "--samples"),
    *("--solver", "--json", "--clean", "--resume", "--overwrite", "--group", "--ei", "--help"),
)
words = st.one_of(
    st.sampled_from(("0.1", "-1", "nan", "inf", "1e400", "0", "", "auto", "photons", "NHW", "..")),
    st.sampled_from(("inpainting", "blur", "mri", "default", "tiny", "99999999999999999999", "é")),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10),
)
lines = st.tuples(
    st.sampled_from(("train", "restore", "evaluate", "diagnose", "calibrate", "reproduce", "no")),
    st.lists(st.tuples(st.sampled_from(OPTIONS), words), max_size=4),
)


def fuzz_command_line(folder: Path, run: Path, data: Path, cases: int, seed: int) -> Counter[str]:
    """Any options with any values; the work itself, of networks, is left out."""
    from nediff.cli import main

    count: Counter[str] = Counter()

    @with_seed(seed)
    @settings(**_settings(cases))
    @given(line=lines)
    def attempt(line: tuple[str, list[tuple[str, str]]]) -> None:
        command, options = line
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        argv = ["nediff", command]
        argv += [str(data)] if command in ("train", "diagnose") else [str(run), str(data)]
        if command == "reproduce":
            argv = ["nediff", command, "--plan"]
        argv += [word for option in options for word in option]
        if command in ("train", "restore", "reproduce"):
            argv += ["--out", str(out)]
        code, said = quietly(main.main, argv)
        assert code in (0, 1, 2, 128), (argv, code, said)
        assert "Traceback" not in said, (argv, said)
        if code == 2 and out.is_dir():  # refused: nothing half-written
            assert not list(out.iterdir()), (argv, said, list(out.iterdir()))
        count["command line"] += 1

    with patch("nediff.cli.train.train_with_bar", lambda *_, **__: 0), _no_networks():
        attempt()
    return count


_WORK = (
    "nediff.cli.restore._restore_file",
    "nediff.cli.evaluate.measure",
    "nediff.cli.calibrate.calibrate",
    "nediff.cli.learn._run_with_bar",
    "nediff.training.fitting.steps_within",
    "nediff.cli.diagnose.diagnose",
)
"""Where networks begin to work."""


def _no_networks() -> Any:
    """Where the work would begin, it ends."""

    def work(*_: object, **__: object) -> None:
        raise SystemExit(0)

    with contextlib.ExitStack() as stack:
        for name in _WORK:
            stack.enter_context(patch(name, work))
        return stack.pop_all()  # all of them, or none


def quietly(main: Callable[[], None], argv: list[str]) -> tuple[int, str]:
    """The exit code, and what was said."""
    said, code = io.StringIO(), 0
    with (
        bounded(),
        patch.object(sys, "argv", argv),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        try:
            main()
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    return code, said.getvalue()


def _settings(cases: int) -> dict[str, Any]:
    return {
        "max_examples": max(cases, 1),
        "deadline": None,
        "database": None,
        "phases": (Phase.generate,),
        "suppress_health_check": list(HealthCheck),
    }


def campaign(folder: Path, cases: int, seed: int, deadline: Deadline = NEVER) -> dict[str, Any]:
    """So many cases in all, over all kinds; what fails is told with its first lines."""
    data = sessions.make_data(folder / "data")
    run = folder / "run"
    command = sessions.begin(data, run, steps=2)
    ended = sessions.run(folder / "log", *command)
    assert ended.code == 0, ended.said
    each, per_round = -(-cases // (len(WHOLE) + 4)), 25
    counted: Counter[str] = Counter()
    problems: list[str] = []
    parts: list[Callable[[int], Counter[str]]] = [
        lambda k: fuzz_readers(folder, per_round, k),
        lambda k: fuzz_config(run, 2 * per_round, k),
        lambda k: fuzz_command_line(folder, run, data, per_round, k),
    ]
    started = time.monotonic()
    for number in range(-(-each // per_round)):  # in rounds, so that all parts get their time
        for part in parts:
            if deadline.over():
                break
            try:
                counted += part(1000 * seed + number)
            except BaseException as error:
                frames = traceback.extract_tb(error.__traceback__)[:-9:-1]
                where = " < ".join(frame.name for frame in frames)
                problems.append(f"{type(error).__name__}: {str(error)[:600]} in {where}")
    seconds = round(time.monotonic() - started)
    return {"cases": sum(counted.values()), **counted, "seconds": seconds, "problems": problems}
