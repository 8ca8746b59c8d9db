"""`nediff evaluate`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from nediff.cli.console import counting, results, say
from nediff.data import Measurements, Units, atomic_path, open_measurements, sigma_to_unit
from nediff.errors import NediffError
from nediff.evaluation import Evaluation, evaluate_blind, evaluate_with_truth
from nediff.restorer import Restorer

LOWER_LEVELS = (0.13, 0.27, 0.47, 0.67)
"""With --simulate, also these fractions of σ_n."""


@dataclass(frozen=True)
class EvaluateRequest:
    """What the user asked for."""

    run: Path
    images: str
    clean: str | None
    simulate: float | None
    units: Units
    samples: int
    json_file: Path | None
    seed: int
    axes: str | None


def run_evaluate(request: EvaluateRequest) -> None:
    """Measure, print a table, and write the JSON if asked for."""
    if request.clean is not None and request.simulate is not None:
        raise NediffError("Give --clean or --simulate, not both.")
    if request.json_file is not None and request.json_file.is_dir():
        raise NediffError(f"{request.json_file} is a folder; give --json the name of a file.")
    restorer = Restorer.load(request.run)
    result = _measure(restorer, request)
    if request.json_file is not None:
        with atomic_path(request.json_file) as temporary:
            temporary.write_text(json.dumps(_finite(result.to_dict()), indent=2) + "\n")
    _print(result)


def _open(restorer: Restorer, source: str, axes: str | None) -> Measurements:
    with counting("reading images") as report:
        found = open_measurements(source, range=restorer.range, axes=axes, progress=report)
    if found.channels != restorer.config.network.channels:
        raise NediffError(
            f"{source} has {found.channels} channel(s); this run was trained on "
            f"{restorer.config.network.channels}."
        )
    return found


def _measure(restorer: Restorer, request: EvaluateRequest) -> Evaluation:
    images = _open(restorer, request.images, request.axes)
    sigma = restorer.problem.sigma
    if request.simulate is not None:
        level = sigma_to_unit(request.simulate, request.units, images.range)
        if not math.isclose(level, sigma, rel_tol=1e-6):
            raise NediffError(
                f"This run was trained for σ = {sigma:g}; --simulate {level:g} is another level."
            )
        noisy, clean = images.simulate(level, request.seed), images
        lower = [fraction * sigma for fraction in LOWER_LEVELS]
    elif request.clean is not None:
        noisy, clean, lower = images, _open(restorer, request.clean, request.axes), []
        _refuse_mismatch(noisy, clean)
    else:
        with counting("evaluating") as report:
            return evaluate_blind(restorer, images, request.seed, report)
    with counting("evaluating") as report:
        return evaluate_with_truth(
            restorer, noisy, clean, request.samples, lower, request.seed, report
        )


def _refuse_mismatch(noisy: Measurements, clean: Measurements) -> None:
    if len(noisy) != len(clean):
        raise NediffError(
            f"There are {len(noisy)} noisy images and {len(clean)} clean ones; they must be the "
            "same images in the same order of names."
        )
    for i in range(len(noisy)):
        if noisy.size(i) != clean.size(i):
            raise NediffError(
                f"{noisy.name(i)} is {_pixels(noisy, i)} and its clean partner {clean.name(i)} "
                f"is {_pixels(clean, i)}; they must be the same images in the same order of names."
            )


def _pixels(measurements: Measurements, i: int) -> str:
    height, width = measurements.size(i)
    return f"{width} × {height} pixels"


def _print(result: Evaluation) -> None:
    if result.levels:
        table = Table(title=f"{result.images} image(s), σ_n = {result.sigma:g}")
        for column in ("σ", "noisy PSNR", "restored PSNR", "SSIM"):
            table.add_column(column, justify="right")
        for level in result.levels:
            table.add_row(
                f"{level.sigma:.4g}",
                f"{level.psnr_noisy:.2f}",
                f"{level.psnr:.2f}",
                f"{level.ssim:.4f}",
            )
        results.print(table)
    blind = result.blind
    say(
        f"without truth: estimated PSNR {blind.estimated_psnr:.2f} dB (SURE), "
        f"{blind.predicted_psnr:.2f} dB predicted by the network itself",
        results,
    )
    if result.spread is not None:
        spread = result.spread
        say(
            f"error²/variance of {spread.samples} samples: {spread.error2_over_variance:.3f} "
            f"(1 is right); a sample lies {spread.psnr_drop_db:.2f} dB below the estimate "
            "(3.01 is right)",
            results,
        )
        for promised, found in spread.coverage:
            say(f"  {promised:5.1%} intervals hold {found:5.1%} of the true values", results)


def _finite(value: Any) -> Any:
    """JSON has no NaN: null instead."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
