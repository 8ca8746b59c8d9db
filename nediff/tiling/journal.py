"""What of a long piece of work is done, so that it can be gone on with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from nediff.processes import ALONE, Processes

Item = TypeVar("Item")


class Journal:
    """Counts units of work, in an order that is always the same.

    With a ``path`` the count is kept there: after an interruption, what was done is passed over.
    A unit must be one that may be done twice. Several ``processes`` share the units that are
    asked for together; none goes on before all of these are done.
    """

    def __init__(
        self,
        path: Path | None = None,
        report: Callable[[int], None] | None = None,
        processes: Processes = ALONE,
    ) -> None:
        self._path, self._report, self._seen = path, report, 0
        self._processes = processes
        self._done = _count(path) if path and path.exists() else 0

    def left(self, items: Iterable[Item]) -> Iterator[Item]:
        """Those of the next units that are still to do; each is done when the next is asked for."""
        processes = self._processes
        for number, item in enumerate(items):
            if self._seen >= self._done and number % processes.count == processes.number:
                yield item
                if not processes.several:
                    self._done = self._seen + 1
                    self._keep()
            self._seen += 1
            if self._report is not None:
                self._report(self._seen)
        if processes.several:
            processes.wait()
            if self._seen > self._done:
                self._done = self._seen
                self._keep()

    def _keep(self) -> None:
        if self._path is not None and self._processes.main:
            temporary = self._path.with_suffix(".tmp")
            temporary.write_text(str(self._done), encoding="ascii")
            os.replace(temporary, self._path)


def _count(path: Path) -> int:
    """Of what is done; nothing if the file is damaged."""
    text = path.read_bytes()[:32]
    return int(text) if text.isdigit() else 0
