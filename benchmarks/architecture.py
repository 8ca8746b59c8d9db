"""Which U-Net learns most per minute on a CPU?

    NEDIFF_DATA=FOLDER python -m benchmarks.architecture [--minutes 4]

Trains each candidate with the default recipe on `bsd400_gray` for the same minutes of one core
(steps from rates measured side by side) and writes the PSNR on squares of `bsd68_gray` to
docs/results/architecture. Two candidates run at a time; about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.denoising import (
    LEVELS,
    PSNR_SIDE,
    SIGMA,
    central_squares,
    config_of,
    open_training,
    provenance,
)

OUT = Path("docs/results/architecture")
CANDIDATES: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    # name: (channels of each level, residual blocks of each level, pixels folded by the stem)
    "small": ((16, 32, 64), (2, 2, 2), 1),
    "fewer blocks, wider below": ((16, 48, 96), (1, 2, 1), 1),
    "two levels, wide": ((32, 64), (1, 2), 1),
    "half-resolution stem": ((32, 64, 96), (2, 2, 2), 2),
    "one block above, wider below": ((16, 48, 96), (1, 2, 2), 1),
    "half-resolution stem, two wide levels": ((48, 96), (2, 3), 2),
    "half as wide again": ((24, 48, 96), (1, 1, 2), 1),
}


def use(name: str) -> None:
    """Let `small` mean this candidate in this process."""
    import torch

    from nediff.networks import SIZES, UNetSize

    torch.set_num_threads(1)
    SIZES["small"] = UNetSize(*CANDIDATES[name])


def measure_rates(data: Path, rounds: int = 8) -> dict[str, float]:
    """Seconds per step of each candidate, interleaved in one process."""
    from nediff.training.fitting import make_trainer

    noisy, trainers = open_training(data), {}
    for i in range(len(noisy)):  # decoded images and their noise are kept after the first use
        noisy.image(i)
    for name in CANDIDATES:
        use(name)
        trainers[name] = make_trainer(config_of("default", data, 1000), noisy, None)
    seconds: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    for round_ in range(rounds):
        for name, trainer in trainers.items():
            started = time.process_time()
            for step in range(4):
                trainer.step(4 * round_ + step)
            seconds[name].append((time.process_time() - started) / 4)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


def run_piece(name: str, data: Path, steps: int, minutes: float) -> None:
    """Train and judge one candidate."""
    from nediff.evaluation import evaluate_with_truth
    from nediff.networks import count_parameters
    from nediff.training.fitting import run_training

    use(name)
    restorer, _ = run_training(config_of("default", data, steps), open_training(data), None)
    clean, noisy = central_squares(data, PSNR_SIDE, every=3)
    found = evaluate_with_truth(restorer, noisy, clean, samples=0, lower_levels=LEVELS)
    piece = {
        "name": name,
        "candidate": CANDIDATES[name],
        "parameters": count_parameters(restorer.denoiser),
        "steps": steps,
        "minutes": minutes,
        "levels": found.to_dict()["levels"],
        "images": found.images,
        **provenance(),
    }
    _path(name).parent.mkdir(parents=True, exist_ok=True)
    _path(name).write_text(json.dumps(piece, indent=1) + "\n", encoding="utf-8")


def _path(name: str) -> Path:
    return OUT / "pieces" / f"{name.replace(' ', '-').replace(',', '')}.json"


def write_table() -> None:
    pieces = [json.loads(_path(n).read_text()) for n in CANDIDATES if _path(n).exists()]
    sigmas = " | ".join(f"{level['sigma']:g}" for level in pieces[0]["levels"])
    lines = [
        "# Which U-Net learns most per minute on a CPU?",
        "",
        f"The default recipe on `bsd400_gray` (σ_n = {SIGMA}), {pieces[0]['minutes']:g} minutes of "
        f"one core each; PSNR in dB on {pieces[0]['images']} squares of `bsd68_gray`.",
        "",
        "Made by `python -m benchmarks.architecture`; every number is in `pieces/`.",
        "",
        f"| network | channels, blocks, stem | parameters | steps | {sigmas} |",
        "|---|---|---|---|" + "---|" * len(pieces[0]["levels"]),
    ]
    for piece in pieces:
        psnr = " | ".join(f"{level['psnr']:.2f}" for level in piece["levels"])
        channels, blocks, stem = piece["candidate"]
        shape = f"{'/'.join(map(str, channels))}, {'/'.join(map(str, blocks))}, {stem}"
        count = f"{piece['parameters'] / 1e3:.0f} k"
        lines.append(f"| {piece['name']} | {shape} | {count} | {piece['steps']} | {psnr} |")
    (OUT / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def run_all(data: Path, minutes: float) -> None:
    rates: dict[str, Any] = measure_rates(data)
    waiting, running = [n for n in CANDIDATES if not _path(n).exists()], []
    while waiting or running:
        while waiting and len(running) < 2:
            name = waiting.pop(0)
            steps = int(60 * minutes / rates[name])
            command = [sys.executable, "-m", "benchmarks.architecture", "--piece", name]
            command += ["--steps", str(steps), "--minutes", str(minutes), "--data", str(data)]
            running.append(subprocess.Popen(command))
        time.sleep(1)
        running = [process for process in running if process.poll() is None]
    write_table()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("NEDIFF_DATA"))
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--piece", choices=list(CANDIDATES), help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("give the data folder with --data or NEDIFF_DATA")
    if arguments.piece:
        return run_piece(arguments.piece, arguments.data, arguments.steps, arguments.minutes)
    return run_all(arguments.data, arguments.minutes)


if __name__ == "__main__":
    main()
