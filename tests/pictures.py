"""Clean pictures of many kinds for tests of the noise: synthetic, photographs, research sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from nediff.data import Measurements, open_measurements

SHARED = Path(__file__).parents[2] / "shared" / "data"
Array = NDArray[np.float64]
RESEARCH = {
    "cats64": "cats64/val",
    "faces64": "faces64/val",
    "aerial64": "aerial64/val",
    "bsd400_gray": "bsd400_gray",
    "mri128": "mri128/val",
}
SYNTHETIC = ("smooth", "edges", "stripes", "power")
PHOTOGRAPHS = ("astronaut", "textures")
ALL = (*SYNTHETIC, *PHOTOGRAPHS, *RESEARCH)


def smooth(count: int, side: int, rng: np.random.Generator) -> Array:
    """Gaussian fields of some twelve pixels' size, (N, 1, H, W) in about [0.2, 0.8]."""
    fields = gaussian_filter(rng.normal(size=(count, 1, side, side)), (0, 0, 6, 6), mode="wrap")
    out: Array = 0.5 + 0.15 * fields / fields.std()
    return out


def edges(count: int, side: int, rng: np.random.Generator) -> Array:
    """Discs of random brightness on one another."""
    y, x = np.mgrid[:side, :side]
    out = np.full((count, 1, side, side), 0.5)
    for picture in out:
        for _ in range(8):
            (top, left), radius = rng.uniform(0, side, 2), rng.uniform(4, side / 3)
            picture[0][np.hypot(y - top, x - left) < radius] = rng.uniform(0.1, 0.9)
    return out


def stripes(count: int, side: int, rng: np.random.Generator) -> Array:
    """Fine waves on half of each picture."""
    y, x = np.mgrid[:side, :side]
    out = np.full((count, 1, side, side), 0.4)
    for picture in out:
        angle, period = rng.uniform(0, np.pi), rng.uniform(3, 8)
        wave = np.sin(2 * np.pi * (np.cos(angle) * x + np.sin(angle) * y) / period)
        picture[0] += 0.2 * wave * (x > side / 2) + 0.1 * np.sin(x / 20 + angle)
    return out


def power(count: int, side: int, rng: np.random.Generator) -> Array:
    """Fields with the spectrum of images, 1/f², whose contrast differs from place to place."""
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side))
    frequency[0, 0] = np.inf
    white = np.fft.fft2(rng.normal(size=(count, 1, side, side)))
    fields = np.fft.ifft2(white / frequency).real
    contrast = np.exp(2 * smooth(count, side, rng) / 0.15 - 2 * 0.5 / 0.15)
    out: Array = 0.5 + np.clip(0.03 * contrast * fields / fields.std(), -0.5, 0.5)
    return out


def photographs(name: str) -> Array:
    """scikit-image's: a colour one, or three grey textures."""
    from skimage import data

    if name == "astronaut":
        return data.astronaut().transpose(2, 0, 1)[None] / 255.0
    kinds = (data.brick, data.grass, data.gravel)
    return np.stack([kind()[None, :256, :256] for kind in kinds]) / 255.0


def research(name: str, count: int) -> Array:
    """The first of a research set, if it is there."""
    folder = SHARED / RESEARCH[name]
    if not folder.is_dir():
        pytest.skip(f"the research images {name} are not here")
    images = open_measurements(sorted(p for p in folder.iterdir())[:count], range=(0, 255))
    channels = 1 if name in ("aerial64", "mri128", "bsd400_gray") else images.channels
    return np.stack([images.image(i)[:channels] for i in range(len(images))]).astype(np.float64)


def clean(name: str, count: int = 32, side: int = 64, seed: int = 0) -> Array:
    """(N, C, H, W) in about [0, 1]."""
    makers: dict[str, Any] = {"smooth": smooth, "edges": edges, "stripes": stripes, "power": power}
    if name in makers:
        made: Array = makers[name](count, side, np.random.default_rng(seed))
        return made
    return photographs(name) if name in PHOTOGRAPHS else research(name, count)


def measured(values: NDArray[Any], **options: Any) -> Measurements:
    """(N, C, H, W) as Measurements; in the range (0, 1) unless told."""
    return open_measurements(values, **({"axes": "NCHW", "range": (0, 1)} | options))


def noisy(pictures: Array, sigma: Any, seed: int) -> Measurements:
    """With white noise; ``sigma`` may be an array."""
    noise = np.random.default_rng([seed, 7]).normal(size=pictures.shape)
    return measured((pictures + sigma * noise).astype(np.float32))
