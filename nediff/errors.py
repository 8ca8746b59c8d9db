"""What is meant for the user's eyes: the one exception, the one warning, what was meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class NediffError(Exception):
    """Bad input, said in one sentence: what was wrong, where, and what to do.

    The command line prints the message without a traceback and exits with code 2.
    """


class NediffWarning(UserWarning):
    """Something was wrong, and what was done about it; the command line prints the sentence."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """' Did you mean …?' with the choice that is most like ``word``; nothing if none is."""
    known = {choice.lower(): choice for choice in choices}
    close = get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return f" Did you mean {known[close[0]]}?" if close else ""


def did_you_mean_path(path: Path) -> str:
    """The same for a path that is not there: its first part that is not, among its neighbours."""
    missing = path
    while not missing.parent.exists() and missing.parent != missing:
        missing = missing.parent
    try:
        names = [entry.name for entry in missing.parent.iterdir()]
    except OSError:
        return ""
    rest = path.relative_to(missing)
    likely = get_close_matches(missing.name, names, n=3, cutoff=0.6)
    found = [missing.parent / name / rest for name in likely]
    there = next((candidate for candidate in found if candidate.exists()), None)
    return "" if there is None else f" Did you mean {there}?"
