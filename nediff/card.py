"""The card of a run: a README.md in plain words."""

from __future__ import annotations

from pathlib import Path

from nediff.config import RunConfig
from nediff.data import atomic_path


def write_card(folder: Path, config: RunConfig) -> None:
    """Write README.md into the run folder."""
    with atomic_path(folder / "README.md") as temporary:
        temporary.write_text(card_text(config), encoding="utf-8")


def card_text(config: RunConfig) -> str:
    """What this run is, what it was trained on, and how to use it."""
    data, network, recipe, training = config.data, config.network, config.recipe, config.training
    scale = data.high - data.low
    origin = (
        f"clean images with simulated noise (σ = {data.simulate:g})"
        if data.simulate is not None
        else "noisy images alone; no clean image was used"
    )
    if recipe.loss == "supervised":
        origin = "pairs of clean and noisy images (the supervised baseline)"
    return f"""# A nediff restorer

Removes noise of σ = {data.sigma:.4g} of the intensity range ({data.sigma * scale:.4g} in the
data's units) from images with {data.channels} channel(s) and the intensity range
[{data.low:g}, {data.high:g}] ({data.range_chosen}), and draws posterior samples of them.

- Trained on: {data.images} images, {origin}.
- Network: `{network.size}`, kind `{network.kind}`.
- Recipe: `{recipe.name}` (loss `{recipe.loss}`, pooled by {", ".join(map(str, recipe.pool))}),
  {training.steps} steps of {training.batch} crops of {training.crop} pixels, seed {training.seed}.
- nediff {config.version}; every setting is in `config.yaml`.

    nediff restore THIS_FOLDER IMAGES --out restored --samples 8

It expects images like those it was trained on, with the same kind and strength of noise:
white, Gaussian, independent of the signal. On other images or other noise the result, and its
error bars, mean little. `nediff evaluate THIS_FOLDER IMAGES` says how it does on yours.
"""
