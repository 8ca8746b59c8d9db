"""What does it cost not to know the noise level?

    NEDIFF_DATA=FOLDER python -m benchmarks.unknown_level            # all that is missing
    python -m benchmarks.unknown_level --table

FOLDER holds `cats64` and `aerial64` with `train/` and `val/`, `bsd400_gray` and `bsd68_gray`. The
same network is trained for the same steps on the same noisy images three times: told the true σ,
the σ of `--sigma auto`, and that of `--sigma learn`. Each restores other images, noisy alike, with
the σ that it was told. Nothing else differs, and the noise and the crops drawn are the same, so the
difference in PSNR is what the error in σ costs. A finished piece is kept and not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from nediff.data import Measurements, open_measurements
from nediff.evaluation.metrics import psnr
from nediff.experiments.pieces import as_json, provenance, rounded, write_text

SETS = {
    "cats64": ("cats64/train", "cats64/val"),
    "bsd400_gray": ("bsd400_gray", "bsd68_gray"),
    "aerial64": ("aerial64/train", "aerial64/val"),
}
GREY = ("aerial64",)
"""Grey, stored as three colours."""
LEVELS = (0.03, 0.075, 0.2)
WAYS = ("known", "auto", "learn")
TRAIN, TEST, STEPS, SEED = 300, 48, 300, 3
OUT = Path("docs/results/noise/unknown")


def clean_images(data: Path, name: str, folder: str, count: int) -> Measurements:
    """So many clean images in [0, 1], of one channel where they are grey."""
    found = open_measurements(sorted((data / folder).iterdir())[:count], range=(0, 255))
    if name not in GREY:
        return found
    first = np.stack([found.image(i)[0] for i in range(len(found))])
    return open_measurements(first, axes="NHW", range=(0, 1))


def told(way: str, noisy: Measurements, sigma: float) -> float:
    """The σ that the training is told."""
    from benchmarks.noise_learned import learned
    from nediff.noise import estimate_level
    from nediff.problem import Problem

    if way == "auto":
        return estimate_level(noisy).sigma.value
    if way == "learn":
        return float(learned(noisy, Problem.denoising(sigma, noisy.channels))[0]["sigma"])
    return sigma


def piece(data: Path, name: str, sigma: float) -> dict[str, Any]:
    """The PSNR of every test image by each way."""
    import torch

    from nediff.training import fit

    torch.set_num_threads(1)
    train, test = SETS[name]
    noisy = clean_images(data, name, train, TRAIN).simulate(sigma, SEED)
    truth = clean_images(data, name, test, TEST)
    measured = truth.simulate(sigma, SEED + 1)
    started = time.process_time()
    ways: dict[str, Any] = {}
    for way in WAYS:
        level = told(way, noisy, sigma)
        restorer = fit(noisy, level, steps=STEPS, seed=SEED)
        images = range(len(truth))
        each = [psnr(restorer.restore(measured.image(i)), truth.image(i)) for i in images]
        ways[way] = {"sigma": level, "psnr": each}
    return {
        "set": name,
        "sigma": sigma,
        "train_images": len(noisy),
        "test_images": len(truth),
        "steps": STEPS,
        "ways": ways,
        "cpu_seconds": time.process_time() - started,
        "made_by": provenance(),
    }


def lost(found: dict[str, Any], way: str) -> tuple[float, float]:
    """The mean loss of PSNR against the known σ, dB, and its standard error over the images."""
    known, other = (np.asarray(found["ways"][w]["psnr"]) for w in ("known", way))
    difference = known - other
    return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))


def table() -> str:
    """Markdown."""
    lines = [
        "# What it costs not to know σ",
        "",
        "    NEDIFF_DATA=FOLDER python -m benchmarks.unknown_level",
        "",
        f"PSNR in dB of {TEST} images after {STEPS} steps of the same training with the true σ, "
        "and how much is lost with the σ that `auto` and `learn` find (± standard error over the "
        "images; negative: gained). In brackets how far off that σ is. One seed.",
        "",
        "| images | σ | known σ | lost by auto | lost by learn |",
        "|---|---|---|---|---|",
    ]
    for name in SETS:
        for sigma in LEVELS:
            path = piece_path(name, sigma)
            if not path.exists():
                continue
            found = json.loads(path.read_text())
            cells = [name, f"{sigma:g}", f"{np.mean(found['ways']['known']['psnr']):.2f}"]
            for way in WAYS[1:]:
                mean, error = lost(found, way)
                off = 100 * (found["ways"][way]["sigma"] / sigma - 1)
                cells.append(f"{mean:+.3f} ± {error:.3f} ({off:+.1f} %)")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def piece_path(name: str, sigma: float) -> Path:
    return OUT / f"{name}-{sigma:g}.json"


def main() -> None:
    """The pieces that are missing, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    data = Path(os.environ.get("NEDIFF_DATA", "data"))
    for name in SETS:
        for sigma in LEVELS:
            path = piece_path(name, sigma)
            if not options.table and not path.exists():
                write_text(path, as_json(rounded(piece(data, name, sigma))))
                print(path, flush=True)
    write_text(OUT / "README.md", table())


if __name__ == "__main__":
    main()
