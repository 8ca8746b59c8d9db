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
LINE_LEVELS, LINE = (0.02, 0.05, 0.15), ("gain", "constant")
"""Of noise that depends on the signal, and what is told of it."""
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


def line(clean: Array, sigma: float, seed: int) -> tuple[float, float]:
    """How far off gain and constant are, of noise of variance σ² (0.2 + 1.6 x).

    The gain is 1.6 σ², the constant, in which offset and read noise are, 0.2 σ². The first error is
    a share of the gain, the second of σ², the variance in the middle of the range.
    """
    noise = np.random.default_rng([seed, 99, int(1e4 * sigma)]).normal(size=clean.shape)
    values = clean + sigma * np.sqrt(np.clip(0.2 + 1.6 * clean, 0.01, None)) * noise
    images = open_measurements(values.astype(np.float32), axes="NCHW", range=(0, 1))
    found = signal_of(gather_blocks(images), images.range)
    return found.gain / (1.6 * sigma**2) - 1, found.constant / sigma**2 - 0.2


def lines(clean: Array) -> list[dict[str, float]]:
    """Bias and spread of both at each level."""
    rows = []
    for sigma in LINE_LEVELS:
        off = np.array([line(clean, sigma, seed) for seed in SEEDS])
        (gain, constant), (gains, constants) = off.mean(axis=0), off.std(axis=0, ddof=1)
        rows.append(
            {
                "sigma": sigma,
                "gain_bias": float(gain),
                "gain_spread": float(gains),
                "constant_bias": float(constant),
                "constant_spread": float(constants),
            }
        )
    return rows


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
    return {"set": name, "shape": list(clean.shape), "levels": rows, "lines": lines(clean)}


def table(results: list[dict[str, Any]]) -> str:
    """Markdown."""
    out = [
        f"Bias ± spread of σ in percent over {len(SEEDS)} seeds (in brackets the error that the "
        "estimate claims for itself); false alarms: how "
        f"often, of {len(LEVELS) * len(SEEDS)}, white noise was called correlated / dependent on "
        "the signal.",
        "",
        "Made by `python -m benchmarks.noise_levels`.",
        "",
        *_head(["images", *(f"σ = {s:g}" for s in LEVELS), "false alarms"]),
    ]
    for row in results:
        cells = [
            f"{_percent(v['bias'], v['spread'])} ({100 * v['claimed_error']:.1f})"
            for v in row["levels"]
        ]
        alarms = (
            sum(v[key] for v in row["levels"]) for key in ("false_correlated", "false_dependent")
        )
        out.append("| " + " | ".join([_name(row), *cells, " / ".join(map(str, alarms))]) + " |")
    out += [
        "",
        "Noise that depends on the signal, of variance σ² (0.2 + 1.6 x): bias ± spread of the gain "
        "in percent, and of the constant, in which offset and read noise are, in percent of σ².",
        "",
        *_head(["images", *(f"{kind}, σ = {s:g}" for s in LINE_LEVELS for kind in LINE)]),
    ]
    for row in results:
        cells = [
            _percent(v[f"{kind}_bias"], v[f"{kind}_spread"]) for v in row["lines"] for kind in LINE
        ]
        out.append("| " + " | ".join([_name(row), *cells]) + " |")
    return "\n".join(out) + "\n"


def _head(names: list[str]) -> list[str]:
    return ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]


def _percent(bias: float, spread: float) -> str:
    return f"{100 * bias:+.1f} ± {100 * spread:.1f}"


def _name(row: dict[str, Any]) -> str:
    number, *size = row["shape"]
    return f"{row['set']} ({number} of {'×'.join(map(str, size))})"


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
