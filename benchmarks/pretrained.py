"""Make the network that comes with the package, and measure it.

    python -m benchmarks.pretrained train     # runs/pretrained/grey; interrupted, it goes on
    python -m benchmarks.pretrained pack      # nediff/pretrained/grey
    NEDIFF_DATA=FOLDER python -m benchmarks.pretrained calibrate
    NEDIFF_DATA=FOLDER python -m benchmarks.pretrained check
    NEDIFF_DATA=FOLDER python -m benchmarks.pretrained judge    # the part of check on samples

Photographs that come inside scikit-image, those that are CC0 or in the public domain by its
documentation, are made grey and corrupted once with σ_n = 0.2. The network learns from these noisy
images alone. `pack` copies what is needed into the package, the weights in half precision.
`calibrate` finds out how far the spread of its samples is off on photographs that it has not seen,
squares of `bsd400_gray` with noise, without looking at the clean ones; a few numbers come of it.
`check` writes figures.json there: PSNR at lower and equal noise levels on images of other origin
(`bsd68_gray`, `camera_real`), the error bars before and after, and from it the card.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from nediff.experiments.pieces import provenance

SIGMA, SEED = 0.2, 0
LEVELS = (0.05, 0.1, 0.2)
STEPS = 1700
"""About ten minutes of one core."""
TRAIN = ("astronaut.png", "coffee.png", "hubble_deep_field.jpg", "ihc.png", "retina.jpg")
TRAIN += ("rocket.jpg", "brick.png", "camera.png", "cell.png", "coins.png", "grass.png")
TRAIN += ("gravel.png",)
RUN, PACKAGE = Path("runs/pretrained/grey"), Path("nediff/pretrained/grey")
CLEAN = Path("runs/pretrained/grey-clean")
KEPT = 2**20
"""Images of more pixels are halved, so that none outweighs the others."""


def photographs() -> Path:
    """The clean pictures as grey PNG files; noise is drawn for them by name."""
    import skimage
    from PIL import Image

    CLEAN.mkdir(parents=True, exist_ok=True)
    for name in TRAIN:
        with Image.open(Path(skimage.__file__).parent / "data" / name) as opened:
            picture = opened.convert("L")
        picture.info.clear()  # a colour profile
        if picture.width * picture.height > KEPT:
            picture = picture.reduce(2)
        picture.save(CLEAN / f"{Path(name).stem}.png")
    return CLEAN


def train() -> None:
    import torch

    from nediff.cli.train import train_with_bar
    from nediff.data import open_measurements
    from nediff.problem import Problem
    from nediff.runs import CONFIG_FILE, load_config
    from nediff.training.fitting import Plan, plan_run, start_folder

    torch.set_num_threads(1)
    started = time.process_time()
    noisy = open_measurements(photographs(), range=(0, 255)).simulate(SIGMA, SEED)
    if (RUN / CONFIG_FILE).exists():
        config = load_config(RUN)
    else:
        problem, plan = Problem.denoising(SIGMA, 1), Plan(steps=STEPS, seed=SEED)
        config = plan_run(noisy, problem, plan, f"{len(TRAIN)} pictures of scikit-image")
        start_folder(RUN, config, problem)
    if code := train_with_bar(config, noisy, RUN):
        raise SystemExit(code)
    print(f"{(time.process_time() - started) / 60:.1f} minutes of the processor")


def pack() -> None:
    """The run without what only --resume needs; weights rounded to half precision."""
    import torch

    from nediff.restorer import Restorer
    from nediff.runs import save_config, save_weights

    restorer = Restorer.load(RUN)
    weights = {k: v.to(torch.float16) for k, v in restorer.denoiser.named_parameters()}
    save_weights(PACKAGE, weights)
    save_config(PACKAGE, restorer.config)


def calibrate(data: Path) -> None:
    """calibration.json, by recorrupted pairs of noisy squares, at each of the levels."""
    import torch

    from nediff.correction import AtLevel, Correction, save_correction
    from nediff.evaluation.calibrate import SAMPLES, uncorrected
    from nediff.evaluation.revealed import draw_pair, fit_correction, summarise_pairs
    from nediff.pretrained import load_pretrained

    torch.set_num_threads(1)
    restorer, found, figures = uncorrected(load_pretrained(1)), [], []
    squares = _squares(sorted((data / "bsd400_gray").iterdir())[::CALIBRATE_EVERY])
    for level in LEVELS:
        noisy, pairs = squares.simulate(level, SEED + 2), []
        for i in range(len(noisy)):
            y = torch.from_numpy(noisy.image(i))
            pairs.append(draw_pair(restorer, y, level, SAMPLES, noisy.name(i), SEED))
        seen = summarise_pairs(pairs, SAMPLES)
        found.append(AtLevel(level, *fit_correction(pairs)))
        figures.append({"sigma": level, "ratio": seen.ratio, "ratio_error": seen.ratio_error})
        print(found[-1], figures[-1], flush=True)
    *lower, top = found
    about = {"squares": len(squares), "side": SIDE, "before": figures}
    known = Correction(top.factor, top.floor, restorer.sampler, found=about, lower=tuple(lower))
    save_correction(PACKAGE, known)


def check(data: Path) -> None:
    """PSNR on images of other origin; then the calibration of samples, and the card."""
    import torch

    from nediff.data import open_measurements
    from nediff.pretrained import load_pretrained

    torch.set_num_threads(1)
    figures: dict[str, Any] = {"by": provenance()}
    for source, channels, most in (("bsd68_gray", 1, None), ("camera_real/mean", 3, 4)):
        files = sorted((data / source).iterdir())[:most]
        clean = open_measurements(files, range=(0, 255))
        figures[source] = _levels(load_pretrained(channels), clean)
        _keep(figures)
    judge(data)


def judge(data: Path) -> None:
    """The spread of samples of squares, as drawn and as corrected, against the truth."""
    import torch

    from nediff.pretrained import load_pretrained

    torch.set_num_threads(1)
    figures = json.loads((PACKAGE / "figures.json").read_text())
    figures["samples by"] = provenance()
    for source, channels in (("bsd68_gray", 1), ("camera_real/mean", 3)):
        squares = _squares(sorted((data / source).iterdir())[::JUDGE_EVERY])
        restorer = load_pretrained(channels)
        rows = [row for level in LEVELS for row in _spread(restorer, squares, level)]
        figures[f"samples of {source}"] = {"squares": len(squares), "side": SIDE, "levels": rows}
        _keep(figures)


def _keep(figures: dict[str, Any]) -> None:
    (PACKAGE / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    (PACKAGE / "README.md").write_text(card(figures), encoding="utf-8")


GREY = "BSD68, grey"
SIDE, DRAWN = 80, 8
CALIBRATE_EVERY, JUDGE_EVERY = 4, 2
"""Of the images in the order of their names: a hundred; thirty-four, and five of the camera's."""


def _squares(files: list[Path]) -> Any:
    """One out of the middle of each image."""
    import numpy as np

    from nediff.data import open_measurements

    images = open_measurements(files, range=(0, 255))
    squares = []
    for i in range(len(images)):
        top, left = ((n - SIDE) // 2 for n in images.size(i))
        squares.append(images.crop(i, top, left, SIDE, SIDE))
    return open_measurements(np.stack(squares), axes="NCHW", range=(0, 1))


def _spread(restorer: Any, clean: Any, sigma: float) -> list[dict[str, Any]]:
    """Of samples as they are drawn, and of the same corrected as those of grey images are."""
    import torch

    from nediff.evaluation.calibrate import uncorrected
    from nediff.evaluation.calibration import Calibration
    from nediff.pretrained import load_pretrained

    known: Any = load_pretrained(1).correction
    noisy, level = clean.simulate(sigma, SEED + 1), torch.tensor([sigma])
    drawn, shown = Calibration(DRAWN), Calibration(DRAWN)
    for i in range(len(clean)):
        x, y = clean.image(i), noisy.image(i)
        estimate, samples = (
            restorer.restore(y, sigma),
            uncorrected(restorer).sample(y, DRAWN, i, sigma),
        )
        drawn.add(x, samples, estimate)
        tensors = (torch.from_numpy(v)[..., None, :, :, :] for v in (samples, estimate))
        right = known.apply(*tensors, level, restorer.problem, [i])
        shown.add(x, right[:, 0].numpy(), estimate)
    rows = []
    for kind, judged in (("uncorrected", drawn), ("corrected", shown)):
        promised, held = judged.coverage()[-1]
        found = {"error2_over_variance": judged.ratio, "promised": promised, "held": held}
        rows.append({"sigma": sigma, "as": kind, **found})
        print(rows[-1], flush=True)
    return rows


def _levels(restorer: Any, clean: Any) -> dict[str, Any]:
    from nediff.evaluation.metrics import psnr

    rows = []
    for sigma in LEVELS:
        noisy, scores = clean.simulate(sigma, SEED + 1), []
        for i in range(len(clean)):
            y, x = noisy.image(i), clean.image(i)
            scores.append((psnr(y, x), psnr(restorer.restore(y, sigma), x)))
        before, after = (sum(column) / len(scores) for column in zip(*scores, strict=True))
        rows.append({"sigma": sigma, "psnr_noisy": before, "psnr": after})
        print(restorer.config.data.channels, rows[-1], flush=True)
    return {"images": len(clean), "levels": rows}


def card(figures: dict[str, Any]) -> str:
    def row(source: str, words: str) -> str:
        cells = " | ".join(
            f"{level['psnr_noisy']:.2f} → **{level['psnr']:.2f}**"
            for level in figures[source]["levels"]
        )
        return f"| {words}, {figures[source]['images']} images | {cells} |"

    names = ", ".join(f"`{Path(name).stem}`" for name in TRAIN)
    rows = [("bsd68_gray", "BSD68, grey"), ("camera_real/mean", "camera, colour")]
    table = "\n".join(row(*pair) for pair in rows if pair[0] in figures)
    samples = "".join(
        _error_bars(figures[key], words)
        for key, words in (
            ("samples of bsd68_gray", GREY),
            ("samples of camera_real/mean", "camera, colour"),
        )
        if key in figures
    )
    head = " | ".join(f"σ = {sigma:g}" for sigma in LEVELS)
    return f"""# The pretrained network

For a first look: `nediff restore --pretrained IMAGES --out restored --sigma 0.1`, and `nediff app`
without a run. Removes white Gaussian noise of any σ up to 0.2 of the intensity range (up to 0.4
with less contrast), and draws posterior samples.

- **Trained on** {len(TRAIN)} pictures that come with scikit-image, all CC0, in the public domain or
  without known copyright restrictions by its documentation: {names}. They were made grey,
  corrupted once with σ_n = {SIGMA:g}, and only these noisy pictures were used.
- **Network:** `small`, for grey images; 309 k parameters, kept in half precision. Several channels
  are denoised one after another; those of a colour image as their mean and two differences.
- **Made by** `python -m benchmarks.pretrained` ({STEPS} steps, ten minutes of one core, seed
  {SEED}); every setting is in `config.yaml`.
- **Licence:** that of nediff.

PSNR in dB, noisy → restored, on images of other origin with simulated noise (`figures.json`):

| | {head} |
|---|{"---|" * len(LEVELS)}
{table}

Error bars: squared error over variance of {DRAWN} samples (1 is right; above, error bars are too
narrow), and how many true values the interval from the lowest to the highest of them holds, where
{(DRAWN - 1) / (DRAWN + 1):.0%} are promised; on squares of {SIDE} pixels:

| | {head} |
|---|{"---|" * len(LEVELS)}
{samples}
*As drawn* is without `calibration.json`, which was found on noisy squares of a hundred photographs
of BSD400, without their clean versions; no picture of it is in the network or in this package, only
the numbers that came of it. Colour images are shown without it: on five pictures of a camera,
smoother than those, error bars were about right without, and would have been too wide with it. That
choice was made by looking at these five.

**Not good for** images unlike photographs (electron or fluorescence microscopy, tomography,
spectra), noise that is not white (JPEG, demosaiced or resized pictures) or that depends on the
signal (photon counts), missing pixels, or any figure in a paper: its error bars are those of
somebody else's pictures. Twelve pictures and ten minutes are little. Train on your own images,
which takes twenty minutes and no clean image: `nediff train`.
"""


def _error_bars(judged: dict[str, Any], words: str) -> str:
    """Rows of the card's second table."""
    rows = ""
    names = {"uncorrected": "as drawn", "corrected": "as shown"}
    if words != GREY:  # see load_pretrained
        names = {"uncorrected": "as shown", "corrected": "were they corrected as grey ones"}
    for kind, name in names.items():
        levels = [row for row in judged["levels"] if row["as"] == kind]
        if levels:
            cells = " | ".join(f"{r['error2_over_variance']:.2f}, {r['held']:.0%}" for r in levels)
            rows += f"| {words}, {judged['squares']} squares, {name} | {cells} |\n"
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("train", "pack", "calibrate", "check", "judge"))
    what = parser.parse_args().what
    if what in ("train", "pack"):
        {"train": train, "pack": pack}[what]()
        return
    {"calibrate": calibrate, "check": check, "judge": judge}[what](Path(os.environ["NEDIFF_DATA"]))


if __name__ == "__main__":
    main()
