"""Table 2 of the paper: inpainting and demosaicing with EI, ours and Ambient Diffusion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nediff.experiments import scoring
from nediff.experiments.denoisers import SAMPLES, sampler_of
from nediff.experiments.models import METHODS, Model
from nediff.experiments.pieces import Experiment, Piece, Result, Workspace
from nediff.experiments.tables import fid_heading, fid_words, markdown, number, write_table
from nediff.restorer import Restorer

NAME = "table2"
IMAGES, SIGMA = "afhq", 0.075
PROBLEMS = ("inpainting", "demosaicing")
COMPARED = ("ei", "paper", "default", "ambient")


def model_of(problem: str, method: str) -> Model:
    """The network of a row."""
    return Model(IMAGES, SIGMA, method, problem)


def pieces(workspace: Workspace) -> list[Piece]:
    """One network for each problem and method."""
    models = [model_of(problem, method) for problem in PROBLEMS for method in COMPARED]
    minutes = workspace.scale.operator_minutes
    sampled: Result = {"calibrated": workspace.scale.calibrated, "samples": SAMPLES}
    return [
        Piece(
            m.key,
            minutes[m.problem] + 6,
            m.settings(workspace) | sampled,
            _runner(m),
            perceptual=True,
        )
        for m in models
    ]


def judged(model: Model, workspace: Workspace) -> Restorer:
    """The trained network; our default has a spread where nothing was measured, no other has."""
    restorer = model.train(workspace)
    if model.method == "default":
        return restorer
    return Restorer(restorer.problem, restorer.denoiser, restorer.config)


def _runner(model: Model) -> Any:
    return lambda workspace: run(model, workspace)


def run(model: Model, workspace: Workspace) -> Result:
    """Train, then the estimates and one sample of each image, at σ_n."""
    restorer = judged(model, workspace)
    model.keep(restorer, workspace)
    noisy = model.measurements(workspace, "val")
    truth, perceptual = scoring.truth_of(noisy), scoring.metrics(workspace)
    y = np.stack([noisy.image(i) for i in range(len(noisy))])
    settings = sampler_of("default" if model.method == "default" else "paper", model.sigma)
    estimate = scoring.estimates(restorer, y, model.sigma)
    one = scoring.samples(restorer, y, 1, settings)[0]
    few = min(workspace.scale.calibrated, len(truth))
    several = scoring.samples(restorer, y[:few], SAMPLES, settings, seed=1)
    side = workspace.scale.operator_side
    out: Result = {"trained": model.record(workspace), "images": len(truth)}
    out |= {"sampler": settings.solver, "fid_reference": scoring.REFERENCE}
    out["fid_name"] = scoring.fid_name(workspace)
    out["fid_truth"] = scoring.fid_floor(workspace, model.images, truth, side)
    for name, images in (("estimate", estimate), ("sample", one)):
        out[name] = scoring.image_scores(images, truth, perceptual)
        out[name]["fid"] = scoring.fid(workspace, model.images, images, side)
    out["calibration"] = scoring.calibration(several, truth[:few], estimate[:few])
    return out


def rows(workspace: Workspace) -> list[dict[str, Any]]:
    """EI is a point estimate; of the others one sample, as in the paper, and the estimate."""
    out = []
    for problem in PROBLEMS:
        for method in COMPARED:
            key = model_of(problem, method).key
            result = workspace.result(key)
            if result is None:
                continue
            for kind in ("estimate",) if method == "ei" else ("sample", "estimate"):
                scores = {
                    name: float(np.mean(values))
                    for name, values in result[kind].items()
                    if values is not None
                }
                row = {"problem": problem, "method": method, "kind": kind, **scores}
                row["where"] = [key, kind]
                row |= {k: result[k] for k in ("fid_truth", "fid_name", "fid_reference", "images")}
                if kind == "sample":
                    row["error2_over_variance"] = result["calibration"]["error2_over_variance"]
                out.append(row)
    return out


def table(workspace: Workspace) -> str:
    """Markdown."""
    found = rows(workspace)
    body = [
        [
            row["problem"],
            METHODS[row["method"]].words,
            METHODS[row["method"]].given,
            row["kind"],
            number(row["psnr"], 2),
            number(row["ssim"], 3),
            number(row.get("lpips"), 3),
            number(row.get("fid"), 2),
            number(row["fid_truth"], 2),
            number(row.get("error2_over_variance"), 2),
        ]
        for row in found
    ]
    head = ["problem", "trained with", "given", "of", "PSNR", "SSIM", "LPIPS"]
    head += [fid_heading(found), "floor"]
    intro = (
        f"One mask with 70 % of the pixels, or a Bayer mosaic; σ_n = {SIGMA:g}. Ours by default "
        "with our sampler and its spread where nothing was measured, the others with the paper's "
        f"sampler alone.{fid_words(found)}"
    )
    return "\n".join([intro, "", *markdown([*head, "error²/variance"], body)]) + "\n"


def show(workspace: Workspace) -> list[Path]:
    """The table."""
    return [write_table(workspace, NAME, table(workspace), rows(workspace))]


EXPERIMENT = Experiment(
    NAME, "inpainting and demosaicing: EI, ours, Ambient Diffusion", pieces, show
)
