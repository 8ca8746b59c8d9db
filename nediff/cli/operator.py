"""What the instrument measures, from the options of the command line."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from nediff.config import RecipeConfig, RunConfig
from nediff.data import Measurements, read_plain
from nediff.data.layout import Array
from nediff.errors import NediffError
from nediff.operators import Convolution
from nediff.problem import PATTERNS, Problem, cartesian_mask, random_mask
from nediff.recipes import recipe_named

_MASK = ("mask", "mask_fraction", "mask_seed")
_BELONG = {
    "denoising": (),
    "inpainting": (*_MASK, "group", "ei"),
    "demosaicing": ("pattern", "group", "ei"),
    "blur": ("kernel", "group", "ei"),
    "super_resolution": ("factor", "kernel", "group", "ei"),
    "mri": (*_MASK, "group", "ei"),
}
"""The options of each operator."""


@dataclass(frozen=True)
class OperatorOptions:
    """What the user said of the instrument; None where nothing was said."""

    operator: str | None = None
    mask: Path | None = None
    mask_fraction: float | None = None
    mask_seed: int | None = None
    pattern: str | None = None
    kernel: Path | None = None
    factor: int | None = None
    group: str | None = None
    ei: float | None = None

    @property
    def kind(self) -> str:
        """The operator: denoising unless told."""
        return self.operator or "denoising"

    def given(self) -> list[str]:
        """Which options of an operator were given."""
        names = [field.name for field in fields(self) if field.name != "operator"]
        return [name for name in names if getattr(self, name) is not None]


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


# --- options that do not fit ----------------------------------------------------------------------


def refuse_misplaced(options: OperatorOptions, kind: str) -> None:
    """Options that belong to another operator, or that make no sense by themselves."""
    for name in options.given():
        if name not in _BELONG.get(kind, ()):
            homes = [home for home, names in _BELONG.items() if name in names]
            raise NediffError(
                f"{_option(name)} does not belong to --operator {kind}, only to "
                f"{', '.join(homes)}; leave it out, or say which operator it is."
            )
    if options.mask is not None and options.mask_fraction is not None:
        raise NediffError("Give --mask or --mask-fraction, not both.")
    if options.mask_seed is not None and options.mask_fraction is None:
        raise NediffError("--mask-seed is the seed of a random mask; give --mask-fraction too.")
    if options.mask_fraction is not None and not 0 < options.mask_fraction < 1:
        raise NediffError(
            f"--mask-fraction {options.mask_fraction:g} is not a fraction between 0 and 1: it is "
            "the measured share."
        )
    if options.factor is not None and options.factor < 2:
        raise NediffError(f"--factor must be 2 or more, not {options.factor}.")
    if options.ei is not None and not 0 <= options.ei < math.inf:
        raise NediffError(f"--ei must be 0 or more, and finite, not {options.ei:g}.")


def refuse_missing(options: OperatorOptions, simulated: bool) -> None:
    """Options without which the instrument is not known."""
    kind = options.kind
    if kind in ("inpainting", "mri") and options.mask is None and options.mask_fraction is None:
        what = "which pixels are measured" if kind == "inpainting" else "which part of k-space is"
        raise NediffError(
            f"--operator {kind} needs to know {what}: give --mask FILE (nonzero = measured), or "
            "--mask-fraction for a random one."
        )
    if kind == "demosaicing" and options.pattern is None and not simulated:
        raise NediffError(
            "--operator demosaicing needs the colours of the first 2 × 2 pixels: give --pattern "
            f"{', '.join(PATTERNS[:-1])} or {PATTERNS[-1]}."
        )
    if kind == "blur" and options.kernel is None:
        raise NediffError("--operator blur needs its kernel: give --kernel FILE.")
    if kind == "super_resolution" and options.factor is None:
        raise NediffError(
            "--operator super_resolution needs to know how many times finer the image is to be: "
            "give --factor."
        )


def refuse_other_operator(
    options: OperatorOptions, config: RunConfig, problem: Problem, out: Path
) -> None:
    """A run is gone on with by the instrument it was begun with."""
    refuse_misplaced(options, config.operator.kind)
    recorded = {
        "operator": config.operator.kind,
        "group": config.recipe.group,
        "ei": config.recipe.ei,
    }
    for name, then in recorded.items():
        now = getattr(options, name)
        if now not in (None, then):
            was = "without it" if then is None else f"with {then}"
            raise _begun_otherwise(out, was, f"{_option(name)} {now}")
    for name in ("mask", "mask_fraction", "pattern", "kernel", "factor"):
        now = getattr(options, name)
        if now is not None and _differs(name, options, problem):
            raise _begun_otherwise(
                out, f"with another {name.split('_')[0]}", f"{_option(name)} {now}"
            )


def _begun_otherwise(out: Path, was: str, now: str) -> NediffError:
    return NediffError(
        f"{out} was begun {was}, not with {now}; resume it with the options it was begun with, "
        "or choose another folder with --out."
    )


def _differs(name: str, options: OperatorOptions, problem: Problem) -> bool:
    """Whether this option makes another operator than that of the run."""
    operator = problem.operator
    if isinstance(operator, Convolution):
        if name == "factor":
            return options.factor != operator.stride
        options = replace(options, factor=operator.stride)
    options = replace(options, operator=problem.kind)
    size = operator.fixed_size or (1, 1)
    return build_problem(options, problem.channels, size, problem.raw).operator != operator


# --- the instrument -------------------------------------------------------------------------------


def problem_of(options: OperatorOptions, images: Measurements, simulated: bool) -> Problem:
    """The instrument for these data, as yet without its noise level (σ = 1).

    With ``simulated`` the images are clean and are yet to be measured.
    """
    channels, kind = images.channels, options.kind
    first = images.name(0)
    if kind == "demosaicing" and channels != 3 and (simulated or channels != 1):
        wanted = "3 channels" if simulated else "3 channels, or 1 if they are raw mosaics"
        raise NediffError(f"{first} has {channels} channel(s); for demosaicing it needs {wanted}.")
    if kind == "mri" and channels not in ((1, 2) if simulated else (2,)):
        what = "images of 1 channel (convert them to grey)" if simulated else "k-space"
        raise NediffError(
            f"{first} has {channels} channel(s); for mri it must be {what}, or have two channels, "
            "the real and the imaginary part (.npy files may hold complex numbers)."
        )
    problem = build_problem(options, channels, images.size(0), raw=channels == 1)
    if simulated:
        refuse_small(images, problem)
    return problem


def build_problem(
    options: OperatorOptions, channels: int, size: tuple[int, int], raw: bool
) -> Problem:
    """The instrument of the options, with σ = 1; ``size`` is that of a measurement by a mask."""
    kind, sigma = options.kind, 1.0
    if kind == "denoising":
        return Problem.denoising(sigma, channels)
    if kind == "demosaicing":
        return Problem.demosaicing(sigma, options.pattern or PATTERNS[0], raw)
    if kind in ("inpainting", "mri"):
        return _masked(options, channels, size)
    kernel = None
    if options.kernel is not None:
        kernel = _file_values(options.kernel)
    if kind == "blur":
        assert kernel is not None  # refuse_missing
        return _naming(options.kernel, lambda: Problem.blur(kernel, sigma, channels))
    factor = options.factor or 1
    if kernel is not None and min(kernel.shape) < factor:
        raise NediffError(
            f"{options.kernel} is smaller than the factor of {factor}: pixels between its places "
            "would never be measured; give a larger kernel."
        )
    return _naming(
        options.kernel, lambda: Problem.super_resolution(factor, sigma, channels, kernel)
    )


def _masked(options: OperatorOptions, channels: int, size: tuple[int, int]) -> Problem:
    """Inpainting or MRI, by a mask file or a random mask."""
    kind, seed, fraction = options.kind, options.mask_seed or 0, options.mask_fraction
    if options.mask is None:
        assert fraction is not None  # refuse_missing
        if kind == "mri":
            return Problem.mri(cartesian_mask(size, 1 / fraction, seed), 1.0)
        return Problem.inpainting(random_mask(fraction, size, seed), 1.0, channels)
    values = _file_values(options.mask)
    if kind == "mri":
        if values.ndim == 2 and len(values) > 1:
            return _naming(options.mask, lambda: Problem.mri(values, 1.0))
        columns = values.reshape(-1)
        return _naming(options.mask, lambda: Problem.mri(columns, 1.0, height=size[0]))
    if bool((values != 0).all()):
        raise NediffError(
            f"{options.mask} is nonzero everywhere, so that nothing is missing; a mask is 0 where "
            "nothing is measured."
        )
    return _naming(options.mask, lambda: Problem.inpainting(values, 1.0, channels))


def _file_values(path: Path) -> Array:
    values = read_plain(path)
    return values.astype(np.float64) if values.dtype.kind != "b" else values


def _naming(path: Path | None, make: Callable[[], Problem]) -> Problem:
    """Say which file it is that does not fit."""
    try:
        return make()
    except NediffError as error:
        raise NediffError(f"{path}: {error}" if path else str(error)) from error


def refuse_small(images: Measurements, problem: Problem) -> None:
    """A kernel must fit into every image that is to be measured by it."""
    if not isinstance(problem.operator, Convolution):
        return
    rows, columns = problem.operator.kernel.shape[-2:]
    for i in range(len(images)):
        height, width = images.size(i)
        if height < rows or width < columns:
            raise NediffError(
                f"{images.name(i)} has {width} × {height} pixels, fewer than the kernel, which has "
                f"{columns} × {rows}; leave it out."
            )


def recipe_of(options: OperatorOptions, name: str | RecipeConfig) -> RecipeConfig:
    """The recipe for the operator, with the user's --group and --ei."""
    recipe = recipe_named(name, options.kind)
    changes = {"ei": options.ei, "group": options.group}
    said = {key: value for key, value in changes.items() if value is not None}
    recipe = RecipeConfig.model_validate(recipe.model_dump() | said)
    if options.group is not None and recipe.ei == 0:
        raise NediffError(
            f"--group {options.group} is for the equivariance term, which the recipe "
            f"'{recipe.name}' does not have for {options.kind}; give it a weight with --ei, or "
            "leave --group out."
        )
    return recipe
