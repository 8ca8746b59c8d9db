"""Can the error bars be believed, and the PSNR that is estimated without truth?

    NEDIFF_DATA=FOLDER python -m benchmarks.trust [spread-afhq ... sure-afhq]
    python -m benchmarks.trust --table

Takes the networks of `nediff reproduce table1 --scale cpu` (σ_n = 0.075), and trains those that are
not in `runs/reproduce` or kept with the results, seven minutes of a core each. No method below sees
a clean image; all are judged by them.

spread: half of the validation images, noisy, are for `nediff.evaluation.calibrate`; of the others
some are judged. Candidates, all about the same estimate x̂:

- samples: those of the default recipe, as they are drawn;
- calibrated: the same after `nediff calibrate`;
- bootstrap: the equivariant bootstrap. x̂ is turned, made noisy, restored and turned back;
- residual: a Gaussian about x̂ of one variance for all pixels, that which SURE estimates.

sure: networks of five recipes. PSNR of all validation images by SURE and by the truth, and how
often the 95 % interval of SURE holds the truth, when a few images are measured anew many times.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.unmeasured import moved_and_back
from nediff.experiments.pieces import provenance

OUT = Path("docs/results/trust")
REPRODUCED, RUNS = Path("docs/results/reproduce/cpu"), Path("runs/reproduce")
SIGMA = 0.075
SETS = {"afhq": "cats64", "nbu": "aerial64", "ffhq": "faces64"}
RECIPES = ("supervised", "default", "paper", "sure", "cd")
SAMPLES = 39
"""Of 39 samples, those left out at each end for intervals of 50, 80 and 95 %: 10, 4 and 1."""
INTERVALS = {0.5: 10, 0.8: 4, 0.95: 1}
JUDGED = 40
REPEATS, AT_ONCE = 100, 8
"""New measurements, and the images of which they are."""
WORDS = {
    "samples": "samples as drawn",
    "calibrated": "**samples, calibrated**",
    "bootstrap": "equivariant bootstrap",
    "residual": "Gaussian of the residual",
}


def of_table1(name: str, recipe: str, data: Path) -> tuple[Any, Any]:
    """A network of table 1, as settings, and the folders it is in."""
    from nediff.experiments.models import Model
    from nediff.experiments.pieces import Workspace
    from nediff.experiments.scales import SCALES

    return Model(name, SIGMA, recipe), Workspace(SCALES["cpu"], REPRODUCED, RUNS, data)


def network(name: str, recipe: str, data: Path) -> Any:
    """A Restorer: of the runs on this machine, kept with the results, or trained now."""
    model, workspace = of_table1(name, recipe, data)
    return model.train(workspace)


def validation(name: str, data: Path) -> tuple[Any, Any]:
    """Noisy images, measured once, and their truth."""
    model, workspace = of_table1(name, "default", data)
    noisy = model.measurements(workspace, "val")
    return noisy, noisy.clean


def run_spread(name: str, data: Path) -> dict[str, Any]:
    """All candidates on the second half of the validation images, by the truth."""
    from nediff.evaluation.calibrate import calibrate, corrected

    restorer = network(name, "default", data)
    noisy, clean = validation(name, data)
    half = len(noisy) // 2
    found = calibrate(restorer, noisy.select(range(half)))
    right = corrected(restorer, found.correction)
    error = _estimated_error(restorer, noisy.select(range(half)))

    def residual(y: Any, seed: int) -> Any:
        white = np.random.default_rng(seed).standard_normal((SAMPLES, *y.shape), np.float32)
        return restorer.restore(y) + error**0.5 * white

    def bootstrap(y: Any, seed: int) -> Any:
        estimate = restorer.restore(y)
        copies = np.repeat(estimate[None], SAMPLES, axis=0)
        return moved_and_back(restorer, y, copies, estimate, seed, SIGMA)

    candidates: dict[str, Callable[[Any, int], Any]] = {
        "samples": lambda y, seed: restorer.sample(y, SAMPLES, seed),
        "calibrated": lambda y, seed: right.sample(y, SAMPLES, seed),
        "bootstrap": bootstrap,
        "residual": residual,
    }
    judged = range(half, half + JUDGED)
    results = {
        method: _judged(draw, noisy.select(judged), clean.select(judged))
        for method, draw in candidates.items()
    }
    correction = {"factor": found.correction.factor, "floor": found.correction.floor}
    return {
        "images": JUDGED,
        "calibration_images": half,
        "correction": correction | found.correction.found,
        "results": results,
        "by": provenance(),
    }


def _judged(draw: Callable[[Any, int], Any], noisy: Any, clean: Any) -> dict[str, Any]:
    """error²/variance overall and by tenths of predicted variance, and coverage."""
    from nediff.evaluation.revealed import judge, summarise_pairs

    pairs, ranks = [], np.zeros(SAMPLES + 1, dtype=np.int64)
    for i in range(len(noisy)):
        samples = np.asarray(draw(noisy.image(i), i), dtype=np.float64).reshape(SAMPLES, -1)
        truth = clean.image(i).astype(np.float64).ravel()
        pairs.append(judge(samples, truth, 0.0, None))
        ranks += np.bincount((samples < truth).sum(0), minlength=SAMPLES + 1)
    found = summarise_pairs(pairs, SAMPLES)
    coverage = {
        str(promised): float(ranks[k : SAMPLES + 1 - k].sum() / ranks.sum())
        for promised, k in INTERVALS.items()
    }
    tenths = [part.ratio for part in found.classes]
    print(found.ratio, coverage, [round(t, 2) for t in tenths], flush=True)
    return {
        "error2_over_variance": found.ratio,
        "standard_error": found.ratio_error,
        "tenths": tenths,
        "coverage": coverage,
    }


def _estimated_error(restorer: Any, noisy: Any) -> float:
    """Mean squared error by SURE."""
    sure = _sure(restorer, (noisy.image(i) for i in range(len(noisy))), range(len(noisy)))
    return float(sum(s.error for s in sure) / sum(s.values for s in sure))


def _sure(restorer: Any, images: Any, seeds: Any) -> list[Any]:
    """SURE of each image."""
    import torch

    from nediff.evaluation.sure import estimate_error
    from nediff.randomness import Draws

    found = []
    for y, seed in zip(images, seeds, strict=True):
        measured, problem = restorer.measured(torch.from_numpy(y))
        probe = Draws(int(seed), "trust", 1).normal_like(measured)
        sigma = torch.full((1,), SIGMA)
        with torch.no_grad():
            denoiser = restorer.denoiser_of(problem)
            found.append(estimate_error(denoiser, measured, sigma, probe, problem))
    return found


def run_sure(name: str, data: Path) -> dict[str, Any]:
    """PSNR by SURE and by the truth for each recipe, and how often its interval holds it."""
    noisy, clean = validation(name, data)
    results = {}
    for recipe in RECIPES:
        restorer = network(name, recipe, data)
        results[recipe] = _sure_of_all(restorer, noisy, clean) | _repeated(restorer, clean)
        print(recipe, results[recipe], flush=True)
    figures = {"images": len(noisy), "repeats": REPEATS, "images_at_once": AT_ONCE}
    return figures | {"results": results, "by": provenance()}


def _sure_of_all(restorer: Any, noisy: Any, clean: Any) -> dict[str, Any]:
    from nediff.evaluation.sure import Sure

    count = range(len(noisy))
    total = sum(_sure(restorer, (noisy.image(i) for i in count), count), Sure(0.0, 0.0, 0.0, 0.0))
    error = np.mean([_error(restorer.restore(noisy.image(i)), clean.image(i)) for i in count])
    return {
        "psnr_by_sure": total.psnr,
        "interval": total.interval,
        "psnr": float(-10 * np.log10(error)),
        "psnr_predicted": total.predicted_psnr,
    }


def _repeated(restorer: Any, clean: Any) -> dict[str, Any]:
    """`REPEATS` new measurements of `AT_ONCE` images each: does the interval hold the truth?"""
    from nediff.evaluation.sure import Sure

    rng, held, widths = np.random.default_rng(0), 0, []
    for repeat in range(REPEATS):
        which = rng.integers(0, len(clean), AT_ONCE)
        images = [clean.image(int(i)) for i in which]
        ys = [x + SIGMA * rng.standard_normal(x.shape, np.float32) for x in images]
        seeds = range(10**6 + AT_ONCE * repeat, 10**6 + AT_ONCE * (repeat + 1))
        total = sum(_sure(restorer, ys, seeds), Sure(0.0, 0.0, 0.0, 0.0))
        truth = np.mean([_error(restorer.restore(y), x) for x, y in zip(images, ys, strict=True)])
        low, high = total.interval
        held += bool(low <= -10 * np.log10(truth) <= high)
        widths.append(high - low)
    return {"interval_holds": held / REPEATS, "interval_width": float(np.median(widths))}


def _error(estimate: Any, truth: Any) -> float:
    return float(np.square(estimate.astype(np.float64) - truth).mean())


def write_table() -> None:
    """docs/results/trust/README.md from the pieces there are."""
    lines = ["# Believed without truth, judged by it", "", " ".join(INTRODUCTION)]
    for name, folder in SETS.items():
        lines += _spread_lines(name, folder) + _sure_lines(name, folder)
    (OUT / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


INTRODUCTION = (
    "Networks of `nediff reproduce table1 --scale cpu`, σ_n = 0.075; made by",
    "`python -m benchmarks.trust`, whose head says what each row is; every number is in `pieces/`.",
)


def _piece(kind: str, name: str) -> Any:
    path = OUT / "pieces" / f"{kind}-{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _spread_lines(name: str, folder: str) -> list[str]:
    piece = _piece("spread", name)
    if piece is None:
        return []
    head = ["", "error²/variance", *(f"{p:.0%} interval" for p in INTERVALS), "lowest tenth"]
    head += ["highest tenth", "all tenths within"]
    rows = [head, ["---"] * len(head)]
    for method, result in piece["results"].items():
        tenths, held = result["tenths"], result["coverage"]
        rows.append(
            [
                WORDS[method],
                f"{result['error2_over_variance']:.2f} ± {result['standard_error']:.2f}",
                *(f"{held[str(p)]:.1%}" for p in INTERVALS),
                f"{tenths[0]:.2f}",
                f"{tenths[-1]:.2f}",
                f"{min(tenths):.2f} … {max(tenths):.2f}",
            ]
        )
    correction = piece["correction"]
    return [
        "",
        f"## Error bars: {folder}",
        "",
        f"{piece['images']} images, judged by the truth, {SAMPLES} samples each; the correction "
        f"(factor {correction['factor']:.3f}, floor {correction['floor']:.4f}) was found with "
        f"{piece['calibration_images']} other images, noisy only. A tenth is one of pixels sorted "
        "by predicted variance (a Gaussian of one variance has none to sort by: its tenths are "
        "drawn by lot).",
        "",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def _sure_lines(name: str, folder: str) -> list[str]:
    piece = _piece("sure", name)
    if piece is None:
        return []
    head = ["recipe", "PSNR by SURE", "95 % interval", "PSNR by the truth", "interval holds it"]
    rows = [head, ["---"] * len(head)]
    for recipe, result in piece["results"].items():
        low, high = result["interval"]
        rows.append(
            [
                recipe,
                f"{result['psnr_by_sure']:.3f}",
                f"{low:.3f} … {high:.3f}",
                f"{result['psnr']:.3f}",
                f"{result['interval_holds']:.0%} (width {result['interval_width']:.2f} dB)",
            ]
        )
    return [
        "",
        f"## PSNR without truth: {folder}",
        "",
        f"All {piece['images']} validation images at once; the last column: {piece['repeats']} "
        f"times {piece['images_at_once']} images, measured anew.",
        "",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("pieces", nargs="*")
    parser.add_argument("--data", type=Path, default=os.environ.get("NEDIFF_DATA"))
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not arguments.table:
        if arguments.data is None:
            parser.error("give --data FOLDER or set NEDIFF_DATA")
        import torch

        torch.set_num_threads(1)
        for key in arguments.pieces or [f"spread-{name}" for name in SETS] + ["sure-afhq"]:
            kind, name = key.split("-")
            path = OUT / "pieces" / f"{key}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            run = {"spread": run_spread, "sure": run_sure}[kind]
            piece = run(name, Path(arguments.data))
            path.write_text(json.dumps(piece, indent=1) + "\n", encoding="utf-8")
    write_table()


if __name__ == "__main__":
    main()
