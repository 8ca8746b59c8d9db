"""Denoising figures: every loss and architecture, same network, same minutes.

    NEDIFF_DATA=FOLDER python -m benchmarks.denoising            # all pieces, two at a time
    python -m benchmarks.denoising --only default --minutes 15    # one piece
    python -m benchmarks.denoising --table                        # only the table, from the pieces

FOLDER holds `bsd400_gray` (training, corrupted once, σ_n = 0.075) and `bsd68_gray` (test).
Minutes are turned into steps by the rate of each
method, measured side by side in one process with one thread; so what else the machine does
while a piece trains changes nothing. Finished pieces are kept and not run again; an
interrupted one goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nediff.config import RecipeConfig
from nediff.experiments.pieces import provenance

SIGMA, SEED = 0.075, 0
LEVELS = (0.01, 0.02, 0.035, 0.05)
SAMPLES, SIDE, PSNR_SIDE = 8, 128, 256
OUT = Path("docs/results/denoising")
WORK = Path("runs/denoising")

_POOL: dict[str, Any] = {"pool": (1, 2, 4), "pool_weights": (0.45, 0.30, 0.25)}
_MATCHED = {"matched": True, "tau": 1.0, **_POOL}
METHODS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # name: (words, kind of network, changes to the recipe or its name)
    "supervised": ("supervised (needs clean images)", "edm", {"recipe": "supervised"}),
    "default": ("**ours, the default recipe** (matched, rehearsed)", "edm", {"recipe": "default"}),
    "matched": ("NE-R2R, pooled, matched contrast", "edm", {"loss": "ne_r2r", **_MATCHED}),
    "ne_r2r_pool": ("NE-R2R, pooled", "edm", {"loss": "ne_r2r", **_POOL}),
    "ne_r2r": ("NE-R2R", "edm", {"loss": "ne_r2r"}),
    "ne_sure_pool": ("NE-SURE, pooled", "edm", {"loss": "ne_sure", **_POOL}),
    "ne_sure": ("NE-SURE (the paper's loss)", "edm", {"loss": "ne_sure"}),
    "sure": ("SURE at σ_n only", "edm", {"recipe": "sure"}),
    "standardised": ("standardising wrapper, SURE", "standardised", {"recipe": "sure"}),
    "homogeneous": ("bias-free homogeneous network, SURE", "homogeneous", {"recipe": "sure"}),
}


def recipe_of(method: str) -> RecipeConfig:
    from nediff.recipes import recipe_named

    changes = METHODS[method][2]
    if "recipe" in changes:
        return recipe_named(changes["recipe"])
    return RecipeConfig(name=method, **changes)


def open_training(data: Path) -> Any:
    from nediff.data import open_measurements

    return open_measurements(data / "bsd400_gray", range=(0, 255), simulate=SIGMA, seed=SEED)


def config_of(method: str, data: Path, steps: int) -> Any:
    """The run of a method: our defaults, with this recipe and this kind of network."""
    from nediff.problem import Problem
    from nediff.training.fitting import Plan, plan_run

    noisy = open_training(data)
    plan = Plan(steps=steps, kind=METHODS[method][1], seed=SEED)
    config = plan_run(noisy, Problem.denoising(SIGMA), plan, "bsd400_gray")
    return config.model_copy(update={"recipe": recipe_of(method)})


def measure_rates(data: Path, methods: Sequence[str], rounds: int = 8) -> dict[str, float]:
    """Seconds per step of each method, interleaved in one process (see training/pace.py)."""
    import torch

    from nediff.training.fitting import make_trainer
    from nediff.training.pace import Pace

    torch.set_num_threads(1)
    noisy = open_training(data)
    for i in range(len(noisy)):  # decoded images and their noise are kept after the first use
        noisy.image(i)
    trainers = {m: make_trainer(config_of(m, data, 1000), noisy, None) for m in methods}
    paces = {m: Pace(trainer, time.process_time) for m, trainer in trainers.items()}
    for _ in range(rounds):
        for pace in paces.values():
            pace.measure()
    return {m: pace.seconds_per_step() for m, pace in paces.items()}


def run_piece(method: str, data: Path, steps: int, minutes: float, evaluated: bool) -> None:
    """Train (or go on) and, unless it is left for later, evaluate and write the piece."""
    import torch

    from nediff.runs import CONFIG_FILE, load_config
    from nediff.training.fitting import run_training, start_folder

    torch.set_num_threads(1)
    folder = WORK / method
    if (folder / CONFIG_FILE).exists():
        config = load_config(folder)
    else:
        config = config_of(method, data, steps)
        start_folder(folder, config)
    trained_by = folder / "trained-by.json"
    if not trained_by.exists():
        trained_by.write_text(json.dumps(provenance()), encoding="utf-8")
    restorer, _ = run_training(config, open_training(data), folder)
    if not evaluated:
        return
    piece = {
        "method": method,
        "words": METHODS[method][0],
        "minutes": minutes,
        "settings": config.model_dump(mode="json"),
        "results": evaluate(restorer, data),
        "trained_by": json.loads(trained_by.read_text(encoding="utf-8")),
        "evaluated_by": provenance(),
    }
    path = OUT / "pieces" / f"{method}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(piece, indent=1) + "\n", encoding="utf-8")


def evaluate(restorer: Any, data: Path) -> dict[str, Any]:
    """PSNR on central squares at every level, calibration on smaller ones at σ_n."""
    from nediff.evaluation import evaluate_with_truth

    clean, noisy = central_squares(data, PSNR_SIDE, every=1)
    psnr = evaluate_with_truth(restorer, noisy, clean, samples=0, lower_levels=LEVELS)
    clean, noisy = central_squares(data, SIDE, every=3)
    calibration = evaluate_with_truth(restorer, noisy, clean, samples=SAMPLES)
    return {
        "levels": psnr.to_dict()["levels"],
        "blind": psnr.to_dict()["blind"],
        "images": psnr.images,
        "spread": calibration.to_dict()["spread"],
        "spread_images": calibration.images,
    }


def central_squares(data: Path, side: int, every: int) -> tuple[Any, Any]:
    """(clean, noisy) central squares of every so many test images."""
    import numpy as np

    from nediff.data import open_measurements

    images = open_measurements(data / "bsd68_gray", range=(0, 255))
    cut = []
    for i in range(0, len(images), every):
        height, width = images.size(i)
        cut.append(images.crop(i, (height - side) // 2, (width - side) // 2, side, side)[0])
    clean = open_measurements(np.stack(cut), axes="NHW", range=(0, 1))
    return clean, clean.simulate(SIGMA, SEED + 1)


def write_table() -> None:
    """docs/results/denoising/README.md and results.json from the pieces there are."""
    pieces = [
        json.loads(path.read_text())
        for path in (OUT / "pieces" / f"{m}.json" for m in METHODS)
        if path.exists()
    ]
    if not pieces:
        raise SystemExit(f"there are no pieces in {OUT} yet")
    by_name = {p["method"]: p for p in pieces}
    sigmas = [level["sigma"] for level in pieces[0]["results"]["levels"]]
    lines = [
        "# Denoising: what the network learns from noisy images alone",
        "",
        f"Trained on `bsd400_gray`, corrupted once with σ_n = {SIGMA}; tested on the "
        f"central {PSNR_SIDE}×{PSNR_SIDE} squares of the {pieces[0]['results']['images']} images "
        "of `bsd68_gray`. The same network "
        f"(`small`), {pieces[0]['minutes']:g} minutes of one core for each method. PSNR in dB; "
        f"the last two columns are laws 4 and 5 with {SAMPLES} samples of the central "
        f"{SIDE}×{SIDE} squares of {pieces[0]['results']['spread_images']} of them at σ_n "
        "(3.01 and 1 are right).",
        "",
        "Made by `python -m benchmarks.denoising`; every number with its settings is in `pieces/`.",
        "",
        "| method | steps | "
        + " | ".join(f"{s:g}" for s in sigmas)
        + " | sample drop | error²/variance |",
        "|---|---|" + "---|" * (len(sigmas) + 2),
    ]
    noisy = " | ".join(f"{v['psnr_noisy']:.2f}" for v in pieces[0]["results"]["levels"])
    lines.append(f"| (noisy input) | | {noisy} | | |")
    lines += [_row(piece) for piece in pieces]
    if "supervised" in by_name and "default" in by_name:
        gaps = _difference(by_name["supervised"], by_name["default"])
        lines += ["", f"Supervised minus default: {', '.join(f'{g:.2f}' for g in gaps)} dB."]
    if "sure" in by_name and "default" in by_name:
        gains = _difference(by_name["default"], by_name["sure"])
        lines += [f"Default minus SURE: {', '.join(f'{g:.2f}' for g in gains)} dB."]
    (OUT / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (OUT / "results.json").write_text(json.dumps(by_name, indent=1) + "\n")
    print("\n".join(lines))


def _row(piece: dict[str, Any]) -> str:
    psnr = " | ".join(f"{v['psnr']:.2f}" for v in piece["results"]["levels"])
    spread = piece["results"]["spread"]
    steps = piece["settings"]["training"]["steps"]
    return (
        f"| {piece['words']} | {steps} | {psnr} | {spread['psnr_drop_db']:.2f} | "
        f"{spread['error2_over_variance']:.2f} |"
    )


def _difference(a: dict[str, Any], b: dict[str, Any]) -> list[float]:
    pairs = zip(a["results"]["levels"], b["results"]["levels"], strict=True)
    return [x["psnr"] - y["psnr"] for x, y in pairs]


def steps_of(method: str, rates: dict[str, float], minutes: float) -> int:
    return int(60 * minutes / rates[method])


def known_rates(data: Path, methods: Sequence[str]) -> dict[str, float]:
    """The rates of these methods; those not known yet are measured side by side."""
    path = WORK / "rates.json"
    rates: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    if any(m not in rates for m in methods):
        rates = rates | measure_rates(data, [m for m in METHODS if m not in rates])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rates, indent=1))
    return rates


def run_all(arguments: argparse.Namespace, methods: Sequence[str]) -> None:
    """Two pieces at a time, each a process with one thread."""
    rates = known_rates(arguments.data, methods)
    waiting = [m for m in methods if not (OUT / "pieces" / f"{m}.json").exists()]
    for method in waiting:
        steps = steps_of(method, rates, arguments.minutes)
        print(f"{method}: {steps} steps", flush=True)
    running: list[tuple[str, subprocess.Popen[bytes]]] = []
    failed: list[str] = []
    while waiting or running:
        while waiting and len(running) < 2:
            method = waiting.pop(0)
            steps = steps_of(method, rates, arguments.minutes)
            command = [sys.executable, "-m", "benchmarks.denoising", "--piece", method]
            command += ["--steps", str(steps), "--minutes", str(arguments.minutes)]
            command += ["--data", str(arguments.data)]
            command += ["--train-only"] * arguments.train_only
            env = {**os.environ, "OMP_NUM_THREADS": "1"}
            running.append((method, subprocess.Popen(command, env=env)))
        time.sleep(1)
        for entry in [e for e in running if e[1].poll() is not None]:
            running.remove(entry)
            print(f"{entry[0]}: exit {entry[1].returncode}", flush=True)
            failed += [entry[0]] if entry[1].returncode else []
    if failed:
        raise SystemExit(f"these pieces failed: {', '.join(failed)}")
    if not arguments.train_only:
        write_table()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("NEDIFF_DATA"))
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--only", nargs="*", choices=list(METHODS))
    parser.add_argument("--train-only", action="store_true", help="evaluate in another call")
    parser.add_argument("--table", action="store_true", help="only write the table")
    parser.add_argument("--piece", choices=list(METHODS), help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table:
        return write_table()
    if arguments.data is None:
        parser.error("give the data folder with --data or NEDIFF_DATA")
    if arguments.piece:
        return run_piece(
            arguments.piece,
            arguments.data,
            arguments.steps,
            arguments.minutes,
            not arguments.train_only,
        )
    return run_all(arguments, arguments.only or list(METHODS))


if __name__ == "__main__":
    main()
