"""One real run through the command line: noisy photographs in, better ones out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import skimage
import tifffile
from PIL import Image
from scipy.ndimage import gaussian_filter

SIGMA = 0.1
PHOTOGRAPHS = Path(skimage.__file__).parent / "data"


def nediff(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "nediff", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def photograph(name: str) -> np.ndarray:
    grey = Image.open(PHOTOGRAPHS / name).convert("L")
    scaled = grey.resize((grey.width // 2, grey.height // 2), Image.Resampling.BOX)
    return np.asarray(scaled, dtype=np.float32)[:192, :192] / 255


def psnr(estimate: np.ndarray, truth: np.ndarray) -> float:
    return float(-10 * np.log10(np.mean((estimate - truth) ** 2)))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of noisy float TIFFs, the truth of the held-out one, and a finished run."""
    root = tmp_path_factory.mktemp("end_to_end")
    rng = np.random.default_rng(0)
    for folder in ("noisy", "held_out", "truth"):
        (root / folder).mkdir()
    names = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")
    for name in names:
        image = photograph(name)
        noisy = (image + SIGMA * rng.normal(size=image.shape)).astype(np.float32)
        tifffile.imwrite(root / "noisy" / f"{Path(name).stem}.tif", noisy)
    truth = photograph("camera.png")
    noisy = (truth + SIGMA * rng.normal(size=truth.shape)).astype(np.float32)
    tifffile.imwrite(root / "held_out" / "camera.tif", noisy)
    tifffile.imwrite(root / "truth" / "camera.tif", truth)
    run = root / "run"
    done = nediff(
        *("train", root / "noisy", "--sigma", SIGMA, "--out", run),
        *("--steps", 500, "--size", "tiny", "--crop", 32),
    )
    assert done.returncode == 0, done.stderr
    return root


def test_restoring_beats_the_noisy_input_and_the_best_blur(world: Path) -> None:
    done = nediff("restore", world / "run", world / "held_out", "--out", world / "out")
    assert done.returncode == 0, done.stderr
    truth = tifffile.imread(world / "truth" / "camera.tif")
    noisy = tifffile.imread(world / "held_out" / "camera.tif")
    restored = tifffile.imread(world / "out" / "restored" / "camera.tif")
    assert restored.dtype == np.float32
    blurs = [psnr(gaussian_filter(noisy, s), truth) for s in np.arange(0.3, 3.0, 0.05)]
    assert max(blurs) > psnr(noisy, truth) + 3  # blurring is a rival
    assert psnr(restored, truth) > max(blurs) + 0.3
    assert psnr(restored, truth) > psnr(noisy, truth) + 5


def test_evaluation_without_truth_agrees_with_the_truth(world: Path) -> None:
    done = nediff(
        *("evaluate", world / "run", world / "held_out", "--clean", world / "truth"),
        *("--samples", 4, "--json", world / "figures.json"),
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((world / "figures.json").read_text())
    truth = figures["levels"][-1]["psnr"]
    # SURE over 192² pixels: terms of sd about 2σ² against an MSE of about 0.15σ², in dB, ×5
    tolerance = 5 * 4.343 * 2 / 0.15 / 192
    assert tolerance < 2
    assert abs(figures["blind"]["estimated_psnr"] - truth) < tolerance
    # even a tiny network's error bars are of the right order after 500 steps
    assert 0.7 < figures["spread"]["error2_over_variance"] < 2.0


def test_samples_are_sharper_than_their_mean_and_spread_where_it_is_hard(world: Path) -> None:
    out = world / "sampled"
    done = nediff(*("restore", world / "run", world / "held_out", "--out", out, "--samples", 4))
    assert done.returncode == 0, done.stderr
    samples = np.stack([tifffile.imread(out / "samples" / f"camera_{k}.tif") for k in range(4)])
    mean, sd = tifffile.imread(out / "mean/camera.tif"), tifffile.imread(out / "sd/camera.tif")
    np.testing.assert_allclose(mean, samples.mean(0), atol=1e-5)
    np.testing.assert_allclose(sd, samples.std(0, ddof=1), atol=1e-5)
    truth = tifffile.imread(world / "truth" / "camera.tif")
    gradient = np.hypot(*np.gradient(gaussian_filter(truth, 1.0)))
    edges, flat = gradient > np.quantile(gradient, 0.9), gradient < np.quantile(gradient, 0.4)
    assert sd[edges].mean() > 1.2 * sd[flat].mean()

    def roughness(image: np.ndarray) -> float:
        return float(np.mean(np.diff(image, axis=0) ** 2))

    assert roughness(samples[0]) > roughness(mean)
