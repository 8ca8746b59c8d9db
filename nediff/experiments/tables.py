"""Tables as Markdown, with their rows as JSON beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nediff.experiments.pieces import Workspace, as_json, rounded, write_text


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def write_table(workspace: Workspace, name: str, text: str, rows: Sequence[dict[str, Any]]) -> Path:
    """tables/<name>.md and .json; returns the first."""
    folder = workspace.out / "tables"
    write_text(folder / f"{name}.json", as_json({"experiment": name, "rows": rounded(list(rows))}))
    return write_text(folder / f"{name}.md", f"# {name} ({workspace.scale.name})\n\n{text}")


def number(value: float | None, digits: int) -> str:
    """Rounded; empty where there is none."""
    return "" if value is None else f"{value:.{digits}f}"


def fid_heading(rows: Sequence[dict[str, Any]]) -> str:
    """FID or FID-768, whichever the rows have."""
    return " or ".join(dict.fromkeys(row["fid_name"] or "FID" for row in rows)) or "FID"


def fid_words(rows: Sequence[dict[str, Any]]) -> str:
    """What FID was measured on; empty without it."""
    known = [row for row in rows if row["fid_name"] is not None]
    if not known:
        return ""
    return (
        f" {fid_heading(known)} is of {known[0]['images']} images against the first "
        f"{known[0]['fid_reference']} clean training images; the floor is what the true validation "
        "images have."
    )
