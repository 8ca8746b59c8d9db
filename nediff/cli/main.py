"""`nediff`: the commands. Heavy imports happen inside them, so that --help is quick."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, NoReturn, Optional

import typer

from nediff import __version__
from nediff.cli.options import (
    AxesOption,
    EiOption,
    FactorOption,
    GainOption,
    GroupOption,
    KernelOption,
    Kind,
    MaskFractionOption,
    MaskOption,
    MaskSeedOption,
    OffsetOption,
    OperatorOption,
    PatternOption,
    RangeOption,
    ReadNoiseOption,
    ScaleName,
    SeedOption,
    SigmaOption,
    Size,
    Solver,
    ToldOption,
    UnitsName,
    UnitsOption,
)
from nediff.cli.signals import Interrupted, handling, interrupt
from nediff.errors import NediffError

app = typer.Typer(
    name="nediff",
    help="Restore images, with error bars, learned from your noisy images alone.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"nediff {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_print_version,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """What can be said before any command."""


@app.command()
def train(
    data: Annotated[str, typer.Argument(help="Noisy images: a folder, a glob or one file.")],
    out: Annotated[Path, typer.Option(help="The run folder to write.")],
    sigma: ToldOption = None,
    units: UnitsOption = UnitsName.fraction,
    minutes: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Time budget; 20 unless --steps is given."),
    ] = None,
    steps: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Number of training steps, instead of a time."),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(
            help="default, paper (NE-SURE), sure, or supervised; for denoising also cd, with an "
            "operator ei, with a mask ambient."
        ),
    ] = "default",
    size: Annotated[Size, typer.Option(help="Network size.")] = Size.small,
    kind: Annotated[
        Optional[Kind],  # noqa: UP045
        typer.Option(
            help="Network kind; unrolled uses the operator itself, several times. Unless told, "
            "what does best with the operator."
        ),
    ] = None,
    crop: Annotated[int, typer.Option(min=16, help="Side of the training crops.")] = 40,
    batch: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Crops per step: 16, or fewer whole measurements (MRI)."),
    ] = None,
    seed: SeedOption = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    simulate: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="NUMBER|CSV|photons",
            help="For experiments: DATA are clean; add noise of this level (photons: that of "
            "--gain) once, by the seed.",
        ),
    ] = None,
    gain: GainOption = None,
    read_noise: ReadNoiseOption = None,
    offset: OffsetOption = None,
    range_: RangeOption = None,
    axes: AxesOption = None,
    operator: OperatorOption = None,
    mask: MaskOption = None,
    mask_fraction: MaskFractionOption = None,
    mask_seed: MaskSeedOption = None,
    pattern: PatternOption = None,
    kernel: KernelOption = None,
    factor: FactorOption = None,
    group: GroupOption = None,
    ei: EiOption = None,
) -> None:
    """Learn to restore from noisy images alone.

    Writes config.yaml, model.safetensors, metrics.csv and what --resume needs into --out; the
    operator too, so that `nediff restore` needs nothing else.
    """
    from nediff.cli.levels import parse_simulated, parse_told, photons_of
    from nediff.cli.operator import OperatorOptions
    from nediff.cli.train import TrainRequest, run_train
    from nediff.training.fitting import Plan

    plan = Plan(minutes, steps, recipe, size.value, _value(kind), crop, batch, seed=seed)
    options = OperatorOptions(
        _value(operator),
        mask,
        mask_fraction,
        mask_seed,
        _value(pattern),
        kernel,
        factor,
        _value(group),
        ei,
    )
    request = TrainRequest(
        data,
        out,
        parse_told(sigma),
        units.value,
        parse_simulated(simulate),
        range_,
        axes,
        resume,
        plan,
        options,
        photons_of(gain, read_noise, offset),
    )
    raise typer.Exit(run_train(request))


def _value(choice: Enum | None) -> str | None:
    return None if choice is None else str(choice.value)


@app.command()
def diagnose(
    data: Annotated[str, typer.Argument(help="Noisy images: a folder, a glob or one file.")],
    json_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--json", help="Write the findings to this file."),
    ] = None,
    html_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--html", help="Write a page with charts to this file."),
    ] = None,
    range_: RangeOption = None,
    axes: AxesOption = None,
    seed: SeedOption = 0,
) -> None:
    """Look at noisy images before training: how strong is the noise, and what can be expected?

    Estimates σ, tests what training assumes (white noise that does not depend on the signal,
    images that come at many contrasts and scales), warns in plain words, and says what to type
    next.
    """
    from nediff.cli.diagnose import DiagnoseRequest, run_diagnose

    run_diagnose(DiagnoseRequest(data, json_file, html_file, range_, axes, seed))


@app.command()
def restore(
    run: Annotated[Path, typer.Argument(help="A run folder made by `nediff train`.")],
    images: Annotated[str, typer.Argument(help="Noisy images: a folder, a glob or one file.")],
    out: Annotated[Path, typer.Option(help="Where to write.")],
    samples: Annotated[int, typer.Option(min=0, help="Posterior samples per image.")] = 0,
    steps: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=2, help="Noise levels per sample."),
    ] = None,
    solver: Annotated[Solver, typer.Option(help="Posterior solver.")] = Solver.dpm2m,
    sigma: SigmaOption = None,
    units: UnitsOption = UnitsName.fraction,
    seed: SeedOption = 0,
    axes: AxesOption = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are there already.")
    ] = False,
) -> None:
    """Restore images, and draw posterior samples of them.

    Writes OUT/restored/<name> in the input's format and type and, with --samples,
    OUT/mean, OUT/sd and OUT/samples as float32 TIFF in the data's units. What the run was
    trained to undo (a mask, a mosaic, a blur ...) is in the run. An image that the input's format
    cannot hold, such as the colours of a raw mosaic in a grey JPEG, becomes a TIFF. Blurred
    images keep their frame: the border that only the kernel reached is cut off. From k-space
    come float32 images of two channels, the real and the imaginary part.

    Images of another noise level than that of the training: give it with --sigma.
    """
    from nediff.cli.levels import parse_level
    from nediff.cli.restore import RestoreRequest, run_restore

    run_restore(
        RestoreRequest(
            run,
            images,
            out,
            samples,
            steps,
            solver.value,
            seed,
            axes,
            overwrite,
            parse_level(sigma, "--sigma"),
            units.value,
        )
    )


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder made by `nediff train`.")],
    images: Annotated[str, typer.Argument(help="Noisy images (clean ones with --simulate).")],
    clean: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="The same images without noise, in the same order of names."),
    ] = None,
    simulate: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="NUMBER|CSV|photons",
            help="IMAGES are clean: corrupt them once with this noise level, or the photons and "
            "read noise of the run.",
        ),
    ] = None,
    sigma: SigmaOption = None,
    units: UnitsOption = UnitsName.fraction,
    samples: Annotated[int, typer.Option(min=0, help="Samples per image, 0 for none.")] = 8,
    json_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--json", help="Write the figures to this file."),
    ] = None,
    seed: SeedOption = 0,
    axes: AxesOption = None,
) -> None:
    """How good is it? PSNR, SSIM and calibration, or what noisy images alone can say."""
    from nediff.cli.evaluate import EvaluateRequest, run_evaluate
    from nediff.cli.levels import parse_level, parse_simulated

    run_evaluate(
        EvaluateRequest(
            run,
            images,
            clean,
            parse_simulated(simulate),
            units.value,
            samples,
            json_file,
            seed,
            axes,
            parse_level(sigma, "--sigma"),
        )
    )


@app.command()
def calibrate(
    run: Annotated[Path, typer.Argument(help="A run folder made by `nediff train`.")],
    images: Annotated[str, typer.Argument(help="Noisy images that it was not trained on.")],
    clean: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="The same without noise, if you have some: intervals checked by it."),
    ] = None,
    sigma: SigmaOption = None,
    units: UnitsOption = UnitsName.fraction,
    seed: SeedOption = 0,
    axes: AxesOption = None,
) -> None:
    """Put the error bars right, from noisy images alone; RUN remembers it."""
    from nediff.cli.calibrate import CalibrateRequest, run_calibrate
    from nediff.cli.levels import parse_level

    level = parse_level(sigma, "--sigma")
    run_calibrate(CalibrateRequest(run, images, clean, level, units.value, seed, axes))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to write the report.")] = Path("demo"),
    minutes: Annotated[float, typer.Option(help="Training time.")] = 3.0,
) -> None:
    """Train on noisy photographs for a few minutes and write a report worth looking at."""
    from nediff.cli.demo import run_demo

    run_demo(out, minutes)


@app.command()
def reproduce(
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(help="An experiment, or all; without it, a list of them."),
    ] = None,
    scale: Annotated[
        ScaleName, typer.Option(help="tiny: minutes. cpu: hours of two cores. paper: GPUs.")
    ] = ScaleName.tiny,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Where results go; reproduced/SCALE unless told."),
    ] = None,
    runs: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Where the trained networks go; OUT/runs unless told."),
    ] = None,
    data: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(envvar="NEDIFF_DATA", help="The folder with the image sets (not for tiny)."),
    ] = None,
    weights: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            envvar="NEDIFF_WEIGHTS", help="The folder with the networks of LPIPS and FID-768."
        ),
    ] = None,
    download: Annotated[
        bool,
        typer.Option(
            "--download", help="Without --weights: LPIPS and FID, their networks fetched."
        ),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Pieces at a time, a process each.")] = 1,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only list the pieces, their minutes and their state.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Only compare the tables in OUT with its pieces, and these with its networks.",
        ),
    ] = False,
    piece: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Only run this piece, and write no tables."),
    ] = None,
) -> None:
    """Run the paper's experiments anew: every table and figure, at the size you can afford.

    Finished pieces are skipped and an interrupted training goes on where it was, so it can be
    stopped and started at will.
    """
    from nediff.cli.reproduce import ReproduceRequest, run_reproduce

    run_reproduce(
        ReproduceRequest(
            name, scale.value, out, runs, data, weights, download, jobs, plan, verify, piece
        )
    )


def main() -> None:
    """Entry point: errors of the user become one sentence and exit code 2."""
    try:
        with handling(interrupt):
            app()
    except NediffError as error:
        _refuse(str(error))
    except OSError as error:
        # what is left here is the disk's or the system's doing, not a mistake of ours
        name = f" ({error.filename})" if error.filename else ""
        _refuse(f"{error.strerror or error}{name}.")
    except (MemoryError, RuntimeError) as error:
        # torch says that memory has run out with a RuntimeError
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        _refuse("There is not enough memory for this; try smaller images or fewer samples.")
    except Interrupted as signal:
        typer.secho("nediff: interrupted; the files written so far are whole.", err=True)
        sys.exit(signal.exit_code)


def _refuse(sentence: str) -> NoReturn:
    """One line on standard error, whatever line breaks a library put into it."""
    typer.secho(f"nediff: {' '.join(sentence.split())}", fg=typer.colors.RED, err=True)
    sys.exit(2)
