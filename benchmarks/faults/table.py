"""The table of docs/reliability.md, from the JSON files of the campaign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
PAGE = Path(__file__).parents[2] / "docs/reliability.md"
HEADER = (
    "| fault | tried | went on to the end | equal, bit for bit | minutes |\n|---|---|---|---|---|"
)


def write(results: Path, page: Path = PAGE) -> None:
    """Put the rows of all parts that have been run between the two marks of the page."""
    parts = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    rows = [row for name, words in ROWS.items() if name in parts for row in words(parts[name])]
    text = page.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    body = "\n".join([BEGIN, HEADER, *rows, END])
    page.write_text(before + body + after, encoding="utf-8")


def _kills(found: dict[str, Any]) -> list[str]:
    how = f"{found['while saving']} while it saved, {found['real processes']} real processes"
    what = f"`nediff train` killed (SIGKILL; {how})"
    return [_row(what, f"{found['kills']} kills of {found['runs']} runs", found, found["runs"])]


def _restore(found: dict[str, Any]) -> list[str]:
    what = f"`nediff restore` killed ({found['while saving']} while it wrote)"
    tried = f"{found['kills']} kills of {found['runs']} commands, {found['files']} files"
    return [_row(what, tried, found, found["runs"])]


def _damage(found: dict[str, Any]) -> list[str]:
    what = "one file of a run truncated, bit-flipped, zeroed or deleted"
    count = found["files damaged"]
    return [_row(what, f"{count} files ({found['said']} had to be told)", found, count)]


def _disk(found: dict[str, Any]) -> list[str]:
    what = f"disk full, read-only or failing ({found['tmpfs']} real small disks)"
    tried = f"{found['cases']} cases, {found['one sentence']} ended in one sentence"
    return [_row(what, tried, found, found["cases"])]


def _fuzz(found: dict[str, Any]) -> list[str]:
    bad = len(found["problems"])
    what = "hostile files, settings and command lines (Hypothesis)"
    tried = f"{found['cases']} cases, {bad} with a traceback, a hang or half an output"
    return [f"| {what} | {tried} | | | {found['minutes']} |"]


def _row(what: str, tried: str, found: dict[str, Any], count: int) -> str:
    went, equal = found["continued to the end"], found["equal"]
    return f"| {what} | {tried} | {went} of {count} | {equal} of {count} | {found['minutes']} |"


ROWS = {"kills": _kills, "restore": _restore, "damage": _damage, "disk": _disk, "fuzz": _fuzz}
