"""`nediff`: the commands. Heavy imports happen inside them, so that --help is quick."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NoReturn, Optional

import typer

from nediff import __version__
from nediff.cli.allocation import reuse_large_blocks
from nediff.cli.options import (
    EXPERIMENTS,
    RECIPES,
    AxesOption,
    EiOption,
    FactorOption,
    GainOption,
    GroupOption,
    HtmlOption,
    JsonOption,
    KernelOption,
    Kind,
    MaskFractionOption,
    MaskOption,
    MaskSeedOption,
    OffsetOption,
    OperatorOption,
    PatternOption,
    Precision,
    QuietOption,
    RangeOption,
    ReadNoiseOption,
    SamplesOption,
    ScaleName,
    SeedOption,
    SigmaOption,
    Size,
    Solver,
    ToldOption,
    TrackOption,
    UnitsName,
    UnitsOption,
    completing,
)
from nediff.cli.shown import Command, Commands, one_of
from nediff.cli.signals import NOTHING, WHOLE, Interrupted, handling, interrupt, leave, left
from nediff.cli.usage import USAGE_ERROR, typed, usage_sentence
from nediff.errors import NediffError, NediffWarning
from nediff.processes import first, first_to_say, launched

app = typer.Typer(
    name="nediff",
    cls=Commands,
    help="Restore images, with error bars, learned from your noisy images alone.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"nediff {__version__}")
        raise typer.Exit


_TOGETHER = ("train", "restore")
"""Commands that several processes share."""
_LOOK_AT_WHOLE_IMAGES = ("restore", "evaluate", "calibrate", "app")


_IF_STOPPED = {
    "train": NOTHING,  # until there is a run
    "diagnose": NOTHING,
    "evaluate": NOTHING,
    "compare": NOTHING,
    "calibrate": "nothing was changed",
    "restore": f"{WHOLE}, and the same command goes on",
    "reproduce": f"{WHOLE}, and the same command goes on",
}
"""What a command leaves behind if a signal stops it."""


@app.callback()
def _main(
    context: typer.Context,
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
    command = context.invoked_subcommand
    leave(_IF_STOPPED.get(command or "", WHOLE))
    if launched() > 1 and command not in _TOGETHER:
        raise NediffError(
            f"`nediff {command}` runs in one process; only {' and '.join(_TOGETHER)} can be "
            "launched in several."
        )
    if command in _LOOK_AT_WHOLE_IMAGES:
        reuse_large_blocks()


@app.command(cls=Command)
def train(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Noisy images: a folder, a glob or one file; or shards (.tar), also at a URL.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The run folder to write.")],
    sigma: ToldOption = None,
    units: UnitsOption = UnitsName.fraction,
    minutes: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(metavar="NUMBER", help="Time budget; 20 unless --steps is given."),
    ] = None,
    steps: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(metavar="NUMBER", min=1, help="Number of training steps, instead of a time."),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=completing(RECIPES),
            help="default, paper (NE-SURE), sure, or supervised; for denoising also cd, with an "
            "operator ei, with a mask ambient.",
        ),
    ] = "default",
    size: Annotated[
        Size, typer.Option(metavar="NAME", help=f"Network size: {one_of(Size)}.")
    ] = Size.small,
    kind: Annotated[
        Optional[Kind],  # noqa: UP045
        typer.Option(
            metavar="NAME",
            help=f"Network kind: {one_of(Kind)}; unrolled uses the operator itself, several times. "
            "Unless told, what does best with the operator.",
        ),
    ] = None,
    crop: Annotated[
        int, typer.Option(metavar="PIXELS", min=16, help="Side of the training crops.")
    ] = 40,
    batch: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            metavar="NUMBER",
            min=1,
            help="Crops per step: 16, in short runs 8, or fewer whole measurements (MRI).",
        ),
    ] = None,
    micro_batch: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            metavar="NUMBER",
            min=1,
            help="Crops taken at once, where memory is short; the result does not depend on it.",
        ),
    ] = None,
    precision: Annotated[
        Precision,
        typer.Option(
            metavar="NAME", help="Of the convolutions of a training step: fp32, or bf16 for GPUs."
        ),
    ] = Precision.fp32,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile", help="Compile the network first: for runs of half an hour or more."
        ),
    ] = False,
    seed: SeedOption = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    simulate: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="LEVEL",
            help="For experiments: DATA are clean; add noise of this level (a number, a CSV file, "
            "or photons: that of --gain) once, by the seed.",
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
    track: TrackOption = None,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Learn to restore from noisy images alone.

    Writes config.yaml, model.safetensors, metrics.csv and what --resume needs into --out; the
    operator too, so that `nediff restore` needs nothing else.
    """
    from nediff.cli.levels import parse_simulated, parse_told
    from nediff.cli.operator import OperatorOptions
    from nediff.cli.photons import photons_of
    from nediff.cli.train import TrainRequest, run_train
    from nediff.training.fitting import Plan

    plan = Plan(
        minutes,
        steps,
        recipe,
        size.value,
        _value(kind),
        crop,
        batch,
        seed=seed,
        micro_batch=micro_batch,
        precision=precision.value,
        compiled=compiled,
    )
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
        json_file,
        tuple(name.value for name in track or ()),
        typed(context),
    )
    raise typer.Exit(run_train(request))


def _value(choice: Enum | None) -> str | None:
    return None if choice is None else str(choice.value)


@app.command(cls=Command)
def diagnose(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Noisy images: a folder, a glob or one file.")
    ],
    json_file: JsonOption = None,
    html_file: HtmlOption = None,
    range_: RangeOption = None,
    axes: AxesOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Look at noisy images before training: how strong is the noise, and what can be expected?

    Estimates σ, tests what training assumes (white noise that does not depend on the signal,
    images that come at many contrasts and scales), warns in plain words, and says what to type
    next.
    """
    from nediff.cli.diagnose import DiagnoseRequest, run_diagnose

    run_diagnose(DiagnoseRequest(data, json_file, html_file, range_, axes, seed))


@app.command(cls=Command)
def restore(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A run folder made by `nediff train`; not with --pretrained."
        ),
    ],
    images: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="IMAGES", help="Noisy images: a folder, a glob or one file."),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write.")],
    pretrained: Annotated[
        bool,
        typer.Option(
            "--pretrained",
            help="No RUN: a small network that comes along, for photographs with white noise. "
            "Without --sigma the noise is estimated.",
        ),
    ] = False,
    samples: SamplesOption = 0,
    steps: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(metavar="NUMBER", min=2, help="Noise levels per sample."),
    ] = None,
    solver: Annotated[
        Solver, typer.Option(metavar="NAME", help=f"Posterior solver: {one_of(Solver)}.")
    ] = Solver.dpm2m,
    sigma: SigmaOption = None,
    units: UnitsOption = UnitsName.fraction,
    seed: SeedOption = 0,
    axes: AxesOption = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are there already.")
    ] = False,
    tile: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            metavar="PIXELS",
            min=64,
            help="Large images are restored in squares of this side: 768 unless told. Smaller ones "
            "need less memory and more time; the result is the same.",
        ),
    ] = None,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Restore images, and draw posterior samples of them.

    Writes OUT/restored/<name> in the input's format and type and, with --samples,
    OUT/mean, OUT/sd and OUT/samples as float32 TIFF in the data's units. What the run was
    trained to undo (a mask, a mosaic, a blur ...) is in the run. An image that the input's format
    cannot hold, such as the colours of a raw mosaic in a grey JPEG, becomes a TIFF. Blurred
    images keep their frame: the border that only the kernel reached is cut off. From k-space
    come float32 images of two channels, the real and the imaginary part.

    Images of another noise level than that of the training: give it with --sigma.

    Images of any size, on little memory. Interrupted, the same command goes on where it was.
    """
    from nediff.cli.levels import parse_level
    from nediff.cli.pretrained import paths_given
    from nediff.cli.restore import RestoreRequest, run_restore

    folder, what = paths_given(run, images, pretrained)
    run_restore(
        RestoreRequest(
            folder or Path(),
            what,
            out,
            samples,
            steps,
            solver.value,
            seed,
            axes,
            overwrite,
            parse_level(sigma, "--sigma"),
            units.value,
            tile,
            json_file,
            pretrained,
        )
    )


@app.command(cls=Command)
def evaluate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder made by `nediff train`.")
    ],
    images: Annotated[
        str, typer.Argument(metavar="IMAGES", help="Noisy images (clean ones with --simulate).")
    ],
    clean: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="CLEAN", help="The same images without noise, in the same order of names."
        ),
    ] = None,
    simulate: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="LEVEL",
            help="IMAGES are clean: corrupt them once with noise of this level (a number, a CSV "
            "file, or photons: as the run knows them).",
        ),
    ] = None,
    sigma: SigmaOption = None,
    units: UnitsOption = UnitsName.fraction,
    samples: SamplesOption = 8,
    json_file: JsonOption = None,
    html_file: HtmlOption = None,
    seed: SeedOption = 0,
    axes: AxesOption = None,
    quiet: QuietOption = False,
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
            html_file,
        )
    )


@app.command(cls=Command)
def calibrate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder made by `nediff train`.")
    ],
    images: Annotated[
        str, typer.Argument(metavar="IMAGES", help="Noisy images that it was not trained on.")
    ],
    clean: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="CLEAN",
            help="The same without noise, if you have some: intervals checked by it.",
        ),
    ] = None,
    sigma: SigmaOption = None,
    units: UnitsOption = UnitsName.fraction,
    seed: SeedOption = 0,
    axes: AxesOption = None,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Put the error bars right, from noisy images alone; RUN remembers it."""
    from nediff.cli.calibrate import CalibrateRequest, run_calibrate
    from nediff.cli.levels import parse_level

    level = parse_level(sigma, "--sigma")
    run_calibrate(CalibrateRequest(run, images, clean, level, units.value, seed, axes, json_file))


@app.command(cls=Command)
def info(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder made by `nediff train`.")
    ],
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """What is this run, how good is it, and what was it trained on?"""
    from nediff.cli.info import run_info

    run_info(run, json_file)


@app.command(cls=Command)
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two run folders or more.", metavar="RUN")],
    images: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="IMAGES",
            help="Evaluate all of them on these noisy images (clean with --simulate).",
        ),
    ] = None,
    clean: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="CLEAN", help="The same images without noise, in the same order of names."
        ),
    ] = None,
    simulate: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="LEVEL", help="--images are clean: corrupt them once; as of evaluate."
        ),
    ] = None,
    sigma: SigmaOption = None,
    units: UnitsOption = UnitsName.fraction,
    samples: SamplesOption = 8,
    json_file: JsonOption = None,
    seed: SeedOption = 0,
    axes: AxesOption = None,
    quiet: QuietOption = False,
) -> None:
    """Runs side by side: what they are and, with --images, how good on the same measurements."""
    from nediff.cli.evaluate import EvaluateRequest
    from nediff.cli.info import CompareRequest, run_compare
    from nediff.cli.levels import parse_level, parse_simulated

    if images is None and (clean, simulate, sigma) != (None, None, None):
        raise NediffError("--clean, --simulate and --sigma are about --images; give them too.")
    on = None
    if images is not None:
        on = EvaluateRequest(
            runs[0],
            images,
            clean,
            parse_simulated(simulate),
            units.value,
            samples,
            None,
            seed,
            axes,
            parse_level(sigma, "--sigma"),
        )
    run_compare(CompareRequest(tuple(runs), on, json_file))


@app.command(cls=Command)
def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write the report.")] = Path(
        "demo"
    ),
    minutes: Annotated[float, typer.Option(metavar="NUMBER", help="Training time.")] = 3.0,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train on noisy photographs for a few minutes and write a report worth looking at."""
    from nediff.cli.demo import run_demo

    run_demo(out, minutes, json_file)


@app.command("app", cls=Command)
def open_app(
    run: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(
            metavar="RUN",
            help="A run folder made by `nediff train`; without it, the pretrained network.",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Who may visit: 127.0.0.1 is this computer, 0.0.0.0 everyone."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            metavar="NUMBER", min=1, max=65535, help="A free one from 7860 on unless told."
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Open a web page: drop an image, see it restored, ask how sure that is; or train.

    Needs the extra `app` (pip install 'nediff\\[app]'). Nothing is sent to anyone, and no files are
    left behind. Visitors from other computers (--host) cannot train.
    """
    from nediff.cli.app import run_app

    run_app(run, host, port, browser, json_file)


@app.command(cls=Command)
def reproduce(
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="NAME",
            autocompletion=completing((*EXPERIMENTS, "all")),
            help="An experiment, or all; without it, a list of them.",
        ),
    ] = None,
    scale: Annotated[
        ScaleName,
        typer.Option(metavar="NAME", help="tiny: minutes. cpu: hours of two cores. paper: GPUs."),
    ] = ScaleName.tiny,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FOLDER", help="Where results go; reproduced/SCALE unless told."),
    ] = None,
    runs: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FOLDER", help="Where the trained networks go; OUT/runs unless told."),
    ] = None,
    data: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            metavar="FOLDER",
            envvar="NEDIFF_DATA",
            help="The folder with the image sets (not for tiny).",
        ),
    ] = None,
    weights: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            metavar="FOLDER",
            envvar="NEDIFF_WEIGHTS",
            help="The folder with the networks of LPIPS and FID-768.",
        ),
    ] = None,
    download: Annotated[
        bool,
        typer.Option(
            "--download", help="Without --weights: LPIPS and FID, their networks fetched."
        ),
    ] = False,
    jobs: Annotated[
        int, typer.Option(metavar="NUMBER", min=1, help="Pieces at a time, a process each.")
    ] = 1,
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
        typer.Option(metavar="NAME", help="Only run this piece, and write no tables."),
    ] = None,
    tables: Annotated[
        bool,
        typer.Option("--tables", help="Only write the tables and figures of what is finished."),
    ] = False,
    json_file: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run the paper's experiments anew: every table and figure, at the size you can afford.

    Finished pieces are skipped and an interrupted training goes on where it was, so it can be
    stopped and started at will.
    """
    from nediff.cli.reproduce import ReproduceRequest, run_reproduce

    run_reproduce(
        ReproduceRequest(
            name,
            scale.value,
            out,
            runs,
            data,
            weights,
            download,
            jobs,
            plan,
            verify,
            piece,
            tables,
            json_file,
        )
    )


def main() -> None:
    """Entry point: errors of the user become one sentence and exit code 2.

    0 all went well, 1 a mistake of ours (with a traceback), 2 bad input or usage, 128 + n stopped
    by signal n (130 for Ctrl-C) with everything written so far whole. Of several processes with
    the same to say, one says it.
    """
    from nediff.cli.console import hush, show_anything

    show_anything()
    if not first():
        hush()
    threading.excepthook = _in_a_thread
    try:
        with handling(interrupt), saying_warnings():
            sys.exit(app(_arguments(sys.argv[1:]), prog_name="nediff", standalone_mode=False) or 0)
    except NediffError as error:
        _refuse(str(error))
    except USAGE_ERROR as error:
        _refuse(usage_sentence(error))
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
        if first():
            typer.secho(f"nediff: interrupted; {left()}.", err=True)
        sys.exit(signal.exit_code)


@contextmanager
def saying_warnings() -> Iterator[None]:
    """Warnings of ours become a line on standard error, each time."""
    from nediff.cli.console import WARNING, say

    with warnings.catch_warnings():
        warnings.simplefilter("always", NediffWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, NediffWarning):
                say(f"{WARNING} {message}")
            else:
                usual(message, category, *rest, **more)

        warnings.showwarning = show
        yield


def _in_a_thread(failed: threading.ExceptHookArgs) -> None:
    """TensorBoard writes in a thread: of a full disk the main one hears too, and says it once."""
    if not issubclass(failed.exc_type, OSError):
        threading.__excepthook__(failed)


def _arguments(given: list[str]) -> list[str]:
    """What was typed; --json without a file means standard output, nothing at all --help.

    What begins with a dash is an option and no file, but for the dash itself.
    """
    out: list[str] = []
    for place, word in enumerate(given, start=1):
        out.append(word)
        following = given[place] if place < len(given) else "--"
        if word == "--json" and following.startswith("-") and following != "-":
            out.append("-")
    return out or ["--help"]


def _refuse(sentence: str) -> NoReturn:
    """One line on standard error, whatever line breaks a library put into it."""
    if first_to_say(sentence):
        line = f"nediff: {' '.join(sentence.split())}"
        typer.secho(line, fg=typer.colors.RED, err=True)
    sys.exit(2)
