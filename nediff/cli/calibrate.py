"""`nediff calibrate`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nediff.cli.console import counting, refuse_json_folder, results, say, write_json
from nediff.cli.evaluate import (
    open_for,
    print_pairs,
    refuse_mismatch,
    trimmed,
    warn_if_trained_on,
    with_needed_levels,
)
from nediff.cli.inputs import load_run, refuse_misfits
from nediff.cli.levels import Level
from nediff.correction import CALIBRATION_FILE, Conformal, Correction, save_correction
from nediff.data import Measurements, StabilisedRange, Units
from nediff.errors import NediffError
from nediff.evaluation.calibrate import calibrate, conformalise, corrected, fewest_pairs
from nediff.restorer import Restorer


@dataclass(frozen=True)
class CalibrateRequest:
    """What the user asked for."""

    run: Path
    images: str
    clean: str | None
    sigma: Level | None
    units: Units
    seed: int
    axes: str | None
    json_file: Path | None = None


def run_calibrate(request: CalibrateRequest) -> None:
    """Find the correction, store it in the run, and say what it changed."""
    refuse_json_folder(request.json_file)
    restorer = load_run(request.run, request.images)
    noisy, clean = _opened(restorer, request)
    with counting("calibrating") as report:
        found = calibrate(restorer, noisy, request.seed, report)
    correction = found.correction
    print_pairs(found.before, "before, on the other half of the images:")
    print_pairs(found.after, "after:")
    if found.worse:
        say(
            "Careful: of the images that were not fitted, error bars are no better than before. "
            "There are too few images, or too different ones, or σ is not right (`nediff "
            "diagnose`); a run of few steps cannot be put right like this either."
        )
    if clean is not None:
        right = corrected(restorer, correction)
        conformal = _conformal(right, noisy, clean, found.fitted, request.seed)
        correction = replace(correction, conformal=conformal)
    save_correction(request.run, correction, dict(restorer.denoiser.named_parameters()))
    figures = {"before": asdict(found.before), "after": asdict(found.after)}
    write_json({"correction": asdict(correction), **figures}, request.json_file)
    _say(correction, restorer, request.run)


def _conformal(
    restorer: Restorer, noisy: Measurements, clean: Measurements, fitted: frozenset[str], seed: int
) -> Conformal:
    """By the images that were not fitted: only those are like new ones."""
    new = [i for i, w in enumerate(noisy.windows) if w.source_name not in fitted]
    least = fewest_pairs()
    if len(new) < least:
        raise NediffError(
            f"Intervals checked by clean images need at least {2 * least} pairs, not {len(noisy)}: "
            "half of them are used up by finding the correction. Nothing was changed."
        )
    with counting("comparing with clean images") as report:
        return conformalise(restorer, noisy.select(new), clean.select(new), seed, report)


def _opened(
    restorer: Restorer, request: CalibrateRequest
) -> tuple[Measurements, Measurements | None]:
    """The measurements, and the truth if there is some."""
    noisy = open_for(restorer, request.images, request.axes, clean=False)
    warn_if_trained_on(noisy, restorer)
    noisy = with_needed_levels(noisy, restorer, request.run, request.sigma, request.units)
    refuse_misfits(noisy.files, restorer.problem)
    if request.clean is None:
        return noisy, None
    clean = open_for(restorer, request.clean, request.axes, clean=True)
    refuse_mismatch(noisy, clean, restorer.problem)
    return noisy, trimmed(noisy, clean, restorer.problem)


def _say(correction: Correction, restorer: Restorer, run: Path) -> None:
    share = correction.floor**0.5
    noise = f"{share * restorer.problem.sigma * restorer.range.scale:.3g} (data units)"
    kind = "equally correlated" if restorer.config.operator.coloured else "white"
    several = restorer.config.data.sigmas is not None
    if several or isinstance(restorer.range, StabilisedRange):  # by the image, or by the signal
        noise = f"{share:.3g} times that of the measurement"
    added = f", with {kind} noise of {noise} added" if correction.floor > 0 else ""
    say(
        f"From now on samples deviate {correction.factor**0.5:.3f} times as far from the estimate"
        f"{added}; {run / CALIBRATION_FILE} says so, remove it to undo this.",
        results,
    )
    if restorer.problem.kind != "denoising":
        say("This is of what was measured; the rest noisy data cannot show.", results)
    if correction.conformal is not None:
        c = correction.conformal
        say(
            f"Intervals of {c.samples} samples are stretched {c.stretch:.3f} times to hold at "
            f"least {c.coverage:.1%} of the true values, on average over images like these "
            f"{c.images}.",
            results,
        )
