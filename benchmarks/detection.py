"""How often does each warning of `nediff diagnose` fire, with the flaw it is for and without?

    NEDIFF_DATA=FOLDER python -m benchmarks.detection

The images of `benchmarks.noise_levels` (those found; the research sets need NEDIFF_DATA) with white
noise of σ = 0.05, as they are and with one flaw at a time, weak and strong. Writes
docs/results/noise/detection.json and detection.md. Some minutes of one core.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter

from benchmarks.noise_levels import OUT, Array, sets
from nediff.data import open_measurements
from nediff.diagnosis import diagnose
from nediff.experiments.pieces import as_json, provenance, write_text
from nediff.experiments.tables import markdown

SIGMA = 0.05
SEEDS = (0, 1)
Rng = np.random.Generator
Flaw = Callable[[Array, Rng], Array]
"""Clean images (N, C, H, W) to measured ones."""


def white(x: Array, rng: Rng, sigma: Any = SIGMA) -> Array:
    """Good data."""
    return x + sigma * rng.standard_normal(x.shape)


def correlated(width: float) -> Flaw:
    """Noise smoothed by a bell of ``width`` pixels, of the same σ."""

    def measure(x: Array, rng: Rng) -> Array:
        noise = gaussian_filter(rng.standard_normal(x.shape), (0, 0, width, width), mode="wrap")
        return x + SIGMA * noise / noise.std()

    return measure


def by_signal(slope: float) -> Flaw:
    """var = σ² (1 + slope (2x − 1)): 1 ± slope between black and white."""
    return lambda x, rng: white(x, rng, SIGMA * np.sqrt(1 + slope * (2 * x.clip(0, 1) - 1)))


def by_place(slope: float) -> Flaw:
    """σ from 1 − slope at the top to 1 + slope at the bottom."""
    return lambda x, rng: white(
        x, rng, SIGMA * np.linspace(1 - slope, 1 + slope, x.shape[-2])[:, None]
    )


def by_channel(factor: float) -> Flaw:
    """Three channels, the second ``factor`` times as noisy."""

    def measure(x: Array, rng: Rng) -> Array:
        colours = np.repeat(x[:, :1], 3, axis=1)
        return white(colours, rng, SIGMA * np.array([1, factor, 1])[:, None, None])

    return measure


def by_image(factor: float) -> Flaw:
    """A third of the images ``factor`` times as noisy."""

    def measure(x: Array, rng: Rng) -> Array:
        third = rng.permutation(len(x)) < max(1, len(x) // 3)
        return white(x, rng, SIGMA * np.where(third, factor, 1.0)[:, None, None, None])

    return measure


def jpeg(quality: int) -> Flaw:
    """8 bits, compressed."""

    def one(image: Array) -> Array:
        pixels = np.rint(255 * image.clip(0, 1)).astype(np.uint8)
        file = io.BytesIO()
        picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
        picture.save(file, "JPEG", quality=quality)
        with Image.open(file) as again:
            back = np.atleast_3d(np.asarray(again)) / 255.0
        return back.transpose(2, 0, 1)

    return lambda x, rng: np.stack([one(image) for image in white(x, rng)])


def rounded(steps: float) -> Flaw:
    """Rounded so that σ is so many steps."""
    return lambda x, rng: np.round(white(x, rng) * steps / SIGMA) * SIGMA / steps


def clipped(share: float) -> Flaw:
    """The brightest pixels cut off."""

    def measure(x: Array, rng: Rng) -> Array:
        y = white(x, rng)
        return np.minimum(y, np.quantile(y, 1 - share))

    return measure


def copied(sigma: float) -> Flaw:
    """The first image once more: the same noise, or other noise of ``sigma``."""

    def measure(x: Array, rng: Rng) -> Array:
        y = white(x, rng)
        again = y[:1] if sigma == 0 else white(x[:1], rng, sigma)
        return np.concatenate([y, again])

    return measure


FLAWS: tuple[tuple[str, str, Flaw], ...] = (
    ("correlated", "smoothed over 0.4 pixels (neighbours: 0.09)", correlated(0.4)),
    ("correlated", "smoothed over 0.5 pixels (neighbours: 0.26)", correlated(0.5)),
    ("correlated", "smoothed over 0.7 pixels (neighbours: 0.58)", correlated(0.7)),
    ("signal_dependent", "variance ± 30 % between black and white", by_signal(0.3)),
    ("signal_dependent", "variance ± 80 % between black and white", by_signal(0.8)),
    ("positions", "σ ± 15 % from top to bottom", by_place(0.15)),
    ("positions", "σ ± 50 % from top to bottom", by_place(0.5)),
    ("channels", "one channel 1.2 times as noisy", by_channel(1.2)),
    ("channels", "one channel 1.5 times as noisy", by_channel(1.5)),
    ("images", "a third of the images 1.5 times as noisy", by_image(1.5)),
    ("images", "a third of the images twice as noisy", by_image(2.0)),
    ("jpeg", "JPEG of quality 90", jpeg(90)),
    ("jpeg", "JPEG of quality 60", jpeg(60)),
    ("quantised", "σ of half a grey step", rounded(0.5)),
    ("clipped", "1 % of the pixels at the upper end", clipped(0.01)),
    ("duplicates", "one image twice", copied(0.0)),
    ("near_duplicates", "one scene twice", copied(SIGMA)),
    ("little_noise", "σ = 0.001", lambda x, rng: white(x, rng, 0.001)),
)


def codes(y: Array) -> set[str]:
    """What `diagnose` warns of."""
    images = open_measurements(y.astype(np.float32), axes="NCHW", range=(0, 1))
    return {warning.code for warning in diagnose(images).warnings}


def able(code: str, x: Array) -> bool:
    """Whether a set can have the flaw at all: several images, or little noise of its own."""
    return len(x) >= 8 if code in ("images", "near_duplicates") else True


def detected(code: str, flaw: Flaw, pictures: dict[str, Array]) -> tuple[int, int, list[str]]:
    """How often the warning fired, of how many, and the kinds of images where it did not."""
    hits, trials, missed = 0, 0, []
    for name, x in pictures.items():
        if not able(code, x):
            continue
        for seed in SEEDS:
            found = code in codes(flaw(x, np.random.default_rng([seed, 11])))
            hits, trials = hits + found, trials + 1
            missed += [] if found or name in missed else [name]
    return hits, trials, missed


def false_alarms(pictures: dict[str, Array]) -> dict[str, list[str]]:
    """By warning: the kinds of images on which it fired without a flaw, once for each seed."""
    found: dict[str, list[str]] = {}
    for name, x in pictures.items():
        for seed in SEEDS:
            for code in codes(white(x, np.random.default_rng([seed, 11]))):
                found.setdefault(code, []).append(name)
    return found


def main() -> None:
    """All rows."""
    pictures = sets()
    alarms = false_alarms(pictures)
    trials = len(pictures) * len(SEEDS)
    rows = []
    for code, words, flaw in FLAWS:
        hits, of, missed = detected(code, flaw, pictures)
        row = {"code": code, "flaw": words, "detected": hits, "of": of, "missed": missed}
        wrong = alarms.get(code, [])
        rows.append(row | {"false_alarms": len(wrong), "without": trials, "false_on": wrong})
        print(rows[-1], flush=True)
    result = {"sigma": SIGMA, "kinds": list(pictures), "rows": rows, "made_by": provenance()}
    write_text(OUT / "detection.json", as_json(result))
    write_text(OUT / "detection.md", table(rows, len(pictures)))


def table(rows: list[dict[str, Any]], kinds: int) -> str:
    """Markdown."""
    head = ["warning", "flaw", "fires", "fires without it", "missed on"]
    body = [
        [
            f"`{r['code']}`",
            r["flaw"],
            f"{r['detected']} of {r['of']}",
            f"{r['false_alarms']} of {r['without']}",
            ", ".join(r["missed"]),
        ]
        for r in rows
    ]
    intro = (
        f"How often each warning of `nediff diagnose` fires: {kinds} kinds of images with white "
        f"noise of σ = {SIGMA:g}, {len(SEEDS)} seeds, with one flaw and without any. Made by "
        "`python -m benchmarks.detection`; numbers in `detection.json`."
    )
    return "\n".join([intro, "", *markdown(head, body)]) + "\n"


if __name__ == "__main__":
    main()
