"""Does memory grow? Training and sampling in turn for an hour: `python -m benchmarks.soak`.

Writes docs/results/reliability/soak.json and docs/images/soak.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
JSON, FIGURE = ROOT / "docs/results/reliability/soak.json", ROOT / "docs/images/soak.svg"


def resident() -> float:
    """Memory of this process now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


class Watch:
    """Resident memory by time, and what was going on."""

    def __init__(self) -> None:
        self.started, self.points = time.monotonic(), list[tuple[float, float, str]]()

    def note(self, what: str) -> None:
        """At most one point each second."""
        minutes = (time.monotonic() - self.started) / 60
        if not self.points or minutes - self.points[-1][0] > 1 / 60:
            self.points.append((round(minutes, 3), round(resident(), 1), what))

    def on_step(self, step: int, steps: int) -> None:
        self.note("training")

    def on_validation(self, step: int, estimated_psnr: float, best: bool) -> None:
        pass

    def on_spread(self, step: int, steps: int) -> None:
        pass


def soak(minutes: float, watch: Watch, folder: Path) -> None:
    """Rounds of a training of its own and samples from it, until the time is over.

    Each round is written down when it ends, so who stops the soak keeps what there is.
    """
    import nediff

    y, x = np.mgrid[0:64, 0:64] / 10.0
    clean = np.stack([0.5 + 0.3 * np.sin(x + i) * np.cos(y - i) for i in range(8)])
    rounds = 0
    while (time.monotonic() - watch.started) / 60 < minutes:
        noisy = clean + 0.1 * np.random.default_rng(rounds).standard_normal(clean.shape)
        data = nediff.open_measurements(noisy.astype(np.float32), axes="NHW", range=(0, 1))
        out = folder / str(rounds % 3)
        _remove(out)
        restorer = nediff.fit(data, 0.1, steps=30, size="tiny", out=out, observer=watch)
        restorer = nediff.load(out)
        for i in range(len(data)):
            restorer.summarise(data[i], n=4, seed=rounds)
            watch.note("sampling")
        rounds += 1
        write(watch, rounds)


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def growth(points: list[tuple[float, float, str]]) -> float:
    """MB per hour of a line through the second half."""
    half = points[len(points) // 2 :]
    minutes, memory = np.array([(m, r) for m, r, _ in half]).T
    return float(np.polyfit(minutes / 60, memory, 1)[0])


def write(watch: Watch, rounds: int) -> None:
    """What was seen so far."""
    found = {
        "minutes": round((time.monotonic() - watch.started) / 60, 1),
        "cpu_minutes": round(time.process_time() / 60, 1),
        "rounds": rounds,
        "cores": os.cpu_count(),
        "growth_mb_per_hour": round(growth(watch.points), 1),
        "points": watch.points,
    }
    JSON.parent.mkdir(parents=True, exist_ok=True)
    JSON.write_text(json.dumps(found) + "\n")


def draw(found: dict[str, Any]) -> None:
    """Resident memory over time."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    minutes, memory, _ = zip(*found["points"], strict=True)
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(minutes, memory, color="#2a6f97", linewidth=1)
    axes.set_ylim(0, 1.15 * max(memory))
    axes.set_xlabel("minutes of training and sampling in turn")
    axes.set_ylabel("resident memory (MB)")
    axes.spines[["top", "right"]].set_visible(False)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "nediff"}):
        figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    """Soak, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    minutes = parser.parse_args().minutes
    import torch

    torch.set_num_threads(1)
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        soak(minutes, watch, Path(folder))
    found = json.loads(JSON.read_text())
    draw(found)
    print({k: v for k, v in found.items() if k != "points"})


if __name__ == "__main__":
    main()
