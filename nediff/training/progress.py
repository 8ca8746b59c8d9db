"""A line that says how far `nediff.fit` is, where somebody watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from nediff.losses import decibels_in_words
from nediff.training.loop import Observer

EVERY = 0.2
"""Seconds between two writings."""


class ProgressLine:
    """Steps, time left and the newest estimate, written over and over in one line."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._started, self._first, self._written = time.monotonic(), -1, 0.0
        self._psnr, self._length = "", 0

    def on_step(self, step: int, steps: int) -> None:
        """Write, now and then and in the end."""
        now = time.monotonic()
        if self._first < 0:
            self._started, self._first = now, step
        if step < steps and now - self._written < EVERY:
            return
        self._written = now
        left = (now - self._started) / max(step - self._first, 1) * (steps - step)
        minutes, seconds = divmod(round(left), 60)
        self._write(f"training: {step} of {steps} steps, {minutes}:{seconds:02} left{self._psnr}")

    def on_validation(self, step: int, estimated_psnr: float, best: bool) -> None:
        """Shown from the next step on."""
        self._psnr = f", held-out ≈ {decibels_in_words(estimated_psnr)}"

    def on_spread(self, step: int, steps: int) -> None:
        """The last part."""
        self._write(f"learning how uncertain unmeasured pixels are: {step} of {steps} steps")

    def end(self) -> None:
        """Leave the line as it is."""
        if self._length:
            self.stream.write("\n")
            self.stream.flush()

    def _write(self, words: str) -> None:
        self.stream.write("\r" + words.ljust(self._length))
        self.stream.flush()
        self._length = len(words)


@contextmanager
def watching(observer: Observer | None) -> Iterator[Observer | None]:
    """Who is told; where nobody is, and standard error is a terminal, a line there."""
    if observer is not None or not sys.stderr.isatty():
        yield observer
        return
    line = ProgressLine(sys.stderr)
    try:
        yield line
    finally:
        line.end()
