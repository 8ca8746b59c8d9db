"""Which files of a `nediff restore` are finished, so that the same command goes on where it was."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from nediff.data import ImageFile
from nediff.data.atomic import lasting_folder, sync, telling

FINISHED = ".nediff-restored"
UNFINISHED = ".nediff-unfinished"
_OF_A_RUN = (".yaml", ".safetensors", ".json")


def key_of(run: Path, *settings: object) -> str:
    """A short text that changes with the run and with what is asked of it."""
    digest = hashlib.blake2b(digest_size=12)
    for path in sorted(p for p in run.iterdir() if p.suffix in _OF_A_RUN):
        digest.update(path.name.encode() + path.read_bytes())
    for setting in settings:
        contents = setting.read_bytes() if isinstance(setting, Path) else repr(setting).encode()
        digest.update(b"\x1f" + contents)
    return digest.hexdigest()


def _mark(file: ImageFile) -> str:
    """What the folders of all that is unfinished of a file begin with, whatever was asked for."""
    return hashlib.blake2b(file.name.encode(), digest_size=6).hexdigest()


class Ledger:
    """Of one folder of outputs and one request, known by its ``key``.

    A line is added for each finished file: the key, and what the input was then.
    """

    def __init__(self, out: Path, key: str) -> None:
        self.out, self.key = out, key
        path = out / FINISHED
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        self._lines = set(text.splitlines())
        self._torn = bool(text) and not text.endswith("\n")

    def _line(self, file: ImageFile) -> str:
        digest = hashlib.blake2b(f"{self.key} {file.name}".encode(), digest_size=12)
        if file.place is not None:
            known = file.place.stat()
            digest.update(f"{known.st_size} {known.st_mtime_ns}".encode())
        return digest.hexdigest()

    def finished(self, file: ImageFile, outputs: Iterable[Path]) -> bool:
        """Whether this input was restored like this, and all that came of it is still there."""
        return self._line(file) in self._lines and all(path.exists() for path in outputs)

    def work(self, file: ImageFile) -> Path:
        """The folder of what is unfinished of a file: while it is there, outputs are our own."""
        return self.out / UNFINISHED / f"{_mark(file)}-{self._line(file)}"

    def begin(self, file: ImageFile) -> None:
        """Write down that outputs of this file are about to appear."""
        with telling(self.work(file)):
            lasting_folder(self.work(file))

    def finish(self, file: ImageFile) -> None:
        """Write down that it is done, and only then forget that it was begun."""
        line, path = self._line(file), self.out / FINISHED
        with suppress(OSError):  # on a full disk: it would be done again, no more
            with path.open("a", encoding="utf-8") as lines:
                lines.write("\n" * self._torn + line + "\n")
            self._torn = False
            sync(path)
            self._lines.add(line)
            shutil.rmtree(self.work(file), ignore_errors=True)
            self._give_up_others(file)

    def _give_up_others(self, file: ImageFile) -> None:
        """Remove what other requests, or this one of another input, began and did not finish.

        Its outputs have the names of those that are there now, so nobody can go on with it. Work
        on other files stays: theirs are still to come.
        """
        for work in (self.out / UNFINISHED).glob(f"{_mark(file)}-*"):
            shutil.rmtree(work, ignore_errors=True)

    def tidy(self) -> None:
        """Remove what finished files left behind, and the folder of what is unfinished, if empty.

        A command killed between writing down that a file is done and forgetting that it was begun
        leaves such a thing.
        """
        unfinished = self.out / UNFINISHED
        with suppress(OSError):  # there is something in it, or there is none
            for work in unfinished.iterdir():
                if work.name.rpartition("-")[2] in self._lines:
                    shutil.rmtree(work, ignore_errors=True)
            unfinished.rmdir()
