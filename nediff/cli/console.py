"""Progress bars, words on the terminal, and JSON for programs."""

from __future__ import annotations

import io
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

console = Console(stderr=True, highlight=False)
warnings = Console(stderr=True, highlight=False)
"""Like it, but heard with --quiet too."""
results = Console(highlight=False)
"""What a command was asked for goes to standard output, everything else to standard error."""

WARNING = "Careful:"
"""How a sentence begins that --quiet does not silence."""
STANDARD_OUTPUT = Path("-")


_hushed = False


def hush() -> None:
    """Say nothing any more, whatever is asked for later: of several processes, one speaks."""
    global _hushed
    _hushed = console.quiet = warnings.quiet = results.quiet = True


def say(text: str, where: Console = console) -> None:
    """A line as it is: no wrapping in the middle, and brackets in file names are no markup."""
    if where is console and text.startswith(WARNING):
        where = warnings
    where.print(text, markup=False, soft_wrap=True)


def be_quiet(asked: bool) -> bool:
    """--quiet: no progress and no remarks; results, warnings and errors are still said."""
    console.quiet = asked or _hushed
    return asked


def prefer_json(place: Path | None) -> Path | None:
    """--json to standard output takes the place of words there."""
    results.quiet = place == STANDARD_OUTPUT or _hushed
    return place


def write_json(value: Any, place: Path | None) -> None:
    """The result for programs, where it was asked for: a file, whole or not at all, or ``-``."""
    if place is None:
        return
    if place == STANDARD_OUTPUT:
        sys.stdout.write(_json_text(value, sys.stdout.encoding or "utf-8"))
        return
    from nediff.data import atomic_path

    with atomic_path(place) as temporary:
        temporary.write_text(_json_text(value, "utf-8"), encoding="utf-8")


def _json_text(value: Any, encoding: str) -> str:
    """Letters that the encoding has not, or bytes of a path that are no text, as JSON escapes."""
    text = json.dumps(_finite(value), indent=2, ensure_ascii=False) + "\n"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = json.dumps(_finite(value), indent=2) + "\n"
    return text


def show_anything() -> None:
    """Letters that a terminal or a pipe has not are shown as question marks, and stop nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def refuse_json_folder(place: Path | None) -> None:
    """Before any work: the file of --json must be none that is a folder."""
    from nediff.errors import NediffError

    if place is not None and place.is_dir():
        raise NediffError(f"{place} is a folder; give --json the name of a file.")


def refuse_page_folder(place: Path | None) -> None:
    """The same of --html."""
    from nediff.errors import NediffError

    if place is not None and place.is_dir():
        raise NediffError(f"{place} is a folder; give --html the name of a file.")


def _finite(value: Any) -> Any:
    """JSON has no NaN: null instead."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def bar() -> Progress:
    """A progress bar with count, rate and time left; on no terminal it stays quiet."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", justify="left", markup=False),
        TimeElapsedColumn(),
        TextColumn("· left"),
        TimeRemainingColumn(),
        console=console,
        transient=False,
        disable=console.quiet or not console.is_terminal,
    )


PULSE = 30.0
"""Seconds between two lines of long work where there is no terminal to draw a bar on."""


class Pulse:
    """Says how far work is, now and then, in a file or a pipe: silence looks like a hang."""

    def __init__(self, what: str) -> None:
        self.what, self.said = what, time.monotonic()

    def __call__(self, done: float, total: float) -> None:
        """Called as often as one likes."""
        if console.is_terminal or time.monotonic() - self.said < PULSE:
            return
        self.said = time.monotonic()
        say(f"{self.what}: {done:.4g} of {total:g}")


@contextmanager
def counting(description: str) -> Iterator[Callable[[int, int], None]]:
    """A callback (done, total) that draws a bar."""
    with bar() as progress:
        task, pulse = progress.add_task(description, total=None, note=""), Pulse(description)

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)
            pulse(done, total)

        yield report
