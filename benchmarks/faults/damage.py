"""Damaged files, full and read-only disks: a run goes on from what is whole, or says why not."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.faults.sessions import (
    NEVER,
    STEPS,
    Deadline,
    End,
    begin,
    contents,
    make_data,
    run,
    same,
)

WAYS = ("truncated", "bit flipped", "zeroed", "deleted")
AT_RANDOM = ("truncated", "bit flipped")
"""Of these the place is drawn, so each file is damaged twice."""


def damage(path: Path, way: str, rng: random.Random) -> None:
    """In one of the WAYS."""
    content = path.read_bytes()
    if way == "deleted":
        path.unlink()
    elif way == "truncated":
        path.write_bytes(content[: rng.randrange(len(content))])
    elif way == "zeroed":
        path.write_bytes(bytes(len(content)))
    else:
        changed = bytearray(content)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(changed))


def interrupted(folder: Path, coloured: bool, steps: int) -> tuple[Path, tuple[object, ...], Any]:
    """A run stopped after so many steps, the command that goes on, and what it should become."""
    data, log = make_data(folder / "data"), folder / "log"
    reference = folder / "reference"
    ended = run(log, *begin(data, reference, coloured=coloured))
    assert ended.code == 0, ended.said
    stopped = folder / "stopped"
    command = begin(data, stopped, coloured=coloured)
    ended = run(log, *command, patch=partial(_stop_after, steps))
    assert ended.code == 128, ended.said
    return stopped, (data, log), contents(reference)


def _stop_after(steps: int) -> None:
    """In the fork: the training is asked to stop after so many steps."""
    from nediff.cli.signals import Stopper

    asked = iter(range(1, 10**6))
    Stopper.__call__ = lambda self: next(asked) >= steps  # type: ignore[method-assign]


def damaged_files(
    folder: Path, share: int = 0, of: int = 1, seed: int = 2, deadline: Deadline = NEVER
) -> dict[str, Any]:
    """Every file of two runs, in every way, one at a time; of these every ``of``-th case."""
    rng = random.Random(seed)
    counted = {"files damaged": 0, "continued to the end": 0, "equal": 0, "refused": 0}
    counted["said"] = 0
    by_kind: dict[str, dict[str, int]] = {}
    problems: list[str] = []
    for coloured in (False, True):
        base = folder / ("coloured" if coloured else "levels")
        stopped, (data, log), expected = interrupted(base, coloured, STEPS - 1)
        names = [str(p.relative_to(stopped)) for p in sorted(stopped.rglob("*")) if p.is_file()]
        cases = [(name, way) for name in names for way in (*WAYS, *AT_RANDOM)]
        rng.shuffle(cases)
        for number, (name, way) in enumerate(cases):
            seen = rng.getrandbits(32)
            if number % of != share or deadline.over() or not (stopped / name).stat().st_size:
                continue
            place = Path(shutil.copytree(stopped, base / "case"))
            damage(place / name, way, random.Random(seen))
            end = run(log, "train", data, "--out", place, "--resume")
            result = _judge(end, place, expected)
            kind = "tensorboard/…" if "tensorboard" in name else name
            row = by_kind.setdefault(kind, {"cases": 0, "equal": 0, "refused": 0})
            row["cases"] += 1
            counted["files damaged"] += 1
            counted["said"] += "Careful" in end.said
            for key in ("continued to the end", "equal", "refused"):
                counted[key] += result[key]
                if key in row:
                    row[key] += result[key]
            if not result["equal"]:
                problems.append(f"{name} {way}: {end.code} {end.said[-300:]}")
            shutil.rmtree(place)
    return counted | {"by kind": by_kind, "problems": problems}


def _judge(end: End, place: Path, expected: dict[str, Any]) -> dict[str, bool]:
    refused = end.code == 2 and "Traceback" not in end.said and "nediff: " in end.said
    equal = end.code == 0 and same(contents(place), expected)
    return {"continued to the end": end.code == 0, "equal": equal, "refused": refused}


# --- disks --------------------------------------------------------------------------------------


def _failing(name: str, number: int, at: int) -> None:
    """In the fork: the ``at``-th call of os.``name`` fails with this error, and all after it."""
    real = getattr(os, name)
    calls = iter(range(1, 10**9))

    def fail(*args: Any, **options: Any) -> Any:
        if next(calls) >= at:
            raise OSError(number, os.strerror(number))
        return real(*args, **options)

    setattr(os, name, fail)


def failing_disks(
    folder: Path, cases: int, seed: int = 3, deadline: Deadline = NEVER
) -> dict[str, Any]:
    """Errors of the system at its k-th call, and a small tmpfs where one can be mounted."""
    rng = random.Random(seed)
    stopped, (data, log), expected = interrupted(folder / "base", False, STEPS - 2)
    counted = {"cases": 0, "one sentence": 0, "continued to the end": 0, "equal": 0}
    problems: list[str] = []

    def attempt(place: Path, patch: Callable[[], None] | None, mend: Callable[[], None]) -> None:
        command = ("train", data, "--out", place, "--resume")
        failed = run(log, *command, patch=patch)
        sentence = [s for s in failed.said.splitlines() if s.startswith("nediff: ")]
        whole = failed.code == 2 and len(sentence) == 1 and "Traceback" not in failed.said
        mend()
        end = run(log, *command)
        result = _judge(end, place, expected)
        counted["cases"] += 1
        counted["one sentence"] += whole
        counted["continued to the end"] += result["continued to the end"]
        counted["equal"] += result["equal"]
        if not (whole and result["equal"]):
            problems.append(f"{failed.code} {failed.said[-300:]} then {end.code} {end.said[-200:]}")

    counted["tmpfs"] = _on_tmpfs(folder, stopped, attempt)
    for number in range(cases):
        if deadline.over():
            break
        place = Path(shutil.copytree(stopped, folder / f"case{number}"))
        call = ("fsync", "replace")[number % 2]
        error = rng.choice((errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT))
        attempt(place, partial(_failing, call, error, rng.randint(1, 20)), lambda: None)
        shutil.rmtree(place)
    return counted | {"problems": problems}


def _on_tmpfs(folder: Path, stopped: Path, attempt: Callable[..., None]) -> int:
    """Disks with a little room left, and one that is read-only; how many were tried."""
    tried = 0
    disk = folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], capture_output=True).returncode:
        return 0
    try:
        place = Path(shutil.copytree(stopped, disk / "run"))
        used = (os.statvfs(disk).f_blocks - os.statvfs(disk).f_bfree) * os.statvfs(disk).f_frsize
        for options in (*(f"size={(used >> 10) + k}k" for k in (8, 100, 400, 800)), "ro"):
            shutil.rmtree(place)
            shutil.copytree(stopped, place)
            remount = partial(_remount, disk)
            remount(options)
            attempt(place, None, partial(remount, "rw,size=1g"))
            tried += 1
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    return tried


def _remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)
