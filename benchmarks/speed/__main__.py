"""How fast: training, time to quality, sampling, restoring, growth.

    NEDIFF_DATA=FOLDER python -m benchmarks.speed [steps quality sampling restoring growth]
    python -m benchmarks.speed --page

Writes docs/results/speed/*.json and docs/benchmarks.md. A part that was measured in this folder is
not measured again; remove it from runs/speed/measured to do so. All of it takes about two hours of
one otherwise quiet core. `make bench` installs the peers first: BM3D here, CAREamics into an
environment of its own (`.bench`).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.speed import page
from nediff.experiments.pieces import provenance, rounded, write_text

MEASURED = Path("runs/speed/measured")
"""What was measured in this folder, unlike what came with the repository."""


def _part(name: str, data: Path) -> dict[str, Any]:
    """The measurement; its modules are imported here, so that each part needs only its own."""
    from benchmarks.speed import growth, quality, restoring, sampling, steps

    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "steps": lambda: steps.run(data),
        "quality": lambda: quality.run(data),
        "sampling": lambda: sampling.run(data, quality.MODEL),
        "restoring": restoring.run,
        "growth": growth.run,
    }
    return parts[name]()


def run(name: str, data: Path) -> None:
    """One part, unless it was measured here; into the results and onto the page."""
    from benchmarks.speed.timing import machine

    kept = MEASURED / f"{name}.json"
    if not kept.is_file():
        print(f"measuring {name} ...", flush=True)
        result = _part(name, data)
        record = {"part": name, "machine": machine(), "made_by": provenance(), "result": result}
        write_text(kept, json.dumps(rounded(record), indent=1) + "\n")
    write_text(page.OUT / kept.name, kept.read_text(encoding="utf-8"))
    page.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*page.PARTS, []], default=[])
    parser.add_argument("--data", type=Path, default=os.environ.get("NEDIFF_DATA"))
    parser.add_argument("--page", action="store_true", help="only write the page")
    arguments = parser.parse_args()
    if arguments.page:
        return page.write()
    if arguments.data is None:
        parser.error("give the data folder with --data or NEDIFF_DATA")
    for name in arguments.parts or page.PARTS:
        run(name, arguments.data)
    return None


if __name__ == "__main__":
    main()
