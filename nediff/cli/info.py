"""`nediff info` and `nediff compare`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from nediff.cli.console import refuse_json_folder, results, say, write_json
from nediff.cli.evaluate import EvaluateRequest, measure, say_if_few_samples
from nediff.errors import NediffError
from nediff.evaluation import Evaluation
from nediff.losses import NO_ERROR
from nediff.report.run import RunSummary, describe_run
from nediff.restorer import Restorer
from nediff.runs import CONFIG_FILE, HUB_CONFIG_FILE


@dataclass(frozen=True)
class CompareRequest:
    """What the user asked for; ``on`` says which images, if any, in place of its run."""

    runs: tuple[Path, ...]
    on: EvaluateRequest | None
    json_file: Path | None


def run_info(run: Path, json_file: Path | None) -> None:
    """What is this run, how good is it, and what was it trained on?"""
    refuse_json_folder(json_file)
    summary = describe_run(run)
    write_json(summary.to_dict(), json_file)
    table = Table(show_header=False, box=None, title=str(run), title_justify="left")
    for words, of in _ROWS:
        table.add_row(words, of(summary))
    results.print(table)
    if summary.usable and not summary.steps_done:
        say("It was saved from Python; how its training went is not kept with it.", results)
    elif not summary.finished:
        say("It is not finished: the `nediff train` that began it goes on with --resume.", results)


def run_compare(request: CompareRequest) -> None:
    """Runs side by side; with images, all of them on the same measurements."""
    refuse_json_folder(request.json_file)
    if len({run.resolve() for run in request.runs}) < 2:
        raise NediffError("Comparing needs at least two different runs.")
    summaries = [_described(run) for run in request.runs]
    figures: list[Evaluation] = []
    if request.on is None:
        _warn_if_incomparable(summaries)
    else:
        _refuse_incomparable(summaries, request.on)
        say_if_few_samples(request.on.samples)
        for run in request.runs:
            say(f"evaluating {run}")
            figures.append(measure(Restorer.load(run), replace(request.on, run=run)))
    found: list[dict[str, Any]] = [summary.to_dict() for summary in summaries]
    for row, evaluation in zip(found, figures, strict=False):
        row["evaluation"] = evaluation.to_dict()
    write_json({"runs": found}, request.json_file)
    results.print(_side_by_side(summaries, figures))


def _described(run: Path) -> RunSummary:
    if run.is_dir() and not any((run / name).exists() for name in (CONFIG_FILE, HUB_CONFIG_FILE)):
        raise NediffError(
            f"{run} is not a run folder: it has no {CONFIG_FILE}. Images to compare runs on are "
            f"given with --images {run}."
        )
    return describe_run(run)


Differing = tuple[str, Callable[[RunSummary], object], str]
"""What runs may differ in: its name, what it is, and what can be done about it."""

_IN_THEMSELVES: list[Differing] = [
    ("operators", lambda s: s.operator, ""),
    ("channels", lambda s: s.channels, ""),
    ("intensity ranges", lambda s: s.range, "; train them with the same --range"),
]
_IN_NOISE: Differing = (
    "noise levels",
    lambda s: (s.sigma_least, s.sigma),
    "; say how noisy the images are with --sigma",
)


def _differ(summaries: Sequence[RunSummary], of: Callable[[RunSummary], object]) -> bool:
    return any(of(summary) != of(summaries[0]) for summary in summaries)


def _refuse_incomparable(summaries: Sequence[RunSummary], on: EvaluateRequest) -> None:
    """The same measurements in the same units, or figures side by side would mislead."""
    for words, of, advice in [*_IN_THEMSELVES, *([_IN_NOISE] if on.sigma is None else [])]:
        if _differ(summaries, of):
            listed = ", ".join(f"{s.run}: {of(s)}" for s in summaries)
            raise NediffError(
                f"These runs have different {words} ({listed}), so figures on the same images "
                f"cannot be compared{advice}."
            )


def _warn_if_incomparable(summaries: Sequence[RunSummary]) -> None:
    """The PSNR of each run is of its own held-out images, and of their noise."""
    if all(s.estimated_psnr is None for s in summaries):
        return
    own: list[tuple[str, Callable[[RunSummary], object]]] = [
        *((words, of) for words, of, _ in (*_IN_THEMSELVES, _IN_NOISE)),
        ("data", lambda s: (Path(s.source).resolve(), s.fingerprint)),
        ("seeds, which choose the images held out", lambda s: s.seed),
    ]
    found = [words for words, of in own if _differ(summaries, of)]
    if not found:
        return
    how = ""
    if not any(_differ(summaries, of) for _, of, _ in _IN_THEMSELVES):
        sigma = " and --sigma" if _IN_NOISE[0] in found else ""
        how = f"; --images{sigma} evaluates them on the same measurements"
    listed = ", ".join(found[:-1]) + " and " * (len(found) > 1) + found[-1]
    say(
        f"Careful: these runs have different {listed}, so their held-out PSNRs cannot be "
        f"compared{how}."
    )


_ROWS: list[tuple[str, Callable[[RunSummary], str]]] = [
    ("undoes", lambda s: "noise" if s.operator == "denoising" else f"{s.operator} and noise"),
    ("noise", lambda s: _noise(s)),
    ("intensity range", lambda s: f"{s.range[0]:g} to {s.range[1]:g}, {s.channels} channel(s)"),
    ("trained on", lambda s: f"{s.images} image(s): {s.source}"),
    ("clean images", lambda s: "with simulated noise" if s.clean else "none were used"),
    ("recipe", lambda s: f"{s.recipe} (loss {s.loss}), seed {s.seed}"),
    ("network", lambda s: f"{s.size}, {s.kind}, {s.parameters:,} parameters"),
    ("steps", lambda s: f"{s.steps_done} of {s.steps}, {s.seconds / 60:.1f} minutes"),
    ("noisy PSNR", lambda s: _db(s.noisy_psnr)),
    ("held-out PSNR, estimated", lambda s: _estimated(s)),
    ("error bars", lambda s: _error_bars(s)),
    ("usable", lambda s: "yes" if s.usable else "not yet: no weights were kept so far"),
    ("nediff", lambda s: s.version),
]


def _noise(s: RunSummary) -> str:
    if s.photons is not None:
        of_photons = ", ".join(f"{k.replace('_', ' ')} {v:g}" for k, v in s.photons.items())
        return f"photons: {of_photons} in data units ({s.sigma_known})"
    scale = s.range[1] - s.range[0]
    levels = sorted({s.sigma_least, s.sigma})
    of_range, in_data = (
        " to ".join(f"{level * unit:.4g}" for level in levels) for unit in (1.0, scale)
    )
    in_data = "" if scale == 1 else f", {in_data} in data units"
    known = f"{s.sigma_known}, correlated" if s.correlated else s.sigma_known
    return f"σ = {of_range} of the range{in_data} ({known})"


def _estimated(s: RunSummary) -> str:
    if s.estimated_psnr is not None and s.estimated_psnr >= NO_ERROR:
        return "none: σ is too large for these images, or many pixels are cut off"
    newest = ", of the newest weights: estimated noise does not tell which are best"
    return _db(s.estimated_psnr) + (newest if s.newest_kept else "")


def _db(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2f} dB"


def _error_bars(s: RunSummary) -> str:
    words = "calibrated on noisy images" if s.calibrated else "as they are; see nediff calibrate"
    if s.conformal:
        words = "calibrated, intervals checked with clean images"
    return f"{words}; unmeasured pixels too" if s.spread_learned else words


def _side_by_side(summaries: Sequence[RunSummary], figures: Sequence[Evaluation]) -> Table:
    """A column for each run."""
    table = Table("", *(summary.run for summary in summaries))
    for words, of in _ROWS:
        table.add_row(words, *(of(summary) for summary in summaries))
    if figures:
        table.add_section()
    for words, value in _FIGURES:
        cells = [value(evaluation) for evaluation in figures]
        if any(cell is not None for cell in cells):
            table.add_row(words, *("" if cell is None else cell for cell in cells))
    return table


_FIGURES: list[tuple[str, Callable[[Evaluation], str | None]]] = [
    ("PSNR", lambda e: f"{e.levels[-1].psnr:.2f} dB" if e.levels else None),
    ("SSIM", lambda e: f"{e.levels[-1].ssim:.4f}" if e.levels else None),
    (
        "PSNR without truth (SURE)",
        lambda e: "σ too large" if e.blind.noise_overstated else f"{e.blind.estimated_psnr:.2f} dB",
    ),
    ("  95 % confidence", lambda e: "{:.2f} to {:.2f} dB".format(*e.blind.interval)),
    (
        "error²/variance (1 is right)",
        lambda e: None if e.spread is None else f"{e.spread.error2_over_variance:.3f}",
    ),
    (
        "error²/variance without truth",
        lambda e: None if e.blind.pairs is None else f"{e.blind.pairs.ratio:.3f}",
    ),
]
