"""Is the noise better learned than estimated?

    NEDIFF_DATA=FOLDER python -m benchmarks.noise_learned

Adds white noise of known strength to photographs, and writes the errors of `--sigma auto`, of
`--sigma learn`, and of the bound that UNSURE alone gives, to docs/results/noise/learned.json and
learned.md. One seed, 120 steps of 8 crops each; about ten minutes of one busy core.
"""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nediff.data import Measurements, atomic_path, open_measurements
from nediff.noise import estimate_level
from nediff.problem import Problem, random_mask
from nediff.training.noise import NoiseLearner, NoisePlan, first_guess, learning_problem

OUT = Path("docs/results/noise")
FOLDERS = {"cats64": "cats64/val", "bsd400_gray": "bsd400_gray", "aerial64": "aerial64/val"}
GREY = ("aerial64",)
LEVELS = (0.03, 0.075, 0.2)
IMAGES, STEPS, CROP, SEED = 100, 120, 40, 2
MEASURED = 0.7
"""The share of the pixels that the mask of the last row measures."""


def images_of(name: str) -> Measurements:
    """Clean images in [0, 1]."""
    folder = Path(os.environ["NEDIFF_DATA"]) / FOLDERS[name]
    images = open_measurements(sorted(folder.iterdir())[:IMAGES], range=(0, 255))
    if name not in GREY:
        return images
    # grey, stored as three colours: noise is to be added to one of them
    first = np.stack([images.image(i)[0] for i in range(len(images))])
    return open_measurements(first, axes="NHW", range=(0, 1))


def learned(noisy: Measurements, problem: Problem) -> tuple[dict[str, Any], float]:
    """What is found, and how long it took."""
    started = time.process_time()
    problem = learning_problem(problem, noisy.channels)
    guess = first_guess(noisy, problem)
    plan = NoisePlan(STEPS, CROP, SEED, noisy.fingerprint, guess, (0.0, 1.0))
    learner = NoiseLearner(plan, noisy, problem)
    learner.run(None, lambda: False, None)
    found = learner.found()
    record = {
        "sigma": found.sigma.value,
        "claimed_error": found.sigma.total_error,
        "unsure": found.unsure,
        "bound": found.bound,
        "channels": [s.value for s in found.channels.sigmas],
        "said_correlated": found.correlated,
        "said_different_channels": found.channels.varies,
        "multiplier_correlation": float((found.lags[:, 1, 0] / found.lags[:, 1, 1]).mean()),
    }
    return record, time.process_time() - started


def row(name: str, sigma: float) -> dict[str, Any]:
    """Both of one noisy set."""
    noisy = images_of(name).simulate(sigma, SEED)
    started = time.process_time()
    auto = estimate_level(noisy).sigma
    seconds = time.process_time() - started
    found, spent = learned(noisy, Problem.denoising(sigma, noisy.channels))
    return {
        "set": name,
        "sigma": sigma,
        "auto": {"sigma": auto.value, "claimed_error": auto.total_error},
        "learn": found,
        "cpu_seconds": {"auto": round(seconds, 1), "learn": round(spent, 1)},
    }


def masked_row(name: str, sigma: float) -> dict[str, Any]:
    """Through a random mask, where there is no `auto`."""
    clean = images_of(name)
    clean = clean.select([i for i in range(len(clean)) if clean.size(i) == clean.size(0)])
    mask = random_mask(MEASURED, clean.size(0), SEED)
    problem = Problem.inpainting(mask, sigma, clean.channels)
    found, spent = learned(clean.simulate(sigma, SEED, problem), problem)
    title = f"{name}, {MEASURED:.0%} measured"
    return {"set": title, "sigma": sigma, "learn": found, "cpu_seconds": {"learn": round(spent, 1)}}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "Error of σ in percent (in brackets the error that it claims for itself); UNSURE is √η of "
        "its multipliers, the bound what they tend to by the score that was learned, both with "
        f"all of the images alike. {IMAGES} images of each set, white noise, one "
        f"seed, {STEPS} steps.",
        "",
        "Made by `python -m benchmarks.noise_learned`.",
        "",
        "| images | σ | auto | learn | UNSURE | its bound | CPU seconds of auto, learn |",
        "|---|---|---|---|---|---|---|",
    ]
    for found in rows:
        sigma = found["sigma"]

        def cell(part: dict[str, Any] | None, sigma: float = sigma) -> str:
            if part is None:
                return "none"
            error, claimed = part["sigma"] / sigma - 1, part["claimed_error"] / sigma
            return f"{100 * error:+.1f} ({100 * claimed:.1f})"

        bounds = [f"{100 * (found['learn'][k] / sigma - 1):+.0f}" for k in ("unsure", "bound")]
        spent = found["cpu_seconds"]
        both = [cell(found.get("auto")), cell(found["learn"])]
        cells = [found["set"], f"{sigma:g}", *both, *bounds]
        lines.append(f"| {' | '.join(cells)} | {spent.get('auto', '–')}, {spent['learn']} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for name in FOLDERS:
        for sigma in LEVELS:
            rows.append(row(name, sigma))
            print(json.dumps(rows[-1]), flush=True)
    rows.append(masked_row("aerial64", 0.075))
    print(json.dumps(rows[-1]), flush=True)
    record = {
        "images": IMAGES,
        "steps": STEPS,
        "crop": CROP,
        "seed": SEED,
        "results": rows,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    with atomic_path(OUT / "learned.json") as path:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    with atomic_path(OUT / "learned.md") as path:
        path.write_text(table(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
