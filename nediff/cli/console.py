"""Progress bars and words on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
results = Console(highlight=False)
"""What a command was asked for goes to standard output, everything else to standard error."""


def say(text: str, where: Console = console) -> None:
    """A line as it is: no wrapping in the middle, and brackets in file names are no markup."""
    where.print(text, markup=False, soft_wrap=True)


def bar() -> Progress:
    """A progress bar with count, rate and time left; on no terminal it stays quiet."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", justify="left", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=False,
        disable=not console.is_terminal,
    )


@contextmanager
def counting(description: str) -> Iterator[Callable[[int, int], None]]:
    """A callback (done, total) that draws a bar."""
    with bar() as progress:
        task = progress.add_task(description, total=None, note="")

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield report
