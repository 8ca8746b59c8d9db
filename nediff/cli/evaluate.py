"""`nediff evaluate`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table

from nediff.cli.console import (
    counting,
    refuse_json_folder,
    refuse_page_folder,
    results,
    say,
    write_json,
)
from nediff.cli.correlated import with_estimated_levels
from nediff.cli.inputs import load_run, refuse_misfits, simulated
from nediff.cli.levels import Level, Simulated, in_words, sigmas_of, with_levels
from nediff.cli.operator import refuse_small
from nediff.data import (
    Measurements,
    Sigmas,
    StabilisedRange,
    Units,
    open_measurements,
    sigma_to_unit,
)
from nediff.errors import NediffError
from nediff.evaluation import Evaluation, evaluate_blind, evaluate_with_truth
from nediff.evaluation.blind import LEAST_SAMPLES, Blind
from nediff.evaluation.evaluate import Spread
from nediff.evaluation.parts import SIDE, parts_to_judge
from nediff.evaluation.revealed import Revealed, SpreadClass
from nediff.problem import Problem
from nediff.restorer import Restorer
from nediff.training.fitting import check_measurements

LOWER_LEVELS = (0.13, 0.27, 0.47, 0.67)
"""With --simulate, also these fractions of σ_n."""
FAR_OFF = 1.0
"""dB: by more than this the truth says something else than SURE. (One is the mean of all PSNRs,
the other the PSNR of the mean error.)"""
SAME_LEVEL = 1e-3
"""A level typed as it was printed, in a few digits, is that of the run."""


@dataclass(frozen=True)
class EvaluateRequest:
    """What the user asked for."""

    run: Path
    images: str
    clean: str | None
    simulate: Simulated | None
    units: Units
    samples: int
    json_file: Path | None
    seed: int
    axes: str | None
    sigma: Level | None = None
    html_file: Path | None = None


@dataclass(frozen=True)
class Opened:
    """What is judged: measurements, the truth if there is one, and the lower levels to look at."""

    noisy: Measurements
    clean: Measurements | None
    lower: list[float]


def run_evaluate(request: EvaluateRequest) -> None:
    """Measure, print a table, and write the JSON and the page if asked for."""
    refuse_json_folder(request.json_file)
    refuse_page_folder(request.html_file)
    restorer = load_run(request.run, request.images)
    say_if_few_samples(request.samples)
    opened = _opened(restorer, request)
    result = _judge(restorer, request, opened)
    write_json(result.to_dict(), request.json_file)
    if request.html_file is not None:
        _write_page(restorer, request, opened, result, request.html_file)
    _print(result, restorer.problem.kind, isinstance(restorer.range, StabilisedRange))


def say_if_few_samples(samples: int) -> None:
    """That so few do not tell whether error bars are right; of none, nobody asked."""
    if 0 < samples < LEAST_SAMPLES:
        say(
            f"--samples {samples}: to judge error bars without truth takes {LEAST_SAMPLES} samples "
            "or more, so without it nothing is said of them"
        )


def open_for(restorer: Restorer, source: str, axes: str | None, clean: bool) -> Measurements:
    """Measurements, or ``clean`` images, of as many channels as such have in this run."""
    range = restorer.range.of_means() if clean else restorer.range
    with counting("reading images") as report:
        found = open_measurements(
            source, range=range, axes=axes, progress=report, warn=lambda _: None
        )
    config = restorer.config
    wanted = config.network.channels if clean else config.data.channels
    magnitudes = clean and restorer.problem.kind == "mri" and found.channels == 1
    if found.channels != wanted and not magnitudes:
        what = "restores images of" if clean else "was trained on"
        raise NediffError(f"{source} has {found.channels} channel(s); this run {what} {wanted}.")
    return found


def measure(restorer: Restorer, request: EvaluateRequest) -> Evaluation:
    """The figures of a run on the images that were asked for."""
    return _judge(restorer, request, _opened(restorer, request))


def _judge(restorer: Restorer, request: EvaluateRequest, opened: Opened) -> Evaluation:
    noisy, clean, samples, seed = opened.noisy, opened.clean, request.samples, request.seed
    if clean is None:
        _say_parts(noisy, restorer.problem, seed)
        with counting("evaluating") as report:
            return evaluate_blind(restorer, noisy, samples, seed, report)
    with counting("evaluating") as report:
        return evaluate_with_truth(
            restorer, noisy, clean, samples, opened.lower, seed, report, pairs=True
        )


def _write_page(
    restorer: Restorer, request: EvaluateRequest, opened: Opened, result: Evaluation, path: Path
) -> None:
    from nediff.report.judged import Judged, images_to_show, write_judged

    clean, samples = opened.clean, request.samples
    images = images_to_show(restorer, opened.noisy, clean, samples, request.seed)
    kind = restorer.problem.kind
    caution = TRAINED_ON if trained_on(opened.noisy, restorer) else ""
    write_judged(Judged(str(request.run), request.images, kind, result, images, caution), path)
    say(f"The page is at {path.resolve()}")


def _say_parts(noisy: Measurements, problem: Problem, seed: int) -> None:
    parts = parts_to_judge(noisy, problem, seed)
    if parts.windows != noisy.windows:
        say(f"large images are judged by squares of {SIDE} × {SIDE} pixels, {len(parts)} in all")


def _opened(restorer: Restorer, request: EvaluateRequest) -> Opened:
    """What was asked for, if it fits together."""
    if request.clean is not None and request.simulate is not None:
        raise NediffError("Give --clean or --simulate, not both.")
    if request.sigma is not None and request.simulate is not None:
        raise NediffError("--simulate adds noise of a level it is told; leave --sigma out.")
    problem = restorer.problem
    if request.simulate is None:
        noisy = open_for(restorer, request.images, request.axes, clean=False)
        warn_if_trained_on(noisy, restorer)
        noisy = with_needed_levels(noisy, restorer, request.run, request.sigma, request.units)
        refuse_misfits(noisy.files, problem)
        if request.clean is None:
            return Opened(noisy, None, [])
        clean = open_for(restorer, request.clean, request.axes, clean=True)
        refuse_mismatch(noisy, clean, problem)
        return Opened(noisy, trimmed(noisy, clean, problem), [])
    images = open_for(restorer, request.images, request.axes, clean=True)
    warn_if_trained_on(images, restorer)
    refuse_small(images, problem)
    noisy = simulated(images, _to_simulate(restorer, request, images), request.seed, problem)
    check_measurements(noisy, problem)
    # what fewer photons would do is not what less white noise does
    fractions = () if isinstance(images.range, StabilisedRange) else LOWER_LEVELS
    lower = [fraction * problem.sigma for fraction in fractions]
    return Opened(noisy, trimmed(noisy, images, problem), lower)


TRAINED_ON = (
    "Careful: these images have the names and sizes of those that the run was trained on. If they "
    "are the same, all but a few are known to it, and it looks better than it is and surer; give "
    "others."
)


def warn_if_trained_on(images: Measurements, restorer: Restorer) -> None:
    """A word where the images are those of the training, as far as names and sizes tell."""
    if trained_on(images, restorer):
        say(TRAINED_ON)


def trained_on(images: Measurements, restorer: Restorer) -> bool:
    """Whether they have the names and sizes of those of the training."""
    return images.fingerprint == restorer.config.data.fingerprint


def with_needed_levels(
    noisy: Measurements, restorer: Restorer, run: Path, sigma: Level | None, units: Units
) -> Measurements:
    """The measurements with their noise levels: given, or estimated where the run did so itself."""
    if sigma is None and restorer.config.operator.coloured:
        return with_estimated_levels(noisy, restorer)
    return with_levels(noisy, _needed_level(restorer, run, sigma), units)


def _needed_level(restorer: Restorer, run: Path, sigma: Level | None) -> Level | None:
    """--sigma, without which a run with several noise levels cannot be asked."""
    recorded, largest = restorer.config.data.sigmas, restorer.problem.sigma
    if sigma is not None and isinstance(restorer.range, StabilisedRange):
        raise NediffError(f"{run} knows the noise by the signal; leave --sigma out.")
    if sigma is None and recorded is not None and recorded.least < largest:
        raise NediffError(
            f"{run} was trained on images with noise from {recorded.least:g} to "
            f"{largest:g}; say how noisy these are with --sigma."
        )
    return sigma


def _to_simulate(
    restorer: Restorer, request: EvaluateRequest, images: Measurements
) -> float | Sigmas:
    """σ_n of the run or, where it was trained on several levels or is given a CSV, any."""
    sigma, asked = restorer.problem.sigma, request.simulate
    if restorer.config.operator.coloured:
        raise NediffError(
            f"{request.run} was trained for correlated noise, and --simulate adds white noise; "
            "evaluate it on noisy images, with --clean where you have them without noise."
        )
    if (asked == "photons") != isinstance(restorer.range, StabilisedRange):
        how = "a level" if asked == "photons" else "photons, the noise it was trained for"
        raise NediffError(f"{request.run} needs --simulate with {how}.")
    if asked == "photons":
        return sigma
    assert asked is not None
    if isinstance(asked, Path) or restorer.config.data.sigmas is not None:
        return sigmas_of(asked, request.units, images.range, images.files)
    level = sigma_to_unit(asked, request.units, images.range)
    if not math.isclose(level, sigma, rel_tol=SAME_LEVEL):
        raise NediffError(
            f"This run was trained for σ = {sigma:g}; --simulate {in_words(level)} is another "
            "level."
        )
    return sigma


def refuse_mismatch(noisy: Measurements, clean: Measurements, problem: Problem) -> None:
    """Refuse clean images that cannot be those behind the noisy ones."""
    if len(noisy) != len(clean):
        raise NediffError(
            f"There are {len(noisy)} noisy images and {len(clean)} clean ones; they must be the "
            "same images in the same order of names."
        )
    for i in range(len(noisy)):
        if noisy.size(i) != problem.measured_size(*clean.size(i)):
            height, width = problem.operator.image_size(*noisy.size(i))
            behind = "" if noisy.size(i) == (height, width) else f" (not {width} × {height})"
            raise NediffError(
                f"{noisy.name(i)} is {_pixels(noisy, i)} and its clean partner {clean.name(i)} "
                f"is {_pixels(clean, i)}{behind}; they must be the same images in the same order "
                "of names."
            )


def trimmed(noisy: Measurements, clean: Measurements, problem: Problem) -> Measurements:
    """Without the last rows and columns that a coarser measurement did not reach."""
    sizes = [problem.operator.image_size(*noisy.size(i)) for i in range(len(noisy))]
    windows = zip(clean.windows, sizes, strict=True)
    return clean.with_windows([replace(w, height=h, width=x) for w, (h, x) in windows])


def _pixels(measurements: Measurements, i: int) -> str:
    height, width = measurements.size(i)
    return f"{width} × {height} pixels"


def _print(result: Evaluation, kind: str, stabilised: bool) -> None:
    if result.levels:
        results.print(_table(result, "noisy" if kind == "denoising" else "first guess"))
    _print_blind(result.blind, kind, " of stabilised intensities" if stabilised else "")
    _warn_of_disagreement(result, kind, stabilised)
    if result.spread is not None:
        _print_spread(result.spread, "")
    if result.consistency is not None:
        say(
            f"samples differ from the measurement by {result.consistency:.3f} times the noise's "
            "variance (1 is right)",
            results,
        )
    if result.spread_unmeasured is not None:
        masked = kind in ("inpainting", "demosaicing")
        of_what = "what was not measured" if masked else "the image itself"
        _print_spread(result.spread_unmeasured, f" of {of_what}")


def _print_blind(blind: Blind, kind: str, units: str) -> None:
    """What noisy images say without the truth, and what they cannot say."""
    if blind.noise_overstated:
        say(
            "without truth: nothing can be told. These images differ from what is restored by less "
            "than their noise is said to be, so σ must be too large (give the right one with "
            "--sigma, or train with it), or many pixels are cut off at an end of the range; "
            "`nediff diagnose` tells.",
            results,
        )
        return
    low, high = blind.interval
    say(
        f"without truth: estimated PSNR{units} {blind.estimated_psnr:.2f} dB (SURE; 95 % "
        f"confidence {low:.2f} to {high:.2f}), {blind.predicted_psnr:.2f} dB predicted by the "
        "network itself",
        results,
    )
    off = ", ".join(f"{share:.0%} at contrast {alpha:g}" for alpha, share in blind.equivariance)
    say(f"  images of less contrast are restored alike but for {off} of the error", results)
    if blind.error2_over_variance is not None:
        say(
            f"  error²/variance: {blind.error2_over_variance:.3f} by SURE (1 is right; above it "
            "error bars are too narrow)",
            results,
        )
    if blind.pairs is not None:
        print_pairs(blind.pairs)
    if kind != "denoising":
        say("  All of this is of what was measured, A x; the rest it cannot see.", results)


def _warn_of_disagreement(result: Evaluation, kind: str, stabilised: bool) -> None:
    """A word where the truth is at hand and says something else than SURE does."""
    own = [level.psnr for level in result.levels if math.isclose(level.sigma, result.sigma)]
    if kind != "denoising" or stabilised or not own or result.blind.noise_overstated:
        return
    low, high = result.blind.interval
    if not low - FAR_OFF <= own[0] <= high + FAR_OFF:
        say(
            f"Careful: by the truth it is {own[0]:.2f} dB. What is said without truth goes by σ "
            "and by noise that is white (or of the colour the run was trained with): here one of "
            "these is not so, or the run was trained on these very images. `nediff diagnose` tells "
            "more."
        )


def print_pairs(pairs: Revealed, words: str = "") -> None:
    """error²/variance by classes of predicted variance."""
    known = pairs.true_ratio is not None
    title = f"{words} error²/variance by predicted variance, from recorrupted pairs"
    say(title.strip(), results)  # that of a table would be broken at its width
    table = Table()
    for column in ("variance / σ²", "without truth", "by the truth")[: 3 if known else 2]:
        table.add_column(column, justify="right")
    rows: list[tuple[str, SpreadClass | Revealed]] = [("all", pairs)]
    rows = [*((f"{c.variance:.3f}", c) for c in pairs.classes), *rows]
    for words, row in rows:
        cells = [words, f"{row.ratio:.2f} ± {row.ratio_error:.2f}"]
        table.add_row(*cells, *([f"{row.true_ratio:.2f}"] if known else []))
    results.print(table)


def _table(result: Evaluation, before: str) -> Table:
    table = Table(title=f"{result.images} image(s), σ_n = {result.sigma:g}")
    missed = any(level.psnr_unmeasured is not None for level in result.levels)
    columns = ["σ", f"{before} PSNR", "restored PSNR", "SSIM", "PSNR unmeasured"]
    for column in columns if missed else columns[:-1]:
        table.add_column(column, justify="right")
    for level in result.levels:
        row = [
            f"{level.sigma:.4g}",
            f"{level.psnr_noisy:.2f}",
            f"{level.psnr:.2f}",
            f"{level.ssim:.4f}",
        ]
        if missed:
            row.append("" if level.psnr_unmeasured is None else f"{level.psnr_unmeasured:.2f}")
        table.add_row(*row)
    return table


def _print_spread(spread: Spread, of_what: str) -> None:
    say(
        f"error²/variance of {spread.samples} samples{of_what}: "
        f"{spread.error2_over_variance:.3f} (1 is right); a sample lies "
        f"{spread.psnr_drop_db:.2f} dB below the estimate (3.01 is right)",
        results,
    )
    for promised, found in spread.coverage:
        say(f"  {promised:5.1%} intervals hold {found:5.1%} of the true values", results)
