"""Ctrl-C, SIGTERM and a closed terminal: who hears them, and for how long."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from nediff.processes import launched

Handler = Callable[[int, FrameType | None], None]


WHOLE = "the files written so far are whole"
NOTHING = "nothing was written"
_left = WHOLE


def leave(words: str) -> None:
    """What to say from now on of what a command leaves behind if it is stopped at once."""
    global _left
    _left = words


def left() -> str:
    """The words that hold now."""
    return _left


class Interrupted(BaseException):
    """Raised by a signal, so that files half-written are removed on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """The handler that stops at once."""
    raise Interrupted(number)


@contextmanager
def handling(handler: Handler) -> Iterator[None]:
    """Let ``handler`` hear SIGINT, SIGTERM and, where it exists, SIGHUP in this block.

    A SIGHUP that is ignored stays so: `nohup` asks to go on when the terminal is closed.
    """
    kinds = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        kinds.append(signal.SIGHUP)
    before = [signal.signal(kind, handler) for kind in kinds]
    try:
        yield
    finally:
        for kind, old in zip(kinds, before, strict=True):
            signal.signal(kind, old)


AGAIN = 2.0
"""Seconds. What comes sooner is the same signal once more: of Ctrl-C both the terminal and
torchrun tell the processes that torchrun started."""


class Stopper:
    """Asks the training loop to stop after the step at hand; a second signal does not wait."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._heard = 0.0

    def __call__(self) -> bool:
        return self.signal is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal; the second stops at once."""
        if self.signal is not None:
            if launched() == 1 or time.monotonic() - self._heard > AGAIN:
                interrupt(number, frame)
            return
        self.signal, self._heard = number, time.monotonic()
