"""Photon noise: stabilised, against noise treated as Gaussian with its mean σ.

    NEDIFF_DATA=FOLDER python -m benchmarks.signal_dependent            # all rows
    python -m benchmarks.signal_dependent --peak 10 --size small         # one count level

FOLDER holds `bsd400_gray` (training) and `bsd68_gray` (test). White has PEAK photons, and read
noise is that of one photon. Both ways see the same noisy images and train the same small network
for the same number of steps; the Gaussian way is told the true root mean square of the noise.
PSNR and calibration are in data units. Writes docs/results/noise/signal_dependent.json and .md;
finished rows are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nediff.data import PhotonNoise, open_measurements
from nediff.experiments.pieces import as_json, provenance, rounded, write_text

PEAKS = (10.0, 30.0, 200.0)
WAYS = {"stabilised": "stabilised (GAT, exact unbiased inverse)", "gaussian": "Gaussian, mean σ"}
WHITE, SIDE, TRAIN, TEST, SAMPLES = 255.0, 128, 200, 12, 8
OUT = Path("docs/results/noise/signal_dependent")
COMMAND = "NEDIFF_DATA=FOLDER python -m benchmarks.signal_dependent"
Images = NDArray[np.float64]


def noise_of(peak: float) -> PhotonNoise:
    """White is ``peak`` photons; read noise of one photon."""
    return PhotonNoise(gain=WHITE / peak, read_noise=WHITE / peak)


def photographs(folder: Path, count: int, side: int) -> Images:
    """The middles of the first so many grey photographs, (N, side, side), 0 to 255."""
    found = open_measurements(folder, range=(0.0, 1.0))
    parts = []
    for i in range(min(count, len(found))):
        height, width = found.size(i)
        place = ((height - side) // 2, (width - side) // 2, side, side)
        parts.append(found.crop(i, *place)[0])
    return np.stack(parts).astype(np.float64)


def corrupt(x: Images, noise: PhotonNoise, seed: int) -> NDArray[np.float32]:
    """gain · Poisson + read noise, once, by the seed."""
    random = np.random.default_rng(seed)
    counts = random.poisson(noise.photons(x))
    read = noise.read_noise * random.standard_normal(x.shape)
    return (noise.gain * counts + noise.offset + read).astype(np.float32)


def run_row(way: str, peak: float, steps: int, size: str, data: Path) -> dict[str, Any]:
    """Train one way, and measure."""
    import torch

    from nediff.training import fit

    torch.set_num_threads(1)
    noise = noise_of(peak)
    clean = photographs(data / "bsd400_gray", TRAIN, 180)
    y = corrupt(clean, noise, seed=1)
    started = time.process_time()
    if way == "stabilised":
        noisy = open_measurements(y, axes="NHW", photons=noise, warn=print)
        restorer = fit(noisy, noise, steps=steps, size=size)
    else:
        noisy = open_measurements(y, axes="NHW", range=(0.0, WHITE))
        sigma = float(np.sqrt(np.mean(noise.gain * clean + noise.constant))) / WHITE
        restorer = fit(noisy, sigma, steps=steps, size=size)
    trained = time.process_time() - started
    return {
        "way": way,
        "peak": peak,
        "steps": steps,
        "size": size,
        "cpu_seconds": trained,
        **measure(restorer, noise, data),
        "made_by": provenance(),
    }


def measure(restorer: Any, noise: PhotonNoise, data: Path) -> dict[str, Any]:
    """PSNR (peak 255) and error²/variance in data units: of all pixels, and by brightness."""
    truth = photographs(data / "bsd68_gray", TEST, SIDE)
    y = corrupt(truth, noise, seed=2)
    curve = restorer.range
    restored, drawn = [], []
    for i, image in enumerate(y):
        unit = curve.to_unit(image[None])
        restored.append(curve.from_unit(restorer.restore(unit))[0])
        drawn.append(curve.from_unit(restorer.sample(unit, SAMPLES, seed=i))[:, 0])
    estimate, samples = np.stack(restored), np.stack(drawn)  # (N, H, W), (N, n, H, W)
    mean, variance = samples.mean(axis=1), samples.var(axis=1, ddof=1)
    error = np.square(truth - mean) / (1 + 1 / SAMPLES)
    dark, bright = np.quantile(mean, [1 / 3, 2 / 3])
    parts = {"all": mean > -1e9, "dark": mean < dark, "bright": mean > bright}
    return {
        "psnr_noisy": decibels(y - truth),
        "psnr": decibels(estimate - truth),
        "psnr_mean": decibels(mean - truth),
        "bias": float(np.mean(mean - truth)) / WHITE,
        "error2_over_variance": {
            name: float(error[there].sum() / variance[there].sum()) for name, there in parts.items()
        },
    }


def decibels(error: Images) -> float:
    """The mean of the PSNR of the images (N, H, W)."""
    mse = np.mean(np.square(error / WHITE), axis=(1, 2))
    return float(np.mean(-10 * np.log10(mse)))


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    lines = [
        "| peak (photons) | noise treated as | noisy | restored | mean of samples | bias "
        "(% of white) | error²/variance | dark third | bright third |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda r: (r["peak"], list(WAYS).index(r["way"]))):
        ratio = row["error2_over_variance"]
        lines.append(
            f"| {row['peak']:g} | {WAYS[row['way']]} | {row['psnr_noisy']:.2f} | "
            f"{row['psnr']:.2f} | {row['psnr_mean']:.2f} | {100 * row['bias']:+.2f} | "
            f"{ratio['all']:.2f} | {ratio['dark']:.2f} | {ratio['bright']:.2f} |"
        )
    steps = " and ".join(sorted({f"{row['steps']} steps of `{row['size']}`" for row in rows}))
    seconds = [row["cpu_seconds"] for row in rows]
    return "\n".join(
        [
            "# Photon noise: stabilised or treated as Gaussian",
            "",
            f"    {COMMAND} --steps {rows[0]['steps']} --size {rows[0]['size']}",
            "",
            *lines,
            "",
            f"PSNR in dB in data units (peak 255), means over the middle {SIDE}² pixels of {TEST} "
            f"images of `bsd68_gray`; trained on {TRAIN} noisy images of `bsd400_gray`, {steps}, "
            f"{min(seconds):.0f} to {max(seconds):.0f} CPU seconds each: far from converged. Read "
            f"noise of one photon. error²/variance of {SAMPLES} samples, 1 is right, also of the "
            "third of the pixels that the mean of the samples shows darkest and brightest. One "
            "seed each.",
            "",
        ]
    )


def main() -> None:
    """The rows that are asked for and not there yet, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peak", type=float, nargs="*", default=PEAKS)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--size", default="tiny")
    options = parser.parse_args()
    data = Path(os.environ.get("NEDIFF_DATA", "data"))
    path = OUT.with_suffix(".json")
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    for peak in options.peak:
        for way in WAYS:
            if any((row["way"], row["peak"]) == (way, peak) for row in rows):
                continue
            row = run_row(way, peak, options.steps, options.size, data)
            rows.append(rounded(row))
            write_text(path, as_json({"rows": rows}))
            write_text(OUT.with_suffix(".md"), table(rows))
            print(rows[-1], flush=True)
    write_text(OUT.with_suffix(".md"), table(rows))


if __name__ == "__main__":
    main()
