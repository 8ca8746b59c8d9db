"""The card of a run: a README.md in plain words."""

from __future__ import annotations

from pathlib import Path

from nediff.config import DataConfig, OperatorConfig, RecipeConfig, RunConfig
from nediff.data import atomic_path


def write_card(folder: Path, config: RunConfig) -> None:
    """Write README.md into the run folder."""
    with atomic_path(folder / "README.md") as temporary:
        temporary.write_text(card_text(config), encoding="utf-8")


def card_text(config: RunConfig) -> str:
    """What this run is, what it was trained on, and how to use it."""
    data, network, training = config.data, config.network, config.training
    return f"""# A nediff restorer

Removes noise of {_noise(data)} from images with {data.channels} channel(s) and the intensity range
[{data.low:g}, {data.high:g}] ({data.range_chosen}), and draws posterior samples of them.
{_operator(config.operator)}
- Trained on: {data.images} images, {_origin(config)}.
- Network: `{network.size}`, kind `{network.kind}`.
- Recipe: `{config.recipe.name}` ({_recipe(config.recipe)}),
  {training.steps} steps of {training.batch} {_crops(config)}, seed {training.seed}.
- nediff {config.version}; every setting is in `config.yaml`.

    nediff restore THIS_FOLDER IMAGES --out restored --samples 8

It expects images like those it was trained on, with the same kind and strength of noise:
{_kind(config)}. On other images or other noise the result, and its
error bars, mean little. `nediff evaluate THIS_FOLDER IMAGES` says how it does on yours.
"""


def _noise(data: DataConfig) -> str:
    """How strong it is, in both units."""
    scale = data.high - data.low
    if (photons := data.photons) is not None:
        return (
            f"photons (gain {photons.gain:g}, read noise {photons.read_noise:g}, offset "
            f"{photons.offset:g} in the data's\nunits{_estimated(data)}; σ = {data.sigma:.4g} "
            "where it is stabilised)"
        )
    if data.sigmas is None:
        return (
            f"σ = {data.sigma:.4g} of the intensity range ({data.sigma * scale:.4g} in the\n"
            f"data's units{_known(data)})"
        )
    least = data.sigmas.least
    return (
        f"σ from {least:.4g} to {data.sigma:.4g} of the intensity range ({least * scale:.4g} to "
        f"{data.sigma * scale:.4g}\nin the data's units; say which with --sigma)"
    )


def _estimated(data: DataConfig) -> str:
    known = data.sigma_known
    return ", estimated from the data" if known is not None and known.how == "estimated" else ""


def _known(data: DataConfig) -> str:
    """How σ came to be known, unless it was given."""
    known = data.sigma_known
    if known is None or known.error is None:
        return ""
    by = " by a network" if known.how == "learned" else ""
    words = f"; {known.how} from the data{by}, ± {known.error:.2g} of the range"
    if known.bound is not None:
        words += f", at most {known.bound:.4g}"
    return words


def _kind(config: RunConfig) -> str:
    if config.operator.coloured:
        return "Gaussian, independent of the signal, correlated between neighbouring pixels"
    if config.data.photons is not None:
        return "Poisson and Gaussian, each pixel by itself"
    return "white, Gaussian, independent of the signal"


def _origin(config: RunConfig) -> str:
    data = config.data
    measured = "measurements" if config.operator.kind != "denoising" else "images"
    if config.recipe.loss == "supervised":
        return f"pairs of clean images and noisy {measured} (the supervised baseline)"
    if config.recipe.loss == "ambient":
        return "simulated measurements WITHOUT noise (the Ambient Diffusion baseline)"
    if data.simulate is not None:
        by = "" if measured == "images" else " and a simulated instrument"
        what = f"noise (σ = {data.simulate:g})" if data.photons is None else "photons"
        return f"clean images with simulated {what}{by}"
    return f"noisy {measured} alone; no clean image was used"


def _crops(config: RunConfig) -> str:
    whole = config.operator.kind in ("mri", "physics")
    return "whole measurements" if whole else f"crops of {config.training.crop} pixels"


def _recipe(recipe: RecipeConfig) -> str:
    words = [f"loss `{recipe.loss}`", f"pooled by {', '.join(map(str, recipe.pool))}"]
    if recipe.hide:
        most = "" if recipe.loss == "ambient" else "up to "
        words.append(f"{most}{recipe.hide:.0%} of the measured values hidden")
    if recipe.loss == "cd":
        words.append(f"noise levels up to {recipe.sigma_max_ratio:g} σ")
        words.append(f"consistency term of weight {recipe.consistency:g}")
    if recipe.ei:
        group = f" over `{recipe.group}`" if recipe.group else ""
        words.append(f"equivariance term{group} of weight {recipe.ei:g}")
    return ", ".join(words)


def _operator(operator: OperatorConfig) -> str:
    """What the images are measurements of, as a paragraph; nothing for denoising."""
    words = {
        "inpainting": "The images are **incomplete**: one fixed mask says which pixels are\n"
        "measured. The others are zero in the data, and are filled in.",
        "demosaicing": "The images are **Bayer mosaics**, one colour per pixel"
        f"{' (raw, of one channel)' if operator.raw else ' (three channels, zero elsewhere)'}.\n"
        "The missing colours are filled in.",
        "blur": "The images are **blurred** by a known kernel, which is undone.",
        "super_resolution": f"The images are **coarse**: restored ones have {operator.stride} "
        f"times as many\nrows and columns.",
        "mri": "The data are **k-space** of single-coil MRI, sampled in part, two channels: real "
        "and\nimaginary. What comes out is the complex image, two channels too.",
        "physics": "The images are measured by a deepinv **physics**, which must be given again: "
        "load\nthis folder in Python with `nediff.load(folder, physics=...)`.",
    }
    if operator.kind == "denoising":
        return ""
    kept = "" if operator.kind == "physics" else " The operator is in `operator.safetensors`."
    return f"""
{words[operator.kind]}{kept}

Posterior samples are drawn of what the instrument measures. What it does not see gets its mean
given the rest, and noise of the size that was learned for it (`spread.safetensors`): right pixel by
pixel, not as a texture.
"""
