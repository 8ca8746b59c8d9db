"""Copies of what is far away, in a folder on this machine that stays below a size."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from nediff.errors import NediffError

FOLDER_VARIABLE, SIZE_VARIABLE = "NEDIFF_CACHE", "NEDIFF_CACHE_GB"
DEFAULT_GB = 16.0
_SHRINK_TO = 0.9
_STALE = 3600.0
"""Seconds after which a half-written copy is one that nobody goes on with."""
_LOOK_EVERY = 0.05
"""After so much of the limit was added, the folder is looked at, since others add to it too."""


class Kept:
    """Files by name; those that were not used for longest are removed when they are too many.

    Any number of processes may share the folder. A file may be gone again by the time it is
    opened, and must then be asked for once more.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._added, self._lock = limit, threading.Lock()

    def get(self, name: str, size: int, fetch: Callable[[], bytes]) -> Path:
        """The path of a copy of ``size`` bytes, fetched unless it is there."""
        path = self.folder / name[:2] / name
        with suppress(OSError):
            if path.stat().st_size == size:
                os.utime(path)
                return path
        self._write(path, fetch())
        with self._lock:
            self._added += size
            due = self._added > _LOOK_EVERY * self.limit
            self._added = 0 if due else self._added
        if due:
            self._shrink(path)
        return path

    def _write(self, path: Path, content: bytes) -> None:
        temporary = path.with_name(f".tmp-{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            os.replace(temporary, path)
        except OSError as error:
            raise NediffError(
                f"There is no room for copies of the data in {self.folder} ({error.strerror}); "
                f"free some space, or name another folder in the variable {FOLDER_VARIABLE}."
            ) from error
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _shrink(self, newest: Path) -> None:
        """Remove the oldest, but not the one that is wanted now."""
        found = []
        for path in self.folder.glob("??/*"):
            with suppress(OSError):
                known = path.stat()
                half_written = path.name.startswith(".") and time.time() - known.st_mtime < _STALE
                if not half_written:
                    found.append((known.st_mtime_ns, known.st_size, path))
        total = sum(size for _, size, _ in found)
        if total <= self.limit:
            return
        for _, size, path in sorted(found):
            if total <= _SHRINK_TO * self.limit:
                return
            if path != newest:
                with suppress(OSError):
                    path.unlink()
                total -= size


def cache_folder() -> Path:
    """Where copies are kept: what NEDIFF_CACHE says, or the usual place for such."""
    if told := os.environ.get(FOLDER_VARIABLE):
        return Path(told).expanduser()
    usual = os.environ.get("XDG_CACHE_HOME")
    return (Path(usual) if usual else Path.home() / ".cache") / "nediff"


@cache
def kept_members(folder: Path) -> Kept:
    """The copies of images from shards."""
    told = os.environ.get(SIZE_VARIABLE, str(DEFAULT_GB))
    try:
        size = float(told)
    except ValueError:
        size = 0.0
    if not 0 < size < 1e9:
        raise NediffError(f"{SIZE_VARIABLE} must be a positive number of GB, not {told}.")
    return Kept(folder / "members", int(size * 2**30))
