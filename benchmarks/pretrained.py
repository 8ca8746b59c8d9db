"""Make the network that comes with the package, and measure it.

    python -m benchmarks.pretrained train     # runs/pretrained/grey; interrupted, it goes on
    python -m benchmarks.pretrained pack      # nediff/pretrained/grey
    NEDIFF_DATA=FOLDER python -m benchmarks.pretrained check

Photographs that come inside scikit-image, those that are CC0 or in the public domain by its
documentation, are made grey and corrupted once with σ_n = 0.2. The network learns from these noisy
images alone. `pack` copies what is needed into the package, the weights in half precision. `check`
writes figures.json there: PSNR at lower and equal noise levels on images of other origin (FOLDER
holds `bsd68_gray` and `camera_real`), and from it the card.
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


def check(data: Path) -> None:
    """PSNR on images of other origin, and the card; then the calibration of samples at σ_n."""
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
    figures["samples at 0.2"] = _calibration(data / "bsd68_gray")
    _keep(figures)


def _keep(figures: dict[str, Any]) -> None:
    (PACKAGE / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    (PACKAGE / "README.md").write_text(card(figures), encoding="utf-8")


SQUARES, SIDE = 8, 96


def _calibration(folder: Path) -> dict[str, Any]:
    """Of samples of squares out of the middle of some images."""
    import numpy as np

    from nediff.data import open_measurements
    from nediff.evaluation import evaluate_with_truth
    from nediff.pretrained import load_pretrained

    images = open_measurements(sorted(folder.iterdir())[:SQUARES], range=(0, 255))
    squares = []
    for i in range(len(images)):
        top, left = ((n - SIDE) // 2 for n in images.size(i))
        squares.append(images.crop(i, top, left, SIDE, SIDE))
    few = open_measurements(np.stack(squares), axes="NCHW", range=(0, 1))
    judged = evaluate_with_truth(load_pretrained(1), few.simulate(SIGMA, SEED + 1), few, 8)
    assert judged.spread is not None
    return {
        "squares": len(few),
        "side": SIDE,
        "error2_over_variance": judged.spread.error2_over_variance,
        "coverage": judged.spread.coverage,
    }


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
    samples = ""
    if (judged := figures.get("samples at 0.2")) is not None:
        ratio, of = judged["error2_over_variance"], f"{judged['squares']} squares of {SIDE} pixels"
        samples = f"""
Samples at σ = 0.2 of {of} of BSD68: squared error over variance
{ratio:.2f} (1 is right; above, the error bars are too narrow).
"""
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
{samples}
**Not good for** images unlike photographs (electron or fluorescence microscopy, tomography,
spectra), noise that is not white (JPEG, demosaiced or resized pictures) or that depends on the
signal (photon counts), missing pixels, or any figure in a paper: its error bars are those of
somebody else's pictures. Twelve pictures and ten minutes are little. Train on your own images,
which takes twenty minutes and no clean image: `nediff train`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("train", "pack", "check"))
    what = parser.parse_args().what
    if what == "check":
        check(Path(os.environ["NEDIFF_DATA"]))
    else:
        {"train": train, "pack": pack}[what]()


if __name__ == "__main__":
    main()
