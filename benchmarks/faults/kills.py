"""SIGKILL at random moments of training and restoring; then the same command goes on."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from benchmarks.faults import sessions
from benchmarks.faults.sessions import (
    NEVER,
    Deadline,
    Session,
    begin,
    contents,
    leftovers,
    make_data,
    run,
    same,
)


def train_kills(
    folder: Path, kills: int, real: int, seed: int = 0, deadline: Deadline = NEVER
) -> dict[str, Any]:
    """So many kills in all, ``real`` of them of processes of their own.

    Half of the forks are killed at any moment, half while they write their state.
    """
    rng = random.Random(seed)
    data, log = make_data(folder / "data"), folder / "log"
    reference = folder / "reference"
    ended = run(log, *begin(data, reference))
    assert ended.code == 0, ended.said
    expected, pace = contents(reference), float(_seconds(reference)) / sessions.STEPS
    counted = {"kills": 0, "real processes": 0, "while saving": 0, "runs": 0}
    counted |= {"continued to the end": 0, "equal": 0, "states lost": 0, "leftovers": 0}
    problems: list[str] = []
    while counted["kills"] < kills and not deadline.over():
        place = folder / f"run{counted['runs']}"
        command = begin(data, place)
        counted["runs"] += 1
        for _ in range(rng.randint(8, 16)):
            if counted["kills"] >= kills or deadline.over():
                break
            left = kills - counted["kills"]
            fork = counted["real processes"] >= real or rng.random() > real / max(left, 1)
            session = Session(log, *command, fork=fork)
            _strike(session, rng, pace, log)
            end = session.end()
            if end.code == -9:
                counted["kills"] += 1
                counted["real processes"] += not fork
                counted["while saving"] += end.while_saving
            elif end.code != 0:
                problems.append(f"{end.code}: {end.said[-300:]}")
        last = run(log, *command)
        counted["continued to the end"] += last.code == 0
        counted["states lost"] += "Careful" in last.said
        if last.code == 0:
            counted["equal"] += same(contents(place), expected)
            counted["leftovers"] += len(leftovers(place))
            problems += [f"left behind: {name}" for name in leftovers(place)]
        else:
            problems.append(f"{last.code}: {last.said[-300:]}")
    return counted | {"problems": problems}


def _seconds(run_folder: Path) -> str:
    """That the training took, on the machine as busy as it is."""
    return (run_folder / "metrics.csv").read_text().splitlines()[-1].split(",")[1]


def _strike(session: Session, rng: random.Random, pace: float, log: Path) -> None:
    """Kill it: while it saves, or at any moment of a step; some even before the first.

    Of a real process little is seen from outside, so its time is counted from its first words.
    """
    if session._process is not None:
        session.wait_for(lambda: "training 'tiny'" in log.read_text(errors="replace"))
        time.sleep(rng.uniform(0, 4 * pace))
    elif rng.random() < 0.5:
        number = 1
        session.wait_for(lambda: session.steps >= number)
        session.wait_for(lambda: session.saving)
        time.sleep(rng.uniform(0, 0.3 * pace) * rng.random())
    else:
        number = rng.randint(0, 1)
        session.wait_for(lambda: session.steps >= number)
        time.sleep(rng.uniform(0, pace))
    if session.alive():
        session.kill()


def restore_kills(
    folder: Path, kills: int, seed: int = 1, deadline: Deadline = NEVER
) -> dict[str, Any]:
    """Of `nediff restore`, with images restored whole and in parts."""
    rng = random.Random(seed)
    data, log = make_data(folder / "data"), folder / "log"
    trained = folder / "run"
    command = begin(data, trained, steps=4)
    assert run(log, *command).code == 0
    images = folder / "images"
    images.mkdir()
    for i in range(3):
        tifffile.imwrite(images / f"small{i}.tif", sessions.picture(i))
    np.save(images / "array.npy", sessions.picture(7, 150, 140))
    tifffile.imwrite(images / "large.tif", sessions.picture(8, 140, 150))

    def restore(out: Path) -> tuple[object, ...]:
        options = ("--samples", 2, "--steps", 3, "--sigma", sessions.SIGMA, "--tile", 64)
        return ("restore", trained, images, "--out", out, *options)

    started = time.monotonic()
    ended = run(log, *restore(folder / "reference"), patch=_large_from)
    pace, expected = (time.monotonic() - started) / 8, _files(folder / "reference")
    assert ended.code == 0, ended.said
    counted = {"kills": 0, "while saving": 0, "runs": 0, "continued to the end": 0, "equal": 0}
    counted |= {"files": 0, "files lost": 0, "leftovers": 0}
    problems: list[str] = []
    while counted["kills"] < kills and not deadline.over():
        out = folder / f"out{counted['runs']}"
        counted["runs"] += 1
        for _ in range(rng.randint(4, 9)):
            if counted["kills"] >= kills or deadline.over():
                break
            session = Session(log, *restore(out), patch=_large_from)
            _strike(session, rng, pace, log)
            end = session.end()
            if end.code == -9:
                counted["kills"] += 1
                counted["while saving"] += end.while_saving
            elif end.code != 0:
                problems.append(f"{end.code}: {end.said[-300:]}")
        last = run(log, *restore(out), patch=_large_from)
        found = _files(out)
        counted["continued to the end"] += last.code == 0
        counted["equal"] += found == expected
        counted["files"] += len(expected)
        counted["files lost"] += sum(found.get(name) != value for name, value in expected.items())
        counted["leftovers"] += len(leftovers(out))
        problems += [f"left behind: {name}" for name in leftovers(out)]
        if last.code != 0:
            problems.append(f"{last.code}: {last.said[-300:]}")
    return counted | {"problems": problems}


def _large_from() -> None:
    """In the fork: images of more than 10000 pixels are restored in parts."""
    import nediff.restorer

    nediff.restorer.TILED_FROM = 10_000


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and not p.name.startswith(".")
    }
