"""The run folder: what a user keeps, in safe files only (YAML, safetensors, CSV, Markdown).

config.yaml          every setting; the run can be repeated from it
model.safetensors    the best weights by the held-out noisy images
operator.safetensors the mask or kernel of the instrument, if it has one
sigmas.csv           the noise level of each training image, where they differ (unit intensities)
state/               what `--resume` needs: the newest state and the one before it, and copies of
                     config.yaml, operator.safetensors and sigmas.csv
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
from nediff.errors import NediffError, did_you_mean_path
from nediff.keeping import (
    Damaged,
    copy_whole,
    first_line,
    first_whole,
    read_sealed,
    read_tensors,
    sealed,
    write_tensors,
)
from nediff.operators import Colour, Coloured, Convolution, Fourier, LinearOperator, Mask
from nediff.problem import Problem

CONFIG_FILE = "config.yaml"
HUB_CONFIG_FILE = "config.json"
"""The same where a run was published (hub.py); JSON is YAML."""
WEIGHTS_FILE = "model.safetensors"
OPERATOR_FILE = "operator.safetensors"
SIGMAS_FILE = "sigmas.csv"


STATE_FOLDER = "state"


def spare_of(path: Path) -> Path:
    """Where a run keeps a copy of a file that cannot be made again."""
    return path.parent / STATE_FOLDER / path.name


def keep_spares(folder: Path) -> None:
    """Copies of the files that a run cannot go on without; config.yaml last."""
    for name in (SIGMAS_FILE, OPERATOR_FILE, CONFIG_FILE):
        if (folder / name).is_file():
            copy_whole(folder / name, spare_of(folder / name))


def holds_run(folder: Path) -> bool:
    """Whether there is a run, if only by the copy of its settings."""
    return (folder / CONFIG_FILE).exists() or spare_of(folder / CONFIG_FILE).is_file()


def save_config(folder: Path, config: RunConfig) -> None:
    """Write config.yaml; the folder is made if need be."""
    make_folder(folder)
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    with atomic_path(folder / CONFIG_FILE) as temporary:
        temporary.write_bytes(sealed(text).encode())


def load_config(folder: Path) -> RunConfig:
    """Read and validate config.yaml, or its copy if it is damaged."""
    path = folder / CONFIG_FILE
    if not folder.is_dir():
        raise NediffError(
            f"{folder} is not a run folder: there is no such folder.{did_you_mean_path(folder)}"
        )
    if holds_run(folder):
        return first_whole([path, spare_of(path)], _read_config, "this copy is used instead")
    if not (folder / HUB_CONFIG_FILE).is_file():
        raise NediffError(
            f"{folder} is not a run folder: it has no {CONFIG_FILE}.{_runs_inside(folder)}"
        )
    return _read_config(folder / HUB_CONFIG_FILE)


def _read_config(path: Path) -> RunConfig:
    try:
        values = yaml.safe_load(read_sealed(path))
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        # numbers and dates that Python cannot hold are a ValueError
        raise Damaged(f"{path} is not valid YAML ({first_line(error)}).") from error
    try:
        config = RunConfig.model_validate(values)
        range_of(config)
        return config
    except ValidationError as error:
        raise NediffError(f"{path} is not a valid run: {complaint(error)}.") from error
    except NediffError as error:
        raise NediffError(f"{path} is not a valid run: {error}") from error


def _runs_inside(folder: Path) -> str:
    """' Did you mean …?' with the runs directly in a folder that is none itself."""
    runs = sorted(str(path.parent) for path in folder.glob(f"*/{CONFIG_FILE}"))
    return f" Did you mean {' or '.join(runs[:3])}?" if runs else ""


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
    path, images, recorded = folder / SIGMAS_FILE, list(images), config.data.sigmas

    def read(place: Path) -> Sigmas:
        try:
            sigmas = read_sigmas(place, images)
        except NediffError as error:
            raise Damaged(str(error)) from error
        if recorded is None or sigmas.fingerprint != recorded.fingerprint:
            raise Damaged(f"{place} is not what this run was begun with: its levels have changed.")
        return sigmas

    return first_whole([path, spare_of(path)], read, "this copy is used instead")


def save_weights(folder: Path, weights: dict[str, Tensor]) -> None:
    """Write model.safetensors."""
    write_tensors(folder / WEIGHTS_FILE, weights)


def load_weights(folder: Path, model: nn.Module) -> None:
    """Fill ``model`` from model.safetensors, checking every name and shape."""
    path = folder / WEIGHTS_FILE
    try:
        tensors, _ = read_tensors(path)
    except Damaged as error:
        if not (folder / STATE_FOLDER).is_dir():
            raise
        raise Damaged(f"{error} The training command with --resume writes it anew.") from error
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
    tensors, _ = first_whole([path, spare_of(path)], read_tensors, "this copy is used instead")
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
        raise Damaged(
            f"{path} does not fit this network: '{name}' has shape {tuple(source.shape)}, "
            f"expected {tuple(target.shape)}."
        )
    if not torch.isfinite(source).all():
        raise Damaged(f"{path} is corrupt: '{name}' holds values that are not finite.")
    target.copy_(source)


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
