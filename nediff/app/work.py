"""A piece of work in a thread of its own, which can be watched and cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from nediff.errors import NediffError

Result = TypeVar("Result")


class Cancelled(NediffError):
    """The user asked to stop."""

    def __init__(self) -> None:
        super().__init__("Cancelled.")


@dataclass(frozen=True)
class Update(Generic[Result]):
    """How far it is; ``result`` is what there is so far, and all of it once ``done``."""

    share: float
    words: str
    result: Result | None = None
    done: bool = False


class Work(Generic[Result]):
    """Runs ``task(self)`` once `start` is called, so that who can cancel it knows it by then.

    The task calls `report` as often as it can; that is where it is stopped.
    """

    def __init__(self, task: Callable[[Work[Result]], Result]) -> None:
        self._stop, self._changed = threading.Event(), threading.Condition()
        self._update: Update[Result] = Update(0.0, "starting")
        self._number, self._error = 0, None
        self.kept: Result | None = None
        """The last result that was reported, which stays when the work is cancelled."""
        self._thread = threading.Thread(target=self._run, args=(task,), daemon=True)

    _error: BaseException | None

    def start(self) -> Work[Result]:
        """Begin; cancelled before, it ends at its first report."""
        self._thread.start()
        return self

    def _run(self, task: Callable[[Work[Result]], Result]) -> None:
        try:
            result = task(self)
            self._show(Update(1.0, "done", result, done=True))
        except BaseException as error:  # handed to who watches
            self._error = error
            self._show(Update(self._update.share, "stopped", done=True))

    def _show(self, update: Update[Result]) -> None:
        with self._changed:
            self._update, self._number = update, self._number + 1
            self._changed.notify_all()

    def report(self, share: float, words: str, result: Result | None = None) -> None:
        """Called by the task; raises `Cancelled` if that was asked for, but keeps the result."""
        if result is not None:
            self.kept = result
        if self._stop.is_set():
            raise Cancelled
        self._show(Update(share, words, result))

    def cancel(self) -> None:
        """Stop at the next report."""
        self._stop.set()

    @property
    def share(self) -> float:
        """How far it is, or was when it ended."""
        return self._update.share

    def wait(self) -> None:
        """Until it has ended."""
        self._thread.join()

    def updates(self) -> Iterator[Update[Result]]:
        """The newest state whenever it has changed, the last of them ``done``; raises its error."""
        seen = -1
        while True:
            with self._changed:
                while self._number == seen:
                    self._changed.wait()
                seen, update = self._number, self._update
            if update.done and self._error is not None:
                raise self._error
            yield update
            if update.done:
                return
