"""Files that appear complete or not at all, and stay when the power fails."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nediff.errors import NediffError

_LEFTOVER = re.compile(r"\.(tmp|old)-[0-9a-f]{8}(-.*)?")
"""What a process that was killed in the middle of writing leaves behind."""


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the folder of ``path``, a file or folder; it replaces ``path``.

    The temporary name is hidden and ends as ``path`` does, since many writers choose the
    format by the ending. Whatever goes wrong, the temporary file is removed and an older
    ``path`` stays as it was; an ``OSError`` (disk full, read-only) becomes a ``NediffError``.
    """
    target = Path(path)
    temporary = target.parent / f".tmp-{secrets.token_hex(4)}-{target.name[-50:]}"
    with telling(target):
        try:
            lasting_folder(target.parent)
            yield temporary
            move(temporary, target)
        finally:
            _remove(temporary)


@contextmanager
def telling(target: Path) -> Iterator[None]:
    """An ``OSError`` while ``target`` is written becomes a sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise NediffError(
            f"Cannot write {target.name} in the folder {target.parent}: {reason}; free some space "
            "there or choose another folder."
        ) from error


def move(source: Path, target: Path) -> None:
    """Put a finished file or folder in the place of ``target``, on the same disk.

    Its contents are on the disk before it gets its name, and the name is before this returns.
    """
    for path in (source, *sorted(source.rglob("*"))) if source.is_dir() else (source,):
        sync(path)
    aside = target.parent / f".old-{secrets.token_hex(4)}"
    try:
        if source.is_dir() and target.is_dir():  # only an empty one could be replaced
            os.replace(target, aside)
        os.replace(source, target)
        sync(target.parent)
    finally:
        _remove(aside)


def lasting_folder(folder: Path) -> None:
    """Make a folder and its parents; their names are on the disk when this returns."""
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in made:
        sync(path.parent)


def sync(path: Path) -> None:
    """Wait until the contents of a file or folder are on the disk."""
    if path.is_dir() and os.name != "posix":  # only there can a folder be opened
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def clear_leftovers(folder: Path) -> None:
    """Remove what processes that were killed left half-written here or below.

    Only for who has claimed the folder: the files of one that is at work look the same.
    """
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if _LEFTOVER.fullmatch(name):
                _remove(Path(place) / name)
        folders[:] = [n for n in folders if not n.startswith(".") and not n.endswith(".zarr")]


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
