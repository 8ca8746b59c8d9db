"""Real noise: ten photographs of three cameras, judged by the means of many shots.

    NEDIFF_DATA=FOLDER python -m benchmarks.real_noise                    # all that is missing
    python -m benchmarks.real_noise --only bm3d n2v                       # some methods
    python -m benchmarks.real_noise --table                               # tables and pictures

FOLDER holds `camera_real` (noisy/ and mean/, same names) and `em_isbi`, micrographs without
a truth. BM3D and CAREamics come with `pip install nediff[benchmarks]`. Every method is given the
ten noisy shots and nothing else, unless its row says that the truth, the means, chose a noise
level for each image. All are judged on the middle of the images. A finished piece is kept and not
made again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nediff.evaluation.metrics import psnr, ssim
from nediff.experiments.pieces import as_json, provenance, rounded, write_text

GIVEN, JUDGED = 256, 240
"""What is slow, BM3D and samples, is given the middle of this side; all are judged by that of
JUDGED."""
OUT = Path("docs/results/real_noise")
WORK = Path("runs/real_noise")
GREY = 255.0
PICTURED = ("d800_iso3200_1", "d800_iso6400_1")
BM3D_SIGMAS = (5.0, 8.0, 12.0, 17.0, 24.0, 34.0)
"""In grey values; tried on the middle 128 × 128 pixels with BM3D's quick profile."""
MULTIPLES = (0.7, 1.0, 1.4, 1.9)
SAMPLES = 8

Images = NDArray[np.float32]
Made = tuple[Images, dict[str, Any]]
"""The restored images (N, 3, H, W), of GIVEN or all pixels a side, and what to say of them."""


def photographs(data: Path, kind: str) -> tuple[list[str], Images]:
    """Names, and (N, 3, H, W) in unit intensities; ``kind`` is noisy or mean."""
    from nediff.data import open_measurements

    found = open_measurements(data / "camera_real" / kind, range=(0.0, GREY))
    names = [Path(found.name(i)).stem for i in range(len(found))]
    return names, np.stack([found.image(i) for i in range(len(found))])


def middle(images: Images, side: int) -> Images:
    """The middle square of images (..., H, W)."""
    top, left = ((n - side) // 2 for n in images.shape[-2:])
    return images[..., top : top + side, left : left + side]


# --- the methods ----------------------------------------------------------------------------------


def noisy_as_is(data: Path, minutes: float) -> Made:
    """What there is to begin with."""
    return photographs(data, "noisy")[1], {}


def by_bm3d(data: Path, minutes: float) -> Made:
    """Colour BM3D, its σ for each image chosen by the truth."""
    import bm3d

    noisy, mean = photographs(data, "noisy")[1], photographs(data, "mean")[1]

    def denoise(image: Images, sigma: float, profile: Any) -> Images:
        out = bm3d.bm3d_rgb(image.transpose(1, 2, 0).astype(np.float64), sigma / GREY, profile)
        return np.asarray(np.clip(out, 0, 1).transpose(2, 0, 1), np.float32)

    best = []
    for y, x in zip(middle(noisy, 128), middle(mean, 128), strict=True):
        tried = {s: psnr(denoise(y, s, bm3d.BM3DProfileLC()), x) for s in BM3D_SIGMAS}
        best.append(max(tried, key=lambda s: tried[s]))
    pairs = zip(middle(noisy, GIVEN), best, strict=True)
    return np.stack([denoise(y, s, bm3d.BM3DProfile()) for y, s in pairs]), {"sigmas": best}


def by_bm3d_told(data: Path, minutes: float) -> Made:
    """Colour BM3D without the truth: told the spectra and the levels that we estimate."""
    vars(np).setdefault("trapz", np.trapezoid)  # it asks NumPy for its old name
    import bm3d

    from nediff.data import open_measurements
    from nediff.noise import estimate_colour

    noisy = open_measurements(data / "camera_real" / "noisy", range=(0.0, GREY))
    found = estimate_colour(noisy)
    f = np.hypot(np.fft.fftfreq(GIVEN)[:, None], np.fft.fftfreq(GIVEN)[None])
    power = [
        np.interp(f, found.colour.frequency, p) for p in np.diagonal(found.colour.power, 0, 1, 2).T
    ]
    restored = []
    for i, sigma in enumerate(found.sigmas):
        y = middle(noisy.image(i), GIVEN).transpose(1, 2, 0).astype(np.float64)
        out = bm3d.bm3d_rgb(y, sigma**2 * GIVEN**2 * np.stack(power, axis=-1))
        restored.append(np.asarray(np.clip(out, 0, 1).transpose(2, 0, 1), np.float32))
    return np.stack(restored), {"sigmas": [GREY * s for s in found.sigmas]}


def by_noise2void(data: Path, minutes: float) -> Made:
    """CAREamics' Noise2Void with its defaults, for so many CPU minutes; a network is kept."""
    from careamics import CAREamist

    noisy = GREY * photographs(data, "noisy")[1]
    checkpoint, record = WORK / "n2v/checkpoints/camera_0/camera_last.ckpt", WORK / "n2v.json"
    if not checkpoint.exists():
        write_text(record, as_json(train_noise2void(noisy, minutes)))
    careamist = CAREamist(
        checkpoint_path=checkpoint, work_dir=WORK / "n2v", enable_progress_bar=False
    )
    restored, _ = careamist.predict(noisy, batch_size=1, tile_size=(256, 256))
    images = np.concatenate([np.asarray(r).reshape(-1, *noisy.shape[1:]) for r in restored])
    return images / GREY, json.loads(record.read_text(encoding="utf-8"))


def train_noise2void(noisy: Images, minutes: float) -> dict[str, Any]:
    """Train, and say for how many steps and seconds."""
    from careamics import CAREamist
    from careamics.config.factories import create_n2v_config
    from lightning.pytorch import Callback

    class Stop(Callback):  # type: ignore[misc]
        """After so many minutes of processor time."""

        started, steps = time.process_time(), 0

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            self.steps += 1
            trainer.should_stop = time.process_time() - self.started > 60 * minutes

    config = create_n2v_config("camera", "array", "SCYX", [64, 64], 16, 1000, n_channels=3)
    stop = Stop()
    careamist = CAREamist(
        config, work_dir=WORK / "n2v", callbacks=[stop], enable_progress_bar=False
    )
    careamist.train(train_data=noisy)
    return {"steps": stop.steps, "trained_seconds": time.process_time() - stop.started}


def train(noisy: Any, problem: Any, minutes: float, folder: Path) -> Any:
    """Our default for so many CPU minutes, turned into steps by a trial; a Restorer."""
    import torch

    from nediff.training import fit
    from nediff.training.fitting import Plan, make_trainer, plan_run
    from nediff.training.pace import Pace

    torch.set_num_threads(1)
    config = plan_run(noisy, problem, Plan(steps=1000), "(a trial)")
    pace = Pace(make_trainer(config, noisy, None, problem), time.process_time)
    for _ in range(6):
        pace.measure()
    steps = int(60 * minutes / pace.seconds_per_step())
    return fit(noisy, problem, steps=steps, out=folder)


def by_us_correlated(data: Path, minutes: float) -> Made:
    """`nediff train --sigma correlated`: the colour of the noise and each level, estimated."""
    from nediff.data import open_measurements
    from nediff.levels import estimated_levels
    from nediff.noise import estimate_colour
    from nediff.problem import Problem

    noisy = open_measurements(data / "camera_real" / "noisy", range=(0.0, GREY))
    found = estimate_colour(noisy)
    problem = Problem.denoising(max(found.sigmas), 3, found.colour)
    restorer = train(noisy.with_sigmas(found.sigmas), problem, minutes, WORK / "correlated")
    levels = estimated_levels(restorer, noisy)
    restored = [restorer.restore(noisy.image(i), sigma=s) for i, s in enumerate(levels)]
    notes = {
        "sigmas": [GREY * s for s in levels],
        "correlation": found.colour.correlation,
        "steps": restorer.config.training.steps,
    }
    return np.stack(restored), notes


def by_us_mean(data: Path, minutes: float) -> Made:
    """The means of posterior samples of that network, as `restore --samples` writes them."""
    import nediff

    restorer = nediff.load(WORK / "correlated")
    noisy, mean = (middle(photographs(data, kind)[1], GIVEN) for kind in ("noisy", "mean"))
    told = json.loads((OUT / "pieces" / "correlated.json").read_text(encoding="utf-8"))["sigmas"]
    pairs = zip(noisy, told, strict=True)
    drawn = np.stack([restorer.sample(y, SAMPLES, sigma=s / GREY) for y, s in pairs])
    inner = middle(drawn, JUDGED)
    variance = float(inner.var(axis=1, ddof=1).mean())
    error = float(np.square(inner.mean(axis=1) - middle(mean, JUDGED)).mean())
    # a mean of n samples has 1/n of their variance on top of the error of the true mean
    return drawn.mean(axis=1), {"error2_over_variance": error / variance / (1 + 1 / SAMPLES)}


def by_us_best(data: Path, minutes: float) -> Made:
    """The network of `by_us_correlated`, told the multiple of σ that the truth says is best."""
    import nediff

    restorer = nediff.load(WORK / "correlated")
    noisy, mean = photographs(data, "noisy")[1], photographs(data, "mean")[1]
    told = json.loads((OUT / "pieces" / "correlated.json").read_text(encoding="utf-8"))["sigmas"]
    restored, best = [], []
    for y, x, sigma in zip(noisy, middle(mean, 128), told, strict=True):
        tried = {k: restorer.restore(y, sigma=k * sigma / GREY) for k in MULTIPLES}
        best.append(max(tried, key=lambda k: psnr(np.clip(middle(tried[k], 128), 0, 1), x)))
        restored.append(tried[best[-1]])
    return np.stack(restored), {"multiples": best}


METHODS: dict[str, tuple[str, Callable[[Path, float], Made]]] = {
    "noisy": ("(noisy)", noisy_as_is),
    "bm3d": ("BM3D, best σ of each image by the truth", by_bm3d),
    "bm3d_told": ("BM3D, told the spectrum and levels we estimate", by_bm3d_told),
    "n2v": ("Noise2Void by CAREamics", by_noise2void),
    "correlated": ("**nediff, `--sigma correlated`**", by_us_correlated),
    "mean": ("the same, mean of 8 samples", by_us_mean),
    "best": ("the same, best multiple of σ of each image by the truth", by_us_best),
}


# --- pieces and the table -------------------------------------------------------------------------


def run_piece(method: str, data: Path, minutes: float) -> dict[str, Any]:
    """Restore, judge, and keep both."""
    words, make = METHODS[method]
    started = time.process_time()
    restored, notes = make(data, minutes)
    seconds = time.process_time() - started
    names, mean = photographs(data, "mean")
    truth = middle(mean, JUDGED)
    images = np.clip(middle(restored, JUDGED), 0, 1)
    piece = {
        "method": method,
        "words": words,
        "cpu_seconds": seconds,
        "psnr": {n: psnr(a, b) for n, a, b in zip(names, images, truth, strict=True)},
        "ssim": {n: ssim(a, b) for n, a, b in zip(names, images, truth, strict=True)},
        **notes,
        "made_by": provenance(),
    }
    WORK.mkdir(parents=True, exist_ok=True)
    np.save(WORK / f"{method}.npy", restored.astype(np.float16))
    write_text(OUT / "pieces" / f"{method}.json", as_json(rounded(piece)))
    return piece


# --- electron micrographs, without a truth --------------------------------------------------------


def run_micrographs(data: Path, minutes: float) -> None:
    """Train on all but every tenth image of `em_isbi`; say what the middles of those can say."""
    from nediff.data import open_measurements
    from nediff.evaluation import evaluate_blind
    from nediff.levels import estimated_levels
    from nediff.noise import estimate_colour, estimate_level, estimate_whiteness
    from nediff.problem import Problem

    images = open_measurements(data / "em_isbi", range=(0.0, GREY))
    held_out = list(range(0, len(images), 10))
    kept = [i for i in range(len(images)) if i not in held_out]
    white, level, found = (
        estimate_whiteness(images),
        estimate_level(images),
        estimate_colour(images),
    )
    problem = Problem.denoising(max(found.sigmas), 1, found.colour)
    restorer = train(images.with_sigmas(found.sigmas).select(kept), problem, minutes, WORK / "em")
    parts = np.stack([middle(images.image(i), GIVEN)[0] for i in held_out])
    unseen = open_measurements(parts, axes="NHW", range=(0.0, 1.0))
    sigmas = estimated_levels(restorer, unseen)
    judged = evaluate_blind(restorer, unseen.with_sigmas(sigmas), samples=8)
    piece = {
        "minutes": minutes,
        "images": len(kept),
        "held_out": [images.name(i) for i in held_out],
        "correlation_of_neighbours": list(white.neighbours),
        "sigma_white": GREY * level.sigma.value,
        "sigmas": [GREY * s for s in sigmas],
        "steps": restorer.config.training.steps,
        "blind": judged.to_dict()["blind"],
        "made_by": provenance(),
    }
    write_text(OUT / "pieces" / "em.json", as_json(rounded(piece)))
    picture_of_micrograph(restorer, images.image(held_out[1]), sigmas[1])


def picture_of_micrograph(restorer: Any, y: Images, sigma: float) -> None:
    """docs/images/em.jpg: noisy, restored, one sample, and the error bar of a held-out image."""
    from nediff.report.pictures import heat, montage, to_picture

    part = np.ascontiguousarray(middle(y, 240))
    samples = restorer.sample(part, 8, seed=0, sigma=sigma)
    sd = samples.std(axis=0, ddof=1)
    shown = [part, restorer.restore(part, sigma=sigma), samples[0]]
    names = ["noisy", "restored", "one sample"]
    cells = [(n, to_picture(middle(x, 200))) for n, x in zip(names, shown, strict=True)]
    top = float(np.quantile(sd, 0.995))
    cells.append((f"error bar, 0 to {GREY * top:.1f} grey values", heat(middle(sd, 200), top)))
    montage([cells], side=240).save("docs/images/em.jpg", quality=88)


# --- the table and the picture --------------------------------------------------------------------


def write_table() -> None:
    """docs/results/real_noise/README.md and the picture, from the pieces there are."""
    files = [(m, OUT / "pieces" / f"{m}.json") for m in METHODS]
    pieces = {m: json.loads(f.read_text(encoding="utf-8")) for m, f in files if f.exists()}
    lines = [
        "# Real noise",
        "",
        "    NEDIFF_DATA=FOLDER python -m benchmarks.real_noise",
        "",
        f"Ten shots of three cameras (`camera_real`), judged by the means of many shots on the "
        f"middle {JUDGED} × {JUDGED} pixels. Every method sees the ten noisy shots alone, unless "
        "its row says that the truth chose a level for each image. [What to make of it]"
        "(../../noise.md#real-noise); commits and seconds are in [pieces](pieces).",
        "",
        "| method | PSNR (dB) | SSIM | CPU minutes | steps |",
        "|---|---|---|---|---|",
        *(_row(piece) for piece in pieces.values()),
        "",
        "PSNR of each image in dB:",
        "",
        "| image | " + " | ".join(pieces) + " |",
        "|---|" + "---|" * len(pieces),
        *(_of_image(name, pieces) for name in next(iter(pieces.values()))["psnr"]),
    ]
    em = OUT / "pieces" / "em.json"
    if em.exists():
        lines += ["", *_about_micrographs(json.loads(em.read_text(encoding="utf-8")))]
    write_text(OUT / "README.md", "\n".join(lines) + "\n")
    print("\n".join(lines))


def _row(piece: dict[str, Any]) -> str:
    psnr_mean, ssim_mean = (np.mean(list(piece[k].values())) for k in ("psnr", "ssim"))
    seconds = max(piece["cpu_seconds"], piece.get("trained_seconds", 0))
    minutes = "" if piece["method"] == "noisy" else f"{seconds / 60:.1f}"
    steps = piece.get("steps", "")
    return f"| {piece['words']} | {psnr_mean:.2f} | {ssim_mean:.4f} | {minutes} | {steps} |"


def _of_image(name: str, pieces: dict[str, Any]) -> str:
    return f"| {name} | " + " | ".join(f"{p['psnr'][name]:.2f}" for p in pieces.values()) + " |"


def _about_micrographs(em: dict[str, Any]) -> list[str]:
    blind, levels = em["blind"], em["sigmas"]
    across, down = em["correlation_of_neighbours"]
    return [
        "## Electron micrographs (`em_isbi`), without a truth",
        "",
        f"Trained on {em['images']} images for {em['minutes']:g} CPU minutes ({em['steps']} "
        f"steps), judged on {len(em['held_out'])} others (the middle {GIVEN} × {GIVEN} pixels). "
        f"The correlation of neighbours is {across:+.2f} across, {down:+.2f} down; of white noise "
        f"there is σ = {em['sigma_white']:.1f} grey values, of correlated noise "
        f"{min(levels):.1f} to {max(levels):.1f}, image by image.",
        "",
        "![noisy, restored, a sample, the error bar](../../images/em.jpg)",
        "",
        f"Without the truth: PSNR {blind['estimated_psnr']:.2f} dB by SURE (95 %: "
        f"{blind['interval'][0]:.2f} to {blind['interval'][1]:.2f}), {blind['predicted_psnr']:.2f} "
        f"dB by the network's own divergence, of noisy images {_noisy_psnr(em):.2f} dB; "
        f"error²/variance {blind['error2_over_variance']:.2f} by SURE, "
        f"{blind['pairs']['ratio']:.2f} by recorrupted pairs (of 71 % of the contrast). All of it "
        "goes by the estimated noise: if that is wrong, so are these.",
    ]


def _noisy_psnr(em: dict[str, Any]) -> float:
    return float(-10 * np.log10(np.mean(np.square(np.array(em["sigmas"]) / GREY))))


def picture(data: Path) -> None:
    """docs/images/camera.jpg: a part of three shots by every method that left its images."""
    from nediff.report.pictures import montage, to_picture

    shown = {
        "noisy": "noisy",
        "bm3d": "BM3D, best σ",
        "bm3d_told": "BM3D, our estimates",
        "correlated": "nediff",
    }
    names, mean = photographs(data, "mean")
    made = {m: np.load(WORK / f"{m}.npy").astype(np.float32) for m in shown}
    rows = []
    for i in (names.index(n) for n in PICTURED):
        cells = [(shown[m], to_picture(middle(made[m][i], 120))) for m in shown]
        rows.append([*cells, ("mean of many shots", to_picture(middle(mean[i], 120)))])
    montage(rows, side=240).save("docs/images/camera.jpg", quality=88)


def main() -> None:
    """Make the pieces that are missing, then the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("NEDIFF_DATA"))
    parser.add_argument("--minutes", type=float, default=6.0, help="CPU minutes of each training")
    parser.add_argument("--only", nargs="*", choices=[*METHODS, "em"])
    parser.add_argument("--table", action="store_true", help="only the table and the picture")
    options = parser.parse_args()
    if options.data is None:
        parser.error("give the data folder with --data or NEDIFF_DATA")
    for method in [] if options.table else options.only or [*METHODS, "em"]:
        if (OUT / "pieces" / f"{method}.json").exists():
            continue
        if method == "em":
            run_micrographs(options.data, options.minutes)
            continue
        piece = run_piece(method, options.data, options.minutes)
        means = [float(np.mean(list(piece[k].values()))) for k in ("psnr", "ssim")]
        print(f"{method}: {means[0]:.2f} dB, SSIM {means[1]:.4f}", flush=True)
    if not options.only:
        write_table()
        picture(options.data)


if __name__ == "__main__":
    main()
