"""How many network calls keep the calibration? Solvers, levels K and σ_min on real images.

    NEDIFF_DATA=FOLDER python -m benchmarks.sampler

Takes the networks that `python -m benchmarks.denoising` trained (supervised and default),
draws 8 samples of squares of `bsd68_gray` at σ_n with each setting, and writes
docs/results/sampler. A few minutes.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch

from benchmarks.denoising import SIGMA, WORK, central_squares
from nediff.evaluation import Calibration
from nediff.experiments.pieces import provenance
from nediff.restorer import Restorer
from nediff.sampling import PAPER_SETTINGS, SamplerSettings
from nediff.sampling.solvers import network_calls

OUT = Path("docs/results/sampler")
SIDE, EVERY, SAMPLES = 80, 7, 8
SETTINGS = [
    SamplerSettings("dpm2m", 6, 1 / 15, 3),
    SamplerSettings("dpm2m", 10, 1 / 15, 3),
    SamplerSettings("dpm2m", 10, 1 / 15, 7),
    SamplerSettings("dpm2m", 10, 1 / 7.5, 3),
    SamplerSettings("heun", 8, 1 / 15, 7),
    SamplerSettings("ancestral", 10, 1 / 15, 3),
    PAPER_SETTINGS,
]


def measure(restorer: Restorer, settings: SamplerSettings, clean: Any, noisy: Any) -> Calibration:
    calibration = Calibration(SAMPLES)
    for i in range(len(clean)):
        y = noisy.image(i)
        drawn = restorer.sample(y, SAMPLES, seed=i, settings=settings)
        calibration.add(clean.image(i), drawn, restorer.restore(y))
    return calibration


def run(model: str, data: Path) -> list[dict[str, Any]]:
    """Every setting on one network."""
    restorer = Restorer.load(WORK / model)
    clean, noisy = central_squares(data, SIDE, every=EVERY)
    rows = []
    for settings in SETTINGS:
        found = measure(restorer, settings, clean, noisy)
        rows.append(
            {
                "model": model,
                "solver": settings.solver,
                "levels": settings.steps,
                "calls": network_calls(settings.solver, settings.steps),
                "sigma_min_over_sigma_n": settings.sigma_min_ratio,
                "gamma": settings.gamma,
                "error2_over_variance": found.ratio,
                "psnr_drop_db": found.psnr_drop,
            }
        )
        print(rows[-1], flush=True)
    return rows


def write(rows: list[dict[str, Any]]) -> None:
    models = list(dict.fromkeys(row["model"] for row in rows))
    lines = [
        "# How many network calls keep the calibration?",
        "",
        f"{SAMPLES} samples of the central {SIDE}×{SIDE} squares of every {EVERY}th image of "
        f"`bsd68_gray` at σ_n = {SIGMA}, with the networks of `../denoising`. Right would be "
        "error²/variance = 1 and a sample 3.01 dB below the estimate. `paper` is Algorithm 1 as "
        "printed, which loses its noise: its samples have hardly any spread.",
        "",
        "Made by `python -m benchmarks.sampler`; numbers in `results.json`.",
        "",
        "| solver | calls | γ | σ_min/σ_n | "
        + " | ".join(f"{m}: error²/variance | {m}: drop" for m in models)
        + " |",
        "|---|---|---|---|" + "---|---|" * len(models),
    ]
    for k in range(len(SETTINGS)):
        group = [[r for r in rows if r["model"] == m][k] for m in models]
        cells = " | ".join(
            f"{r['error2_over_variance']:.3g} | {r['psnr_drop_db']:.2f}" for r in group
        )
        ratio = f"1/{1 / group[0]['sigma_min_over_sigma_n']:g}"
        first = group[0]
        place = f"{first['solver']} | {first['calls']} | {first['gamma']:g} | {ratio}"
        lines.append(f"| {place} | {cells} |")
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (OUT / "results.json").write_text(json.dumps({"rows": rows, **provenance()}, indent=1) + "\n")
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("NEDIFF_DATA"))
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("give the data folder with --data or NEDIFF_DATA")
    torch.set_num_threads(1)
    write([row for m in ("supervised", "default") for row in run(m, arguments.data)])


if __name__ == "__main__":
    main()
