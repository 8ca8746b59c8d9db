"""The fault campaign: `python -m benchmarks.faults` (`make faults`).

Each part leaves a JSON file in docs/results/reliability; the table of docs/reliability.md is made
from those (`--part table`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.faults import damage, kills, sessions
from benchmarks.faults.sessions import Deadline

RESULTS = Path(__file__).parents[2] / "docs/results/reliability"
PARTS = ("kills", "restore", "damage", "disk", "fuzz")
Work = Callable[[Path, int], dict[str, Any]]


def works(part: str, jobs: int, scale: float, deadline: Deadline) -> Work:
    """What each of so many processes does for a part; it gets a folder and its number."""

    def count(whole: int) -> int:
        return -(-round(whole * scale) // jobs)

    def fuzzed(folder: Path, number: int) -> dict[str, Any]:
        from benchmarks.faults import fuzz

        return fuzz.campaign(folder, count(4000), number, deadline)

    return {
        "kills": lambda folder, k: kills.train_kills(folder, count(200), count(20), k, deadline),
        "restore": lambda folder, k: kills.restore_kills(folder, count(50), 100 + k, deadline),
        "damage": lambda folder, k: damage.damaged_files(folder, k, jobs, 2, deadline),
        "disk": lambda folder, k: damage.failing_disks(folder, count(24), 300 + k, deadline),
        "fuzz": fuzzed,
    }[part]


def added(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Numbers are summed up, lists joined."""
    total: dict[str, Any] = {}
    for result in results:
        for key, value in result.items():
            if isinstance(value, dict):
                total[key] = added([total.get(key, {}), value])
            else:
                total[key] = total[key] + value if key in total else value
    return total


def in_processes(work: Work, jobs: int) -> dict[str, Any]:
    """The sum of what so many forks of this process found."""
    with tempfile.TemporaryDirectory() as name:
        folder, children = Path(name), []
        for number in range(jobs):
            place = folder / str(number)
            place.mkdir()
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    found = work(place, number)
                    (folder / f"{number}.json").write_text(json.dumps(found))
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            raise SystemExit(f"A process of the campaign ended with {codes}.")
        return added([json.loads((folder / f"{k}.json").read_text()) for k in range(jobs)])


def main() -> None:
    """One part, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=(*PARTS, "table", "all"), default="all")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of cases")
    parser.add_argument("--minutes", type=float, default=20.0, help="most, for each part")
    arguments = parser.parse_args()
    sessions.warm_up()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for part in PARTS if arguments.part == "all" else (arguments.part,):
        if part == "table":
            continue
        started = time.monotonic()
        deadline = sessions.Deadline(arguments.minutes)
        work = works(part, arguments.jobs, arguments.scale, deadline)
        found = in_processes(work, arguments.jobs)
        found["minutes"] = round((time.monotonic() - started) / 60, 1)
        found["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, {arguments.jobs} jobs"
        (RESULTS / f"{part}.json").write_text(
            json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        )
        print(part, json.dumps(found, indent=1, ensure_ascii=False), flush=True)
    from benchmarks.faults import table

    table.write(RESULTS)


if __name__ == "__main__":
    main()
