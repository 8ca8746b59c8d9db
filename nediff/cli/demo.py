"""`nediff demo`: from noisy photographs to a report, in minutes, without any download."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from PIL import Image as PILImage

from nediff.cli.console import counting, refuse_json_folder, say, write_json
from nediff.cli.train import train_with_bar
from nediff.data import IntensityRange, Measurements, atomic_path, open_measurements
from nediff.errors import NediffError
from nediff.evaluation import Evaluation, evaluate_with_truth
from nediff.evaluation.evaluate import Image
from nediff.problem import Problem
from nediff.report import Example, Report, write_report
from nediff.report.html import overview
from nediff.restorer import Restorer
from nediff.runs import load_config, make_folder
from nediff.training.fitting import Plan, plan_run, start_folder
from nediff.training.metrics import read_metrics

SIGMA = 0.1
SEED = 0
TRAIN = ("astronaut.png", "motorcycle_left.png", "rocket.jpg", "hubble_deep_field.jpg", "ihc.png")
"""Colour photographs that come inside scikit-image."""
HELD_OUT = {"chelsea.png": (40, 90), "coffee.png": (60, 180)}
"""Photographs kept out of training, and the corner of the 256-pixel square that is shown."""
SIDE = 256
SAMPLES = 8
SOURCE = "scikit-image's photographs"
AGAIN = "begin again with the same command"


def run_demo(out: Path, minutes: float, json_file: Path | None = None) -> None:
    """Corrupt once, train on the noisy images only, restore, sample, report."""
    refuse_json_folder(json_file)
    run = out / "run"
    _clear(run)
    make_folder(out)
    say(f"1/4 noisy photographs: σ = {SIGMA}, drawn once")
    noisy = open_measurements([_photograph(n) for n in TRAIN], range=(0, 255), simulate=SIGMA)
    say("2/4 training on the noisy images only")
    _train(noisy, minutes, run)
    say("3/4 restoring and sampling images that were held out")
    restorer = Restorer.load(run)
    truth = _held_out(out)
    evaluation, examples = _evaluate(restorer, truth)
    say("4/4 writing the report")
    _write(out, restorer, evaluation, examples)
    write_json(evaluation.to_dict(), json_file)
    say(f"\nThe report is at {(out / 'report.html').resolve()}")


def _train(noisy: Measurements, minutes: float, run: Path) -> None:
    """With one thread: two are a third faster on an idle machine, half as fast on a busy one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    problem = Problem.denoising(SIGMA, noisy.channels)
    config = plan_run(noisy, problem, Plan(minutes=minutes, seed=SEED), SOURCE)
    start_folder(run, config)
    if code := train_with_bar(config, noisy, run, how_to_go_on=AGAIN):
        raise SystemExit(code)
    torch.set_num_threads(threads)


def _clear(run: Path) -> None:
    """Remove the run of an earlier demo; a folder that is anything else is not touched."""
    if not run.exists():
        return
    try:
        ours = load_config(run).data.source == SOURCE
    except NediffError:
        ours = False
    if not ours:
        raise NediffError(f"{run} is not the run of an earlier demo; choose another --out.")
    shutil.rmtree(run)


def _photograph(name: str) -> Path:
    """A picture from scikit-image's installed files; nothing is downloaded."""
    import skimage

    return Path(skimage.__file__).parent / "data" / name


def _held_out(out: Path) -> Measurements:
    """The clean held-out squares, written beside the report so that anyone can look."""
    folder = out / "truth"
    make_folder(folder)
    for name, (top, left) in HELD_OUT.items():
        with PILImage.open(_photograph(name)) as picture:
            square = picture.convert("RGB").crop((left, top, left + SIDE, top + SIDE))
        with atomic_path(folder / name) as temporary:
            square.save(temporary, "PNG")
    return open_measurements([folder / n for n in HELD_OUT], range=IntensityRange(0, 255))


def _evaluate(restorer: Restorer, truth: Measurements) -> tuple[Evaluation, list[Example]]:
    levels = [SIGMA * f for f in (0.1, 0.2, 0.35, 0.5, 0.75)]
    noisy = truth.simulate(SIGMA, SEED + 1)
    examples: list[Example] = []

    def keep(i: int, y: Image, estimate: Image, samples: Image) -> None:
        name = Path(truth.name(i)).stem.capitalize()
        examples.append(Example(name, y, estimate, samples, truth.image(i)))

    with counting("evaluating") as report:
        figures = evaluate_with_truth(restorer, noisy, truth, SAMPLES, levels, SEED, report, keep)
    return figures, examples


def _write(out: Path, restorer: Restorer, evaluation: Evaluation, examples: list[Example]) -> None:
    rows = read_metrics(out / "run")
    training = restorer.config.training
    report = Report(
        title="Restored from noisy images alone",
        intro=(
            f"{len(TRAIN)} colour photographs were corrupted once with white Gaussian noise of "
            f"σ = {SIGMA} (a tenth of the intensity range). A small network was trained for "
            f"{training.minutes or 0:g} minutes on these noisy images only: it never saw a clean "
            "one. Here it restores photographs that were held out."
        ),
        examples=examples,
        evaluation=evaluation,
        training=[(int(r["step"]), float(r["estimated_psnr"])) for r in rows],
        footer=f"Made by nediff {restorer.config.version}: nediff demo. "
        "Pictures from scikit-image's bundled data.",
    )
    write_report(report, out / "report.html")
    with atomic_path(out / "overview.jpg") as temporary:
        overview(report).save(temporary, "JPEG", quality=92, subsampling=0)
    with atomic_path(out / "figures.json") as temporary:
        temporary.write_text(json.dumps(evaluation.to_dict(), indent=2) + "\n")
