"""Pictures: one step at two noise levels, samples with a part enlarged, three noise levels,
inpainting and demosaicing.

Every network draws its own pictures as soon as it is trained (`examples/`, a few kilobytes each);
the figures are put together from those that are there, and need no network.

At the `paper` scale they are of the validation images. Elsewhere of photographs that come with
scikit-image and may be shown by anyone, cut to the size of the training images: the stand-ins
for the paper's sets may not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from PIL.Image import Image as Picture

from nediff.data import atomic_path, open_measurements
from nediff.evaluation.metrics import psnr
from nediff.experiments import levels, scoring, table1, table2
from nediff.experiments.denoisers import SAMPLERS, sampler_of
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
    ("MMSE (ours)", "default", "step"),
    ("ours", "default", "sample-default"),
    ("ours, as in the paper", "paper", "sample-paper"),
    ("CD", "cd", "sample-default"),
    ("MMSE (supervised)", "supervised", "step"),
    ("EDM (supervised)", "supervised", "sample-default"),
)
"""Words, method and picture of each column."""
COMPLETED = (
    ("EI:\nestimate", "ei", "restored"),
    ("ours, the default:\nestimate", "default", "estimate"),
    ("ours, the default:\nsample", "default", "restored"),
    ("ours, as in the paper:\nsample", "paper", "restored"),
    ("Ambient, given data\nwithout noise: sample", "ambient", "restored"),
)
"""The same for inpainting and demosaicing."""
OPERATOR_SAMPLER = {"ei": None, "default": "default"}
"""EI is a point estimate; the others are drawn by the paper's sampler."""
Shown = tuple[str, Picture]
Drawn = dict[str, Images]
"""Pictures by name, (1, C, side, side)."""


def shown(workspace: Workspace, images: str, side: int) -> Images:
    """The picture of a set, (1, C, side, side)."""
    if workspace.scale.name == "paper":
        return np.stack([open_set(workspace, images, "val", side).image(0)])
    from skimage import data

    name, box = BOXES[images]
    cut = Image.fromarray(getattr(data, name)()).crop(box)
    pixels = np.asarray(cut.resize((side, side), Image.Resampling.BOX), dtype=np.float32) / 255
    return np.stack([np.atleast_3d(pixels).transpose(2, 0, 1)])


def truth_of(model: Model, workspace: Workspace) -> Images:
    """The picture that a network is shown with."""
    scale = workspace.scale
    side = scale.side if model.problem == "denoising" else scale.operator_side
    return shown(workspace, model.images, side)


def measured(x: Images, sigma: float, model: Model, workspace: Workspace) -> Images:
    """It, measured once."""
    clean = open_measurements(x, axes="NCHW", range=(0, 1))
    if model.problem == "denoising":
        return np.stack([clean.simulate(sigma, SEED + 1).image(0)])
    instrument = model.instrument(workspace, clean.channels, told=False)
    return np.stack([clean.simulate(sigma, SEED + 1, instrument).image(0)])


def _step(sigma: float) -> str:
    return f"step-{sigma:g}"


def draw_denoised(model: Model, restorer: Restorer, workspace: Workspace) -> Drawn:
    """One step at σ_n and at a lower level, and a sample by each sampler of the method."""
    x = truth_of(model, workspace)
    out = {}
    for sigma in (model.sigma, LOWER):
        y = measured(x, sigma, model, workspace)
        out[_step(sigma)] = scoring.estimates(restorer, y, sigma)
    y = measured(x, model.sigma, model, workspace)
    for sampler in SAMPLERS[model.method]:
        settings = sampler_of(sampler, model.sigma)
        out[f"sample-{sampler}"] = scoring.samples(restorer, y, 1, settings)[0]
    return out


def draw_completed(model: Model, restorer: Restorer, workspace: Workspace) -> Drawn:
    """What a method of table 2 makes of a picture: an estimate, or a sample; by default both."""
    y = measured(truth_of(model, workspace), model.sigma, model, workspace)
    sampler = OPERATOR_SAMPLER.get(model.method, "paper")
    if sampler is None:
        return {"restored": scoring.estimates(restorer, y, model.sigma)}
    drawn = {"restored": scoring.samples(restorer, y, 1, sampler_of(sampler, model.sigma))[0]}
    if model.method == "default":
        drawn["estimate"] = scoring.estimates(restorer, y, model.sigma)
    return drawn


def _drawn(model: Model, restorer: Restorer, workspace: Workspace) -> Drawn:
    """All pictures of a network."""
    draw = draw_denoised if model.problem == "denoising" else draw_completed
    return draw(model, restorer, workspace)


def psnr_again(model: Model, restorer: Restorer, workspace: Workspace) -> dict[str, float]:
    """What the piece of its pictures records, from the network, without writing them."""
    return _psnr(_drawn(model, restorer, workspace), truth_of(model, workspace))


def _psnr(drawn: Drawn, truth: Images) -> dict[str, float]:
    return {name: float(psnr(image[0], truth[0])) for name, image in drawn.items()}


def _save(workspace: Workspace, key: str, name: str, image: Images) -> None:
    path = picture_path(workspace, key, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        to_picture(image[0]).save(temporary, "PNG", optimize=True)


def _keep(key: str, drawn: Drawn, truth: Images, workspace: Workspace) -> Result:
    """The pictures as files; their PSNR is what the piece records."""
    for name, image in drawn.items():
        _save(workspace, key, name, image)
    return {"psnr": _psnr(drawn, truth)}


def network_piece(model: Model) -> Piece:
    """The pictures of one network."""

    def run(workspace: Workspace) -> Result:
        denoises = model.problem == "denoising"
        restorer = model.train(workspace) if denoises else table2.judged(model, workspace)
        drawn = _drawn(model, restorer, workspace)
        return _keep(model.key, drawn, truth_of(model, workspace), workspace)

    return Piece(f"examples-{model.key}", 0.02, {"pictures": model.key}, run, (model.key,))


def truth_piece(model: Model, sigmas: tuple[float, ...]) -> Piece:
    """The truth and what was measured of it."""
    key = model.images if model.problem == "denoising" else model.problem

    def run(workspace: Workspace) -> Result:
        x = truth_of(model, workspace)
        _save(workspace, key, "truth", x)
        noisy = {f"noisy-{s:g}": measured(x, s, model, workspace) for s in sigmas}
        return _keep(key, noisy, x, workspace)

    return Piece(f"examples-{key}", 0.01, {"pictures": key, "sigmas": list(sigmas)}, run)


def picture_path(workspace: Workspace, key: str, name: str) -> Path:
    """Of one picture of a network, or of the truth."""
    return workspace.out / "examples" / f"{key}-{name}.png"


def figure_path(workspace: Workspace, name: str) -> Path:
    """Of one of the figures."""
    return workspace.out / "figures" / f"examples-{name}.png"


def _captioned(workspace: Workspace, key: str, name: str, words: str) -> Shown | None:
    """A picture with its PSNR; None while it is not drawn."""
    result, path = workspace.result(f"examples-{key}"), picture_path(workspace, key, name)
    if result is None or not path.is_file():
        return None
    caption = f"{words}\n{result['psnr'][name]:.1f} dB" if name in result["psnr"] else words
    with Image.open(path) as picture:
        return caption, picture.copy()


def _row(cells: list[Shown | None]) -> list[Shown]:
    return [cell for cell in cells if cell is not None]


def one_step(workspace: Workspace, images: str) -> list[list[Shown]]:
    """σ_n above, a lower level below; one column for each method."""
    rows = []
    for sigma in (SIGMA, LOWER):
        cells = [
            _captioned(workspace, images, "truth", "truth"),
            _captioned(workspace, images, f"noisy-{sigma:g}", f"σ = {sigma:g}"),
        ]
        for method in ONE_STEP:
            key = Model(images, SIGMA, method).key
            cells.append(_captioned(workspace, key, _step(sigma), METHODS[method].words))
        rows.append(_row(cells))
    return rows


def samples(workspace: Workspace, images: str, sigma: float = SIGMA) -> list[list[Shown]]:
    """All methods, and below each the middle of its picture enlarged four times."""
    cells = [
        _captioned(workspace, images, "truth", "truth"),
        _captioned(workspace, images, f"noisy-{sigma:g}", f"σ_n = {sigma:g}"),
    ]
    for words, method, name in SAMPLED:
        key = Model(images, sigma, method).key
        cells.append(_captioned(workspace, key, _step(sigma) if name == "step" else name, words))
    row = _row(cells)
    return [row, [("enlarged" if i == 0 else "", _middle(p)) for i, (_, p) in enumerate(row)]]


def _middle(picture: Picture) -> Picture:
    """A quarter of the width and height, from the middle."""
    width, height = picture.size
    box = (3 * width // 8, 3 * height // 8, 5 * width // 8, 5 * height // 8)
    return picture.crop(box).resize((width, height), Image.Resampling.NEAREST)


def three_levels(workspace: Workspace) -> list[list[Shown]]:
    """AFHQ at three noise levels of training and test."""
    return [samples(workspace, "afhq", sigma)[0] for sigma in (0.05, 0.075, 0.1)]


def completed(workspace: Workspace, problem: str) -> list[list[Shown]]:
    """What was measured, and what each method makes of it."""
    cells = [
        _captioned(workspace, problem, "truth", "truth\n"),
        _captioned(workspace, problem, f"noisy-{SIGMA:g}", "measured\n"),
    ]
    for words, method, name in COMPLETED:
        key = table2.model_of(problem, method).key
        cells.append(_captioned(workspace, key, name, words))
    return [_row(cells)]


def _figures(workspace: Workspace) -> dict[str, list[list[Shown]]]:
    found = {}
    for images in SETS:
        found[f"{images}-one-step"] = one_step(workspace, images)
        found[f"{images}-samples"] = samples(workspace, images)
    found["afhq-levels"] = three_levels(workspace)
    return found | {problem: completed(workspace, problem) for problem in table2.PROBLEMS}


def _networks(workspace: Workspace) -> list[Piece]:
    """What has to be trained."""
    found = [*levels.pieces(workspace), *table1.pieces(workspace), *table2.pieces(workspace)]
    return list({piece.key: piece for piece in found}.values())


def pieces(workspace: Workspace) -> list[Piece]:
    """The networks of the tables, then their pictures."""
    trained = _networks(workspace)
    truths = [
        truth_piece(Model(images, SIGMA, "default"), (LOWER, 0.05, SIGMA, 0.1)) for images in SETS
    ]
    truths += [
        truth_piece(table2.model_of(problem, "default"), (SIGMA,)) for problem in table2.PROBLEMS
    ]
    return [*trained, *truths, *(network_piece(Model.of(p.settings)) for p in trained)]


def show(workspace: Workspace) -> list[Path]:
    """The figures, of the pictures that are there."""
    paths = []
    for name, rows in _figures(workspace).items():
        if all(len(row) > 2 for row in rows):  # more than the truth and its measurement
            path = figure_path(workspace, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as temporary:
                montage(rows, side=150).save(temporary, "PNG", optimize=True)
            paths.append(path)
    return paths


EXPERIMENT = Experiment(NAME, "pictures of every method, on every set and operator", pieces, show)
