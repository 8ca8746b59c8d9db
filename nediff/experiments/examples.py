"""Pictures: one step at two noise levels, samples with a part enlarged, three noise levels,
inpainting and demosaicing.

At the `paper` scale they are of the validation images. Elsewhere of photographs that come with
scikit-image and may be shown by anyone, cut to the size of the training images: the stand-ins
for the paper's sets may not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.Image import Image as Picture

from nediff.data import atomic_path, open_measurements
from nediff.evaluation.metrics import psnr
from nediff.experiments import scoring, table1, table2
from nediff.experiments.denoisers import sampler_of
from nediff.experiments.models import METHODS, SEED, Model
from nediff.experiments.pieces import Experiment, Piece, Result, Workspace
from nediff.experiments.scales import SETS
from nediff.experiments.scoring import Images
from nediff.experiments.sets import open_set
from nediff.report.pictures import montage, to_picture
from nediff.restorer import Restorer

NAME = "fig-examples"
SIGMA, LOWER = 0.075, 0.02
BOXES = {
    "afhq": ("chelsea", (80, 0, 380, 300)),
    "ffhq": ("astronaut", (140, 20, 320, 200)),
    "nbu": ("camera", (0, 200, 300, 500)),
}
ONE_STEP = ("supervised", "default", "paper", "cd", "sure")
SAMPLED = (
    ("MMSE (ours)", "default", None),
    ("ours", "default", "default"),
    ("ours, as in the paper", "paper", "paper"),
    ("CD", "cd", "default"),
    ("MMSE (supervised)", "supervised", None),
    ("EDM (supervised)", "supervised", "default"),
)
Row = list[tuple[str, Picture]]


def shown(workspace: Workspace, images: str, side: int) -> Images:
    """The picture of a set, (1, C, side, side)."""
    if workspace.scale.name == "paper":
        return np.stack([open_set(workspace, images, "val", side).image(0)])
    from skimage import data

    name, box = BOXES[images]
    cut = Image.fromarray(getattr(data, name)()).crop(box)
    pixels = np.asarray(cut.resize((side, side), Image.Resampling.BOX), dtype=np.float32) / 255
    return np.stack([np.atleast_3d(pixels).transpose(2, 0, 1)])


def measured(x: Images, sigma: float, model: Model, workspace: Workspace) -> Images:
    """It, measured once."""
    clean = open_measurements(x, axes="NCHW", range=(0, 1))
    if model.problem == "denoising":
        return np.stack([clean.simulate(sigma, SEED + 1).image(0)])
    instrument = model.instrument(workspace, clean.channels, told=False)
    return np.stack([clean.simulate(sigma, SEED + 1, instrument).image(0)])


def _captioned(words: str, image: Images, truth: Images) -> tuple[str, Picture]:
    return f"{words}\n{psnr(image[0], truth[0]):.1f} dB", to_picture(image[0])


def _sample(restorer: Restorer, y: Images, sigma: float, sampler: str | None) -> Images:
    if sampler is None:
        return scoring.estimates(restorer, y, sigma)
    drawn = scoring.samples(restorer, y, 1, sampler_of(sampler, sigma))
    return drawn[0]  # type: ignore[no-any-return]


def _one_step(workspace: Workspace, images: str) -> list[Row]:
    """σ_n above, a lower level below; one column for each method."""
    x = shown(workspace, images, workspace.scale.side)
    rows: list[Row] = []
    for sigma in (SIGMA, LOWER):
        y = measured(x, sigma, Model(images, SIGMA, "default"), workspace)
        row = [("truth", to_picture(x[0])), _captioned(f"σ = {sigma:g}", y, x)]
        for method in ONE_STEP:
            restorer = Model(images, SIGMA, method).train(workspace)
            estimate = scoring.estimates(restorer, y, sigma)
            row.append(_captioned(METHODS[method].words, estimate, x))
        rows.append(row)
    return rows


def _samples(workspace: Workspace, images: str, sigma: float = SIGMA) -> list[Row]:
    """All methods, and below each the middle of its picture enlarged four times."""
    x = shown(workspace, images, workspace.scale.side)
    y = measured(x, sigma, Model(images, sigma, "default"), workspace)
    row = [("truth", to_picture(x[0])), _captioned(f"σ_n = {sigma:g}", y, x)]
    for words, method, sampler in SAMPLED:
        restorer = Model(images, sigma, method).train(workspace)
        row.append(_captioned(words, _sample(restorer, y, sigma, sampler), x))
    return [row, [("enlarged" if i == 0 else "", _middle(p)) for i, (_, p) in enumerate(row)]]


def _middle(picture: Picture) -> Picture:
    """A quarter of the width and height, from the middle."""
    width, height = picture.size
    box = (3 * width // 8, 3 * height // 8, 5 * width // 8, 5 * height // 8)
    return picture.crop(box).resize((width, height), Image.Resampling.NEAREST)


def _stack(workspace: Workspace) -> list[Row]:
    """AFHQ at three noise levels of training and test."""
    return [_samples(workspace, "afhq", sigma)[0] for sigma in (0.05, 0.075, 0.1)]


def _operator(workspace: Workspace, problem: str) -> list[Row]:
    """What was measured, and what each method makes of it."""
    x = shown(workspace, "afhq", workspace.scale.operator_side)
    y = measured(x, SIGMA, table2.model_of(problem, "default"), workspace)
    row = [("truth", to_picture(x[0])), ("measured", to_picture(y[0]))]
    for method in table2.COMPARED:
        restorer = table2.judged(table2.model_of(problem, method), workspace)
        sampler = {"ei": None, "default": "default"}.get(method, "paper")
        row.append(_captioned(METHODS[method].words, _sample(restorer, y, SIGMA, sampler), x))
    return [row]


def _piece(name: str, needs: list[str], draw: Callable[[Workspace], list[Row]]) -> Piece:
    """A picture in figures/; the piece records its captions."""

    def run(workspace: Workspace) -> Result:
        rows, path = draw(workspace), picture_path(workspace, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            montage(rows, side=150).save(temporary, "PNG", optimize=True)
        return {"picture": path.name, "captions": [[words for words, _ in row] for row in rows]}

    return Piece(f"examples-{name}", 0.3, {"picture": name}, run, tuple(dict.fromkeys(needs)))


def picture_path(workspace: Workspace, name: str) -> Path:
    """Of one of the pictures."""
    return workspace.out / "figures" / f"examples-{name}.png"


def pieces(workspace: Workspace) -> list[Piece]:
    """The networks of the tables, then the pictures."""
    from nediff.experiments import levels

    trained = [*levels.pieces(workspace), *table1.pieces(workspace), *table2.pieces(workspace)]
    drawn = []
    for images in SETS:
        steps = [Model(images, SIGMA, m).key for m in ONE_STEP]
        drawn.append(_piece(f"{images}-one-step", steps, partial(_one_step, images=images)))
        used = [Model(images, SIGMA, m).key for _, m, _ in SAMPLED]
        drawn.append(_piece(f"{images}-samples", used, partial(_samples, images=images)))
    used = [Model("afhq", s, m).key for s in (0.05, 0.075, 0.1) for _, m, _ in SAMPLED]
    drawn.append(_piece("afhq-levels", used, _stack))
    for problem in table2.PROBLEMS:
        used = [table2.model_of(problem, m).key for m in table2.COMPARED]
        drawn.append(_piece(problem, used, partial(_operator, problem=problem)))
    return [*{piece.key: piece for piece in trained}.values(), *drawn]


def show(workspace: Workspace) -> list[Path]:
    """The pictures, which their pieces have drawn."""
    names = [p.settings["picture"] for p in pieces(workspace) if "picture" in p.settings]
    paths = [picture_path(workspace, name) for name in names]
    return [path for path in paths if path.is_file()]


EXPERIMENT = Experiment(NAME, "pictures of every method, on every set and operator", pieces, show)
