"""How well is the noise told from noisy images alone?

    NEDIFF_DATA=FOLDER python -m benchmarks.noise_levels

Adds noise of known strength to images of eleven kinds (those found; the research sets need
NEDIFF_DATA) and writes bias and spread of the estimates over seeds to
docs/results/noise/levels.json and levels.md. About two minutes of one core.
"""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nediff.data import atomic_path, open_measurements
from nediff.noise import gather_blocks
from nediff.noise.level import level_of
from nediff.noise.signal import signal_of
from nediff.noise.whiteness import whiteness_of

OUT = Path("docs/results/noise")
LEVELS = (0.01, 0.03, 0.1, 0.3)
SEEDS = (0, 1, 2)
IMAGES = 32
FOLDERS = {
    "cats64": "cats64/val",
    "faces64": "faces64/val",
    "aerial64": "aerial64/val",
    "bsd400_gray": "bsd400_gray",
    "mri128": "mri128/val",
}
GREY = ("aerial64", "bsd400_gray", "mri128")
Array = NDArray[np.float64]


def fields(power: float, side: int = 64, seed: int = 0) -> Array:
    """(N, 1, H, W): Gaussian fields with amplitudes f^(−power)."""
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side))
    frequency[0, 0] = np.inf
    white = np.random.default_rng(seed).normal(size=(IMAGES, 1, side, side))
    found = np.fft.ifft2(np.fft.fft2(white) * frequency**-power).real
    scaled: Array = found / found.std()
    return scaled


def discs() -> Array:
    """Discs of random brightness on one another."""
    rng, (y, x) = np.random.default_rng(0), np.mgrid[:64, :64]
    out = np.full((IMAGES, 1, 64, 64), 0.5)
    for picture in out:
        for _ in range(8):
            (top, left), radius = rng.uniform(0, 64, 2), rng.uniform(4, 21)
            picture[0][np.hypot(y - top, x - left) < radius] = rng.uniform(0.1, 0.9)
    return out


def sets() -> dict[str, Array]:
    """Clean images by name, (N, C, H, W)."""
    from skimage import data

    found = {
        "smooth fields": 0.5 + 0.15 * fields(3.0),
        "discs": discs(),
        "1/f fields of many contrasts": 0.5 + 0.03 * np.exp(fields(2.0, seed=1)) * fields(1.0),
        "1/f fields of one contrast": 0.5 + 0.15 * fields(1.0),
        "astronaut": data.astronaut().transpose(2, 0, 1)[None] / 255.0,
        "brick, grass, gravel": np.stack([f()[None] for f in (data.brick, data.grass, data.gravel)])
        / 255.0,
    }
    root = os.environ.get("NEDIFF_DATA")
    for name, folder in FOLDERS.items() if root else ():
        files = sorted((Path(root or "") / folder).iterdir())[:IMAGES]
        images = open_measurements(files, range=(0, 255))
        channels = 1 if name in GREY else images.channels
        stack = [images.image(i)[:channels] for i in range(len(images))]
        found[name] = np.stack(stack).astype(np.float64)
    return found


def measure(clean: Array, sigma: float, seed: int) -> dict[str, Any]:
    """All estimates of one noisy set; the noise's dependence on the signal too, at 0.05."""
    noise = np.random.default_rng([seed, int(1e4 * sigma)]).normal(size=clean.shape)
    values = (clean + sigma * noise).astype(np.float32)
    blocks = gather_blocks(open_measurements(values, axes="NCHW", range=(0, 1)))
    level = level_of(blocks).sigma
    signal = signal_of(blocks, open_measurements(values, axes="NCHW", range=(0, 1)).range)
    return {
        "ratio": level.value / sigma,
        "error": level.total_error / sigma,
        "said_white": whiteness_of(blocks).white,
        "said_dependent": signal.dependent,
    }


def gain(clean: Array, seed: int) -> float:
    """The estimated over the true gain of noise of variance 0.05² (0.2 + 1.6 x)."""
    noise = np.random.default_rng([seed, 99]).normal(size=clean.shape)
    values = clean + 0.05 * np.sqrt(np.clip(0.2 + 1.6 * clean, 0.01, None)) * noise
    images = open_measurements(values.astype(np.float32), axes="NCHW", range=(0, 1))
    return signal_of(gather_blocks(images), images.range).gain / (1.6 * 0.05**2)


def summarise(name: str, clean: Array) -> dict[str, Any]:
    """Bias and spread at each level."""
    rows = []
    for sigma in LEVELS:
        runs = [measure(clean, sigma, seed) for seed in SEEDS]
        ratios = np.array([run["ratio"] for run in runs])
        rows.append(
            {
                "sigma": sigma,
                "bias": float(ratios.mean() - 1),
                "spread": float(ratios.std(ddof=1)),
                "claimed_error": float(np.mean([run["error"] for run in runs])),
                "false_correlated": sum(not run["said_white"] for run in runs),
                "false_dependent": sum(run["said_dependent"] for run in runs),
            }
        )
    gains = np.array([gain(clean, seed) for seed in SEEDS])
    return {
        "set": name,
        "shape": list(clean.shape),
        "levels": rows,
        "gain_bias": float(gains.mean() - 1),
        "gain_spread": float(gains.std(ddof=1)),
    }


def table(results: list[dict[str, Any]]) -> str:
    """Markdown."""
    head = ["images", *(f"σ = {s:g}" for s in LEVELS), "gain", "false alarms"]
    lines = [
        f"Bias ± spread of σ in percent over {len(SEEDS)} seeds (in brackets the error that the "
        "estimate claims for itself), and of the gain of signal-dependent noise; false alarms: how "
        f"often, of {len(LEVELS) * len(SEEDS)}, white noise was called correlated / dependent on "
        "the signal.",
        "",
        "Made by `python -m benchmarks.noise_levels`.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    for row in results:
        cells = [
            f"{100 * v['bias']:+.1f} ± {100 * v['spread']:.1f} ({100 * v['claimed_error']:.1f})"
            for v in row["levels"]
        ]
        alarms = (
            sum(v[key] for v in row["levels"]) for key in ("false_correlated", "false_dependent")
        )
        gains = f"{100 * row['gain_bias']:+.1f} ± {100 * row['gain_spread']:.1f}"
        number, *size = row["shape"]
        name = f"{row['set']} ({number} of {'×'.join(map(str, size))})"
        lines.append("| " + " | ".join([name, *cells, gains, " / ".join(map(str, alarms))]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    started = time.process_time()
    results = [summarise(name, clean) for name, clean in sets().items()]
    record = {
        "levels": LEVELS,
        "seeds": SEEDS,
        "results": results,
        "cpu_seconds": round(time.process_time() - started, 1),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    with atomic_path(OUT / "levels.json") as path:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    with atomic_path(OUT / "levels.md") as path:
        path.write_text(table(results), encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
