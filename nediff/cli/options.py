"""The choices and options of the commands; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer

from nediff.cli.console import be_quiet, prefer_json
from nediff.cli.shown import one_of

RECIPES = ("default", "paper", "sure", "supervised", "cd", "ei", "ambient")
EXPERIMENTS = (
    "theorem",
    "fig-patch-norms",
    "fig-denoise-levels",
    "table1",
    "table2",
    "fig-sample-complexity",
    "ablations",
    "fig-spectra",
    "fig-examples",
    "claims",
)
"""Names for the shell to complete, which must be quick: nothing is imported to find them."""


def completing(names: Sequence[str]) -> Callable[[str], list[str]]:
    """What there is that begins like what was typed."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


class UnitsName(str, Enum):
    """What a noise level is measured in."""

    fraction = "fraction"
    data = "data"


class ScaleName(str, Enum):
    """How large the experiments of `reproduce` are."""

    tiny = "tiny"
    cpu = "cpu"
    paper = "paper"


class Size(str, Enum):
    """Network sizes."""

    tiny = "tiny"
    small = "small"
    base = "base"
    paper = "paper"


class Precision(str, Enum):
    """What a training step computes its convolutions in."""

    fp32 = "fp32"
    bf16 = "bf16"


class Kind(str, Enum):
    """Network kinds. For ablations: standardised and homogeneous, which are exactly equivariant,
    and uncentred, which keeps the mean of an image."""

    edm = "edm"
    unrolled = "unrolled"
    standardised = "standardised"
    homogeneous = "homogeneous"
    uncentred = "uncentred"


class Operator(str, Enum):
    """What the instrument measures of an image."""

    denoising = "denoising"
    inpainting = "inpainting"
    demosaicing = "demosaicing"
    blur = "blur"
    super_resolution = "super_resolution"
    mri = "mri"


class Pattern(str, Enum):
    """Bayer patterns: the colours of the first 2 × 2 pixels."""

    RGGB = "RGGB"
    BGGR = "BGGR"
    GRBG = "GRBG"
    GBRG = "GBRG"


class Group(str, Enum):
    """Invariances of images (groups.py)."""

    shifts = "shifts"
    turns = "turns"
    shifts_and_turns = "shifts_and_turns"
    any_angle = "any_angle"


class Tracker(str, Enum):
    """Where curves of a training may go."""

    tensorboard = "tensorboard"
    wandb = "wandb"


class Solver(str, Enum):
    """Posterior solvers (METHOD.md §4)."""

    dpm2m = "dpm2m"
    heun = "heun"
    euler = "euler"
    ancestral = "ancestral"
    paper = "paper"


def a_seed(value: int | None) -> int | None:
    """A whole number of 32 bits."""
    if value is not None and not 0 <= value < 2**32:
        raise typer.BadParameter(f"{value} is no seed; give one from 0 to {2**32 - 1}")
    return value


RangeOption = Annotated[
    Optional[tuple[float, float]],  # noqa: UP045 - typer needs it on Python 3.10
    typer.Option(
        "--range",
        metavar="LOW HIGH",
        help="Intensity range of the data. Default: (0, 1) for floats, robust percentiles "
        "for integers; printed and recorded.",
    ),
]
_LEVEL = (
    "a number, as a fraction of the intensity range (or see --units); or a CSV file with the "
    "columns name and sigma, a row for each image"
)
SigmaOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        metavar="LEVEL",
        help=f"Noise level σ: {_LEVEL}.",
    ),
]
ToldOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--sigma",
        metavar="LEVEL",
        help=f"Noise level σ: {_LEVEL}. Or auto: estimated. Or learn: by a small network first. "
        "Or correlated: estimated, for noise that goes on from pixel to pixel.",
    ),
]
UnitsOption = Annotated[
    UnitsName,
    typer.Option(
        metavar="NAME",
        help="What a noise level is in: fraction (of the range) or data (its units).",
    ),
]
_PHOTONS = "Noise of photons, instead of --sigma, in the units of the data"
GainOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        metavar="NUMBER",
        help="Where noise grows with the signal: data units per photon; or auto, to be estimated "
        "with the read noise.",
        rich_help_panel=_PHOTONS,
    ),
]
ReadNoiseOption = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(
        metavar="NUMBER",
        help="Standard deviation of the noise without light; 0 unless told.",
        rich_help_panel=_PHOTONS,
    ),
]
OffsetOption = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(
        metavar="NUMBER", help="Mean value without light; 0 unless told.", rich_help_panel=_PHOTONS
    ),
]
JsonOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--json",
        metavar="[FILE]",
        callback=prefer_json,
        help="Write the result for programs to this file; alone or with -, to standard output, "
        "in place of words.",
    ),
]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", callback=be_quiet, help="No progress, no remarks; results and warnings."
    ),
]
TrackOption = Annotated[
    Optional[list[Tracker]],  # noqa: UP045
    typer.Option(
        metavar="NAME",
        help="Also tell wandb (Weights & Biases), or tensorboard the settings; may be repeated. "
        "Curves for TensorBoard are always in the run folder.",
    ),
]
AxesOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        metavar="LETTERS", help="Order of the axes of arrays and stacks, such as NHWC, CHW or NHW."
    ),
]
_OPERATOR = "The operator"
SeedOption = Annotated[
    int, typer.Option(metavar="NUMBER", callback=a_seed, help="Seed of all randomness.")
]
SamplesOption = Annotated[
    int,
    typer.Option(
        metavar="NUMBER", min=0, max=10_000, help="Posterior samples of each image, 0 for none."
    ),
]
"""A million is a slip."""

HtmlOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--html", metavar="FILE", help="Write a page with charts to this file."),
]

OperatorOption = Annotated[
    Optional[Operator],  # noqa: UP045
    typer.Option(
        metavar="NAME",
        help=f"What DATA measure of the images: {one_of(Operator)}; denoising unless told.",
        rich_help_panel=_OPERATOR,
    ),
]
MaskOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        metavar="FILE",
        help="inpainting, mri: PNG, TIFF or NPY, nonzero where measured; for mri the sampled "
        "part of k-space (H, W), or its columns (W,), zero frequency in the middle.",
        rich_help_panel=_OPERATOR,
    ),
]
MaskFractionOption = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(
        metavar="NUMBER",
        help="inpainting, mri: instead, a random mask that measures this share of the pixels, "
        "or of the columns of k-space.",
        rich_help_panel=_OPERATOR,
    ),
]
MaskSeedOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        metavar="NUMBER",
        callback=a_seed,
        help="Seed of the random mask; 0 unless told.",
        rich_help_panel=_OPERATOR,
    ),
]
PatternOption = Annotated[
    Optional[Pattern],  # noqa: UP045
    typer.Option(
        case_sensitive=False,
        metavar="NAME",
        help=f"demosaicing: the colours of the first 2 × 2 pixels, {one_of(Pattern)}. DATA are "
        "raw mosaics of one channel, or three channels that are zero where not measured.",
        rich_help_panel=_OPERATOR,
    ),
]
KernelOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        metavar="FILE",
        help="blur, super_resolution: what images are convolved with (NPY, TIFF or PNG), scaled "
        "to sum 1.",
        rich_help_panel=_OPERATOR,
    ),
]
FactorOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        metavar="NUMBER",
        help="super_resolution: how many times finer; without --kernel, pixels are means.",
        rich_help_panel=_OPERATOR,
    ),
]
GroupOption = Annotated[
    Optional[Group],  # noqa: UP045
    typer.Option(
        metavar="NAME",
        help=f"The invariance of the equivariance term: {one_of(Group)}; one chosen for the "
        "operator unless told.",
        rich_help_panel=_OPERATOR,
    ),
]
EiOption = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(
        metavar="NUMBER",
        help="Weight of the equivariance term; that of the recipe unless told.",
        rich_help_panel=_OPERATOR,
    ),
]
