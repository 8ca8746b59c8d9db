"""One process at a time in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nediff.data.atomic import clear_leftovers, telling
from nediff.errors import NediffError

LOCK_FILE = ".nediff-lock"

_claimed: set[Path] = set()
"""By this process; who claims a folder again inside a claim has it already."""


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Have the folder to ourselves, or say that somebody else writes there.

    The system lets the lock go when the process ends, however it ends. What an earlier process
    left half-written is removed; so are, at the end, the lock and folders that stayed empty.
    Of the processes of one distributed run the first one claims for all.
    """
    place = folder.absolute()
    if place in _claimed or int(os.environ.get("RANK") or 0) > 0:
        yield
        return
    made = [p for p in (place, *place.parents) if not p.exists()]
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise NediffError(f"Cannot make the folder {folder}: {reason}.") from error
    try:
        with _locked(place):
            clear_leftovers(place)
            yield
    finally:
        for path in made:
            with suppress(OSError):  # not empty, and so to be kept
                path.rmdir()


def is_claimed(folder: Path) -> bool:
    """Whether a process has the folder to itself just now."""
    from filelock import FileLock, Timeout

    path = folder / LOCK_FILE
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False  # left behind by a process that was killed
    except (Timeout, OSError):
        return True


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    path = place / LOCK_FILE
    lock = FileLock(path, timeout=0.2, poll_interval=0.02)
    with telling(path):
        try:
            lock.acquire()
        except Timeout as error:
            raise NediffError(
                f"Another nediff process is writing to {place}; wait until it is done, or choose "
                "another folder with --out."
            ) from error
    _claimed.add(place)
    try:
        yield
    finally:
        _claimed.discard(place)
        with suppress(OSError):  # while we hold it: who opened it meanwhile sees that it is gone
            path.unlink()
        lock.release()
