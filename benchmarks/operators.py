"""Incomplete measurements: inpainting, demosaicing, MRI and blur, same network, same minutes.

    NEDIFF_DATA=FOLDER NEDIFF_WEIGHTS=FOLDER python -m benchmarks.operators [inpainting ...]
    python -m benchmarks.operators --table              # only the tables, from the pieces
    python -m benchmarks.operators --pictures           # docs/images/<problem>.jpg, from the runs

FOLDER holds `cats64` and `mri128` with `train/` and `val/`. Images are measured once with
σ_n = 0.075: through one random mask with 70 % of the pixels, a Bayer mosaic, a quarter of the
columns of k-space, or a blur. Minutes are turned into steps by the rate of each method,
measured side by side. Finished pieces are kept; an interrupted one goes on where it was.
Without NEDIFF_WEIGHTS there are no LPIPS and FID columns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nediff.experiments.pieces import provenance

SIGMA, SEED, SAMPLES, SAMPLED = 0.075, 0, 8, 48
LEVELS = (0.01, 0.02, 0.05)
OUT, WORK = Path("docs/results/operators"), Path("runs/operators")
PROBLEMS: dict[str, tuple[str, ...]] = {
    "inpainting": ("supervised", "default", "paper", "ei"),
    "demosaicing": ("supervised", "default", "paper", "ei"),
    "mri": ("supervised", "default", "filled", "ei"),
    "blur": ("supervised", "default", "filled", "ei"),
}
FILLED = {"mri": ("filled",), "blur": ("supervised", "filled", "ei")}
"""Methods with a network on the first guess only, where our default has an unrolled one."""
TITLES = {"inpainting": "Inpainting", "demosaicing": "Demosaicing", "mri": "MRI", "blur": "Blur"}
OURS = ("default", "filled")
"""With the spread we learn for what was not measured; the others have none."""
WORDS = {
    "supervised": "supervised (needs clean images)",
    "default": "**ours, the default recipe**",
    "paper": "ours as in the paper (NE-SURE + EI)",
    "ei": "EI (SURE + EI at σ_n)",
    "filled": "ours, network on the first guess only",
}


def problem_of(name: str) -> Any:
    import torch

    from nediff.problem import Problem, cartesian_mask, random_mask

    if name == "inpainting":
        return Problem.inpainting(random_mask(0.7, (64, 64), SEED), SIGMA, 3)
    if name == "demosaicing":
        return Problem.demosaicing(SIGMA)
    if name == "blur":
        x = torch.arange(-3.0, 4.0)
        bell = torch.exp(-0.5 * (x / 1.2) ** 2)
        return Problem.blur(bell[:, None] * bell, SIGMA, 3)
    return Problem.mri(cartesian_mask((128, 128), 4, SEED), SIGMA)


def open_images(data: Path, name: str, part: str) -> Any:
    import numpy as np

    from nediff.data import open_measurements

    folder = data / ("mri128" if name == "mri" else "cats64") / part
    images = open_measurements(folder, range=(0, 255))
    if name != "mri":
        return images
    # grey, but stored as WebP, which has no grey form
    grey = np.stack([images.image(i)[0] for i in range(len(images))])
    return open_measurements(grey, axes="NHW", range=(0, 1))


def open_training(data: Path, name: str) -> Any:
    return open_images(data, name, "train").simulate(SIGMA, SEED, problem_of(name))


def config_of(name: str, method: str, measurements: Any, steps: int) -> Any:
    from nediff.training.fitting import Plan, plan_run

    kind = "edm" if method in FILLED.get(name, ()) else None  # else what is best for the operator
    recipe = "default" if method == "filled" else method
    plan = Plan(steps=steps, recipe=recipe, kind=kind, seed=SEED)
    return plan_run(measurements, problem_of(name), plan, "mri128" if name == "mri" else "cats64")


def measure_rates(data: Path, name: str, rounds: int = 6) -> dict[str, float]:
    """Seconds per step of each method, interleaved in one process (see training/pace.py)."""
    import torch

    from nediff.training.fitting import make_trainer
    from nediff.training.pace import Pace

    torch.set_num_threads(1)
    noisy, problem = open_training(data, name), problem_of(name)
    for i in range(len(noisy)):  # decoded images and their noise are kept after the first use
        noisy.image(i)
    trainers = {
        m: make_trainer(config_of(name, m, noisy, 1000), noisy, None, problem)
        for m in PROBLEMS[name]
    }
    paces = {m: Pace(trainer, time.process_time) for m, trainer in trainers.items()}
    for _ in range(rounds):
        for pace in paces.values():
            pace.measure()
    return {m: pace.seconds_per_step() for m, pace in paces.items()}


def run_piece(name: str, method: str, arguments: argparse.Namespace) -> None:
    """Train (or go on), evaluate and write the piece."""
    import torch

    from nediff.restorer import Restorer
    from nediff.runs import CONFIG_FILE, load_config
    from nediff.training.fitting import run_training, start_folder

    torch.set_num_threads(1)
    folder = WORK / name / method
    noisy, problem = open_training(arguments.data, name), problem_of(name)
    if (folder / CONFIG_FILE).exists():
        config = load_config(folder)
    else:
        config = config_of(name, method, noisy, arguments.steps)
        start_folder(folder, config, problem)
    trained_by = folder / "trained-by.json"
    if not trained_by.exists():
        trained_by.write_text(json.dumps(provenance()), encoding="utf-8")
    restorer, _ = run_training(config, noisy, folder, problem=problem)
    if method not in OURS:  # whose samples are those of the sampler alone
        restorer = Restorer(restorer.problem, restorer.denoiser, restorer.config)
    piece = {
        "problem": name,
        "method": method,
        "minutes": arguments.minutes,
        "settings": config.model_dump(mode="json"),
        "results": evaluate(restorer, name, arguments),
        "trained_by": json.loads(trained_by.read_text(encoding="utf-8")),
        "evaluated_by": provenance(),
    }
    path = OUT / "pieces" / f"{name}-{method}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(piece, indent=1) + "\n", encoding="utf-8")


def evaluate(restorer: Any, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """PSNR and SSIM at all levels, calibration and agreement at σ_n, LPIPS and FID-768."""
    from nediff.evaluation import evaluate_with_truth

    clean = open_images(arguments.data, name, "val")
    noisy = clean.simulate(SIGMA, SEED + 1, problem_of(name))
    levels = evaluate_with_truth(restorer, noisy, clean, samples=0, lower_levels=LEVELS)
    few = range(min(SAMPLED, len(clean)))
    spread = evaluate_with_truth(restorer, noisy.select(few), clean.select(few), samples=SAMPLES)
    out = {
        "images": len(clean),
        "levels": levels.to_dict()["levels"],
        "blind": levels.to_dict()["blind"],
        "sampled_images": len(few),
        "spread": spread.to_dict()["spread"],
        "spread_unmeasured": spread.to_dict()["spread_unmeasured"],
        "consistency": spread.consistency,
    }
    if arguments.weights is not None:
        out["perceptual"] = perceptual(restorer, noisy, clean, arguments.weights)
    return out


def perceptual(restorer: Any, noisy: Any, clean: Any, weights: Path) -> dict[str, float]:
    """LPIPS and FID-768 of the estimates, and of one posterior sample of each image."""
    import numpy as np

    from nediff.evaluation.perceptual import Perceptual, frechet, statistics

    metrics = Perceptual(weights)
    truth = np.stack([clean.image(i) for i in range(len(clean))])
    mri = restorer.problem.kind == "mri"

    def picture(x: Any) -> Any:
        return np.sqrt(np.square(x).sum(0, keepdims=True)) if mri else x

    reference = statistics(metrics.features(truth))
    out: dict[str, float] = {}
    for kind in ("estimate", "sample"):
        images = np.stack(
            [
                picture(restorer.restore(y) if kind == "estimate" else restorer.sample(y, 1, i)[0])
                for i, y in enumerate(noisy.image(k) for k in range(len(noisy)))
            ]
        )
        out[f"lpips_{kind}"] = float(np.mean(metrics.lpips(images, truth)))
        out[f"fid768_{kind}"] = frechet(*statistics(metrics.features(images)), *reference)
    return out


def write_tables() -> None:
    """docs/results/operators/README.md from the pieces there are."""
    lines = [
        "# Incomplete measurements",
        "",
        f"σ_n = {SIGMA}, measured once; the same network (`small`) and the same minutes of one "
        "core for each method of a problem. PSNR in dB of the estimate at σ_n and at lower noise; "
        "*unmeasured* is PSNR at σ_n on the pixels that were not measured. LPIPS and FID-768 of "
        "the estimate / of one posterior sample each; FID-768 against the same images' truth. "
        f"*agreement* is ‖Ax − y‖²/(mσ_n²) of {SAMPLES} samples; error²/variance is for the "
        "measured pixels / the unmeasured ones (1 is right). Samples of ours have the spread it "
        "learned for what was not measured, the others are those of the sampler alone. For MRI and "
        "blur the first figure is of the measurement, A x, the second of all pixels; our default "
        "there is an unrolled network, and so are supervised and EI for MRI, but not for blur.",
        "",
        "Made by `python -m benchmarks.operators`; every number with its settings is in `pieces/`.",
    ]
    for name, methods in PROBLEMS.items():
        paths = [OUT / "pieces" / f"{name}-{m}.json" for m in methods]
        pieces = [json.loads(p.read_text()) for p in paths if p.exists()]
        if pieces:
            lines += _table(name, pieces)
    (OUT / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def _table(name: str, pieces: list[dict[str, Any]]) -> list[str]:
    sigmas = [f"{level['sigma']:g}" for level in pieces[0]["results"]["levels"]]
    head = ["method", "steps", *sigmas, "SSIM", "unmeasured", "LPIPS", "FID-768", "agreement"]
    head += ["error²/variance"]
    images, minutes = pieces[0]["results"]["images"], pieces[0]["minutes"]
    title = f"## {TITLES[name]} ({images} images, {minutes:g} minutes each)"
    first = pieces[0]["results"]["levels"]
    fill = ["(linear fill)", "", *(f"{v['psnr_noisy']:.2f}" for v in first), "", "", "", "", "", ""]
    rows = [head, ["---"] * len(head), fill, *(_row(p) for p in pieces)]
    return ["", title, "", *("| " + " | ".join(row) + " |" for row in rows)]


def _row(piece: dict[str, Any]) -> list[str]:
    result = piece["results"]
    last, seen, unseen = result["levels"][-1], result["spread"], result["spread_unmeasured"]
    metrics = result.get("perceptual", {})

    def pair(name: str, digits: int) -> str:
        values = [metrics.get(f"{name}_{kind}") for kind in ("estimate", "sample")]
        return "" if None in values else " / ".join(f"{v:.{digits}f}" for v in values)

    by_pixels = piece["problem"] in ("inpainting", "demosaicing")
    missed = last["psnr_unmeasured"] if by_pixels else None
    ratios = [s["error2_over_variance"] for s in (seen, unseen) if s is not None]
    return [
        WORDS[piece["method"]],
        str(piece["settings"]["training"]["steps"]),
        *(f"{level['psnr']:.2f}" for level in result["levels"]),
        f"{last['ssim']:.4f}",
        "" if missed is None else f"{missed:.2f}",
        pair("lpips", 3),
        pair("fid768", 2),
        f"{result['consistency']:.3f}",
        " / ".join(f"{r:.2f}" for r in ratios),
    ]


def draw_pictures() -> None:
    """docs/images/<problem>.jpg: pictures that may be shown (scikit-image's), restored."""
    from nediff.report.pictures import montage
    from nediff.restorer import Restorer

    for name in PROBLEMS:
        runs = {m: WORK / name / m for m in PROBLEMS[name] if _finished(name, m)}
        restorers = {m: Restorer.load(folder) for m, folder in runs.items()}
        if "default" in restorers:
            pictures = _phantoms() if name == "mri" else _photographs()
            rows = [_pictures(restorers, name, x, k) for k, x in enumerate(pictures)]
            path = Path("docs/images") / f"{name}.jpg"
            montage(rows, side=150).save(path, quality=90)
            print(path)


def _finished(name: str, method: str) -> bool:
    piece = OUT / "pieces" / f"{name}-{method}.json"
    return piece.is_file() and (WORK / name / method / "model.safetensors").is_file()


def _photographs() -> list[Any]:
    """Two 64×64 pictures of scikit-image's cat, (3, 64, 64)."""
    import numpy as np
    from PIL import Image
    from skimage import data

    cat = Image.fromarray(data.chelsea())
    boxes = [(80, 0, 380, 300), (90, 60, 218, 188)]
    cut = [cat.crop(b).resize((64, 64), Image.Resampling.BOX) for b in boxes]
    return [np.asarray(c, dtype=np.float32).transpose(2, 0, 1) / 255 for c in cut]


def _phantoms() -> list[Any]:
    """The Shepp–Logan phantom, as it is and turned, (1, 128, 128): no patient's image."""
    import numpy as np
    from skimage.data import shepp_logan_phantom
    from skimage.transform import resize

    phantom = resize(shepp_logan_phantom(), (128, 128), anti_aliasing=True).astype(np.float32)
    return [phantom[None], np.rot90(phantom)[None].copy()]


def _pictures(restorers: dict[str, Any], name: str, x: Any, seed: int) -> list[tuple[str, Any]]:
    import numpy as np
    import torch

    from nediff.randomness import derive_key, normal_field
    from nediff.report.pictures import heat, to_picture

    problem = problem_of(name)
    size = problem.measured_size(*x.shape[-2:])
    here = problem.operator.window(0, 0, *size)
    clear = here.A(here.as_image(torch.from_numpy(x)[None]))
    noise = normal_field([derive_key("picture", seed)], *clear.shape[1:])
    y = (clear + SIGMA * here.mask_noise(noise))[0].numpy()

    def shown(image: Any) -> Any:
        framed = here.frame(torch.as_tensor(image), *size).numpy()
        return to_picture(
            np.linalg.norm(framed, axis=0, keepdims=True) if name == "mri" else framed
        )

    ours = restorers["default"]
    samples, post = ours.sample(y, 2, seed), ours.summarise(y, 16, seed)
    first = here.fill(torch.from_numpy(y)[None])[0].numpy()
    measured = ("zero-filled", shown(first)) if name == "mri" else ("measured", to_picture(y))
    spread = here.frame(torch.as_tensor(post.sd), *size).numpy()
    row = [("truth", shown(here.as_image(torch.from_numpy(x)[None])[0])), measured]
    row += [("restored", shown(ours.restore(y))), ("a sample", shown(samples[0]))]
    row += [("another", shown(samples[1])), ("error bar, 0 to 0.1", heat(spread, 0.1))]
    for method, words in (("paper", "as in the paper"), ("ei", "EI"), ("supervised", "supervised")):
        if method in restorers:
            row.append((words, shown(restorers[method].restore(y))))
    return row


def run_all(arguments: argparse.Namespace) -> None:
    """Two pieces at a time, each a process with one thread."""
    waiting = []
    for name in arguments.problems or list(PROBLEMS):
        rates = known_rates(arguments.data, name)
        for method in PROBLEMS[name]:
            if not (OUT / "pieces" / f"{name}-{method}.json").exists():
                waiting.append((name, method, int(60 * arguments.minutes / rates[method])))
    running: list[subprocess.Popen[bytes]] = []
    failed = 0
    while waiting or running:
        while waiting and len(running) < 2:
            name, method, steps = waiting.pop(0)
            print(f"{name} {method}: {steps} steps", flush=True)
            command = [sys.executable, "-m", "benchmarks.operators", name, "--piece", method]
            command += ["--steps", str(steps), "--minutes", str(arguments.minutes)]
            command += ["--data", str(arguments.data)]
            if arguments.weights is not None:
                command += ["--weights", str(arguments.weights)]
            running.append(subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}))
        time.sleep(1)
        failed += sum(1 for p in running if p.poll())
        running = [p for p in running if p.poll() is None]
    if failed:
        raise SystemExit(f"{failed} piece(s) failed")
    write_tables()


def known_rates(data: Path, name: str) -> dict[str, float]:
    """The rates of a problem's methods, measured once."""
    path = WORK / f"rates-{name}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(measure_rates(data, name), indent=1))
    rates: dict[str, float] = json.loads(path.read_text())
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("problems", nargs="*", choices=[*PROBLEMS, []])
    parser.add_argument("--data", type=Path, default=os.environ.get("NEDIFF_DATA"))
    parser.add_argument("--weights", type=Path, default=os.environ.get("NEDIFF_WEIGHTS"))
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--table", action="store_true", help="only write the tables")
    parser.add_argument("--pictures", action="store_true", help="only draw the pictures")
    parser.add_argument("--piece", choices=list(WORDS), help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table:
        write_tables()
    elif arguments.pictures:
        draw_pictures()
    elif arguments.data is None:
        parser.error("say where the images are, with --data or NEDIFF_DATA")
    elif arguments.piece:
        run_piece(arguments.problems[0], arguments.piece, arguments)
    else:
        run_all(arguments)


if __name__ == "__main__":
    main()
