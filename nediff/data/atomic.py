"""Files that appear complete or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nediff.errors import NediffError


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the folder of ``path``; on success it replaces ``path``.

    The temporary name is hidden and ends as ``path`` does, since many writers choose the
    format by the ending. Whatever goes wrong, the temporary file is removed and an older
    ``path`` stays as it was; an ``OSError`` (disk full, read-only) becomes a ``NediffError``.
    """
    target = Path(path)
    folder = target.parent
    temporary = folder / f".tmp-{secrets.token_hex(4)}-{target.name[-50:]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield temporary
        _sync(temporary, os.O_RDWR)
        os.replace(temporary, target)
        if os.name == "posix":  # only there can a folder be opened, to make the new name last
            _sync(folder, os.O_RDONLY)
    except OSError as error:
        reason = error.strerror or str(error)
        raise NediffError(
            f"Cannot write {target.name} in the folder {folder}: {reason}; free some space there "
            "or choose another folder."
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _sync(path: Path, flags: int) -> None:
    """Wait until the contents of a file or folder are on the disk."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
