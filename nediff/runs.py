"""The run folder: what a user keeps, in safe files only (YAML, safetensors, CSV, Markdown).

config.yaml          every setting; the run can be repeated from it
model.safetensors    the best weights by the held-out noisy images
operator.safetensors the mask or kernel of the instrument, if it has one
sigmas.csv           the noise level of each training image, where they differ (unit intensities)
state/               what `--resume` needs
metrics.csv          what happened; tensorboard/ the same for TensorBoard
README.md            a card: what this is and how to use it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from nediff.config import OperatorConfig, RunConfig
from nediff.data import (
    IntensityRange,
    PhotonNoise,
    Sigmas,
    StabilisedRange,
    atomic_path,
    read_sigmas,
)
from nediff.errors import NediffError
from nediff.operators import Colour, Coloured, Convolution, Fourier, LinearOperator, Mask
from nediff.problem import Problem

CONFIG_FILE = "config.yaml"
WEIGHTS_FILE = "model.safetensors"
OPERATOR_FILE = "operator.safetensors"
SIGMAS_FILE = "sigmas.csv"


def save_config(folder: Path, config: RunConfig) -> None:
    """Write config.yaml; the folder is made if need be."""
    make_folder(folder)
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    with atomic_path(folder / CONFIG_FILE) as temporary:
        temporary.write_text(text, encoding="utf-8")


def load_config(folder: Path) -> RunConfig:
    """Read and validate config.yaml."""
    path = folder / CONFIG_FILE
    if not folder.is_dir():
        raise NediffError(f"{folder} is not a run folder: there is no such folder.")
    if not path.is_file():
        raise NediffError(f"{folder} is not a run folder: it has no {CONFIG_FILE}.")
    try:
        config = RunConfig.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        range_of(config)
        return config
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NediffError(f"{path} is not valid YAML ({_first_line(error)}).") from error
    except ValidationError as error:
        raise NediffError(f"{path} is not a valid run: {complaint(error)}.") from error
    except NediffError as error:
        raise NediffError(f"{path} is not a valid run: {error}") from error


def range_of(config: RunConfig) -> IntensityRange:
    """How the numbers of the data become unit intensities."""
    data = config.data
    if data.photons is None:
        return IntensityRange(data.low, data.high)
    photons = data.photons
    noise = PhotonNoise(photons.gain, photons.read_noise, photons.offset)
    return StabilisedRange(data.low, data.high, noise)


def save_sigmas(folder: Path, sigmas: Sigmas) -> None:
    """Write sigmas.csv."""
    make_folder(folder)
    with atomic_path(folder / SIGMAS_FILE) as temporary:
        temporary.write_text(sigmas.to_csv(), encoding="utf-8")


def load_sigmas(folder: Path, config: RunConfig, images: Iterable[tuple[str, str]]) -> Sigmas:
    """The noise levels a run was begun with, of ``images`` as in `read_sigmas`."""
    path = folder / SIGMAS_FILE
    sigmas = read_sigmas(path, images)
    recorded = config.data.sigmas
    if recorded is None or sigmas.fingerprint != recorded.fingerprint:
        raise NediffError(f"{path} is not what this run was begun with: its levels have changed.")
    return sigmas


def save_weights(folder: Path, weights: dict[str, Tensor]) -> None:
    """Write model.safetensors."""
    write_tensors(folder / WEIGHTS_FILE, weights)


def load_weights(folder: Path, model: nn.Module) -> None:
    """Fill ``model`` from model.safetensors, checking every name and shape."""
    path = folder / WEIGHTS_FILE
    tensors, _ = read_tensors(path)
    expected = dict(model.named_parameters())
    if missing := sorted(expected.keys() ^ tensors.keys()):
        raise NediffError(f"{path} does not fit the network of this run: '{missing[0]}' differs.")
    with torch.no_grad():
        for name, parameter in expected.items():
            copy_checked(parameter, tensors[name], name, path)


def save_problem(folder: Path, problem: Problem) -> None:
    """Write operator.safetensors, if the operator has anything to keep."""
    if arrays := problem.operator.arrays():
        write_tensors(folder / OPERATOR_FILE, arrays)


def load_problem(folder: Path, config: RunConfig, physics: Any = None) -> Problem:
    """The instrument of a run. A deepinv physics cannot be kept in a file and must be given."""
    path = folder / OPERATOR_FILE
    settings, sigma, channels = config.operator, config.data.sigma, config.network.channels
    if settings.kind == "denoising" and not settings.coloured:
        return Problem.denoising(sigma, channels)
    if settings.kind == "physics":
        return _given_physics(folder, config, physics)
    tensors, _ = read_tensors(path)
    try:
        operator = build_operator(config, tensors)
    except (KeyError, ValueError) as error:
        raise NediffError(f"{path} does not fit the operator of this run ({error}).") from error
    return Problem(sigma, channels, operator, settings.raw)


def _given_physics(folder: Path, config: RunConfig, physics: Any) -> Problem:
    if physics is None:
        raise NediffError(
            f"{folder} was trained with a physics of your own, which no file can hold: load it "
            "in Python with nediff.load(folder, physics=...)."
        )
    shape = config.operator.image_shape
    if shape is None:
        raise NediffError(f"The {CONFIG_FILE} of {folder} does not say the shape of its images.")
    return Problem.from_physics(physics, config.data.sigma, shape)


def build_operator(config: RunConfig, arrays: Mapping[str, Tensor]) -> LinearOperator:
    """The operator of a run and the arrays kept beside it; a ValueError says what is wrong."""
    settings = config.operator
    if settings.coloured:
        return Coloured(_colour(arrays["frequency"], arrays["power"], config.network.channels))
    if settings.kind in ("blur", "super_resolution"):
        return Convolution(_kernel(arrays["kernel"]), settings.stride, settings.kind)
    if settings.kind == "mri":
        return Fourier(_mask(arrays["mask"], 2))
    mask = _mask(arrays["mask"], 4)
    _check_pixels(mask, config)
    return Mask(mask, settings.kind, settings.periodic)


def _kernel(kernel: Tensor) -> Tensor:
    if kernel.ndim != 2:
        raise ValueError(f"a kernel of shape {tuple(kernel.shape)}")
    if not (torch.isfinite(kernel).all() and kernel.sum() > 0):
        raise ValueError("a kernel that is not finite or has no positive sum")
    return kernel


def _colour(frequency: Tensor, power: Tensor, channels: int) -> Colour:
    if frequency.ndim != 1 or power.shape != (len(frequency), channels, channels):
        raise ValueError(f"a spectrum of shape {tuple(power.shape)} for {channels} channel(s)")
    if not (torch.isfinite(power).all() and (frequency.diff() > 0).all()):
        raise ValueError("a spectrum that is not finite, or whose frequencies do not increase")
    return Colour(frequency.double().numpy(), power.double().numpy())


def _mask(mask: Tensor, axes: int) -> Tensor:
    if mask.ndim != axes:
        raise ValueError(f"a mask of shape {tuple(mask.shape)}")
    if not ((mask == 0) | (mask == 1)).all():
        raise ValueError("a mask with other values than 0 and 1")
    if not mask.any():
        raise ValueError("a mask that is zero everywhere")
    return mask


def _check_pixels(mask: Tensor, config: RunConfig) -> None:
    """A mask of pixels belongs to the channels of the run, and is no smaller than its crops."""
    count, channels, height, width = mask.shape
    if count != 1 or channels != config.network.channels:
        raise ValueError(
            f"a mask of shape {tuple(mask.shape)} for {config.network.channels} channel(s)"
        )
    if config.operator.kind == "demosaicing":
        if (height, width) != (2, 2) or not (mask.sum(dim=1) == 1).all():
            raise ValueError("a mask that is no Bayer pattern of 2 × 2 pixels")
    elif min(height, width) < config.training.crop:
        raise ValueError(f"a mask of {width} × {height} pixels for crops of {config.training.crop}")


def describe_operator(problem: Problem) -> OperatorConfig:
    """What config.yaml keeps of the instrument."""
    settings = problem.operator.settings()
    return OperatorConfig.model_validate({"kind": problem.kind, "raw": problem.raw, **settings})


def copy_checked(target: Tensor, source: Tensor, name: str, path: Path) -> None:
    """target ← source if the shapes agree, else a sentence."""
    if target.shape != source.shape:
        raise NediffError(
            f"{path} does not fit this network: '{name}' has shape {tuple(source.shape)}, "
            f"expected {tuple(target.shape)}."
        )
    if not torch.isfinite(source).all():
        raise NediffError(f"{path} is corrupt: '{name}' holds values that are not finite.")
    target.copy_(source)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file whole or not at all; the folder is made if need be."""
    make_folder(path.parent)
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with atomic_path(path) as temporary:
        try:
            save_file(plain, temporary, metadata=metadata)
        except SafetensorError as error:  # how it reports a full or read-only disk
            raise OSError(_first_line(error)) from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and the metadata of a safetensors file, or a sentence on what is wrong."""
    if not path.is_file():
        raise NediffError(f"{path} is missing: the run has not got that far, or lost it.")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {k: file.get_tensor(k) for k in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise NediffError(f"{path} is corrupt ({_first_line(error)}).") from error


def complaint(error: ValidationError) -> str:
    """The first thing pydantic found wrong, in half a sentence."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the settings"
    return f"{where}: {first['msg']}"


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, or say why not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise NediffError(f"Cannot make the folder {folder}: {reason}.") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
