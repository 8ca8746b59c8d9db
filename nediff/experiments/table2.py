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
from nediff.sampling import SamplerSettings

NAME = "table2"
IMAGES, SIGMA = "afhq", 0.075
PROBLEMS = ("inpainting", "demosaicing")
COMPARED = ("ei", "paper", "default", "ambient")
KINDS = {"sample": "sample", "our_sample": "sample, our sampler", "estimate": "estimate"}
"""What a row can be of. Ambient Diffusion is judged with the printed sampler, as the paper does,
and with ours."""


def model_of(problem: str, method: str) -> Model:
    """The network of a row."""
    return Model(IMAGES, SIGMA, method, problem)


def pieces(workspace: Workspace) -> list[Piece]:
    """One network for each problem and method."""
    models = [model_of(problem, method) for problem in PROBLEMS for method in COMPARED]
    scale = workspace.scale
    judging = 6 * scale.judging(IMAGES, scale.operator_side)
    sampled: Result = {"calibrated": scale.calibrated, "samples": SAMPLES}
    return [
        Piece(
            m.key,
            scale.operator_minutes[m.problem] + judging,
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
    estimate = scoring.estimates(restorer, y, model.sigma)
    side, few = workspace.scale.operator_side, min(workspace.scale.calibrated, len(truth))
    measurement, here = restorer.measured(y)
    known = here.operator.known(measurement).expand(truth.shape).cpu().numpy()
    out: Result = {"trained": model.record(workspace), "images": len(truth)}
    out |= {"fid_reference": scoring.REFERENCE, "fid_name": scoring.fid_name(workspace)}
    out["fid_truth"] = scoring.fid_floor(workspace, model.images, truth, side)

    def judge(name: str, images: scoring.Images) -> None:
        out[name] = scoring.image_scores(images, truth, perceptual)
        out[name] |= scoring.scores_by_place(images, truth, known)
        out[name]["fid"] = scoring.fid(workspace, model.images, images, side)

    judge("estimate", estimate)
    out["samplers"], out["calibration"] = {}, {}
    for name, settings in _samplers(model).items():
        judge(name, scoring.samples(restorer, y, 1, settings)[0])
        several = scoring.samples(restorer, y[:few], SAMPLES, settings, seed=1)
        out["samplers"][name] = settings.solver
        out["calibration"][name] = scoring.calibration(several, truth[:few], estimate[:few])
    return out


def _samplers(model: Model) -> dict[str, SamplerSettings]:
    if model.method == "default":
        return {"sample": sampler_of("default", model.sigma)}
    found = {"sample": sampler_of("paper", model.sigma)}
    if model.method == "ambient":
        found["our_sample"] = sampler_of("default", model.sigma)
    return found


def rows(workspace: Workspace) -> list[dict[str, Any]]:
    """EI is a point estimate; of the others one sample, as in the paper, and the estimate."""
    out = []
    for problem in PROBLEMS:
        for method in COMPARED:
            key = model_of(problem, method).key
            result = workspace.result(key)
            if result is None:
                continue
            for kind in ("estimate",) if method == "ei" else KINDS:
                if kind not in result:
                    continue
                scores = {
                    name: float(np.mean(values))
                    for name, values in result[kind].items()
                    if values is not None
                }
                row = {"problem": problem, "method": method, "kind": kind, **scores}
                row["where"] = [key, kind]
                row |= {k: result[k] for k in ("fid_truth", "fid_name", "fid_reference", "images")}
                if kind != "estimate":
                    row["error2_over_variance"] = _calibration(result, kind)
                out.append(row)
    return out


def _calibration(result: Result, kind: str) -> float:
    """Of one sampler; older pieces have one alone."""
    found = result["calibration"]
    return float(found.get(kind, found)["error2_over_variance"])


def table(workspace: Workspace) -> str:
    """Markdown."""
    found = rows(workspace)
    body = [
        [
            row["problem"],
            METHODS[row["method"]].words,
            METHODS[row["method"]].given,
            KINDS[row["kind"]],
            number(row["psnr"], 2),
            number(row.get("psnr_measured"), 2),
            number(row.get("psnr_missing"), 2),
            number(row["ssim"], 3),
            number(row.get("lpips"), 3),
            number(row.get("fid"), 2),
            number(row["fid_truth"], 2),
            number(row.get("error2_over_variance"), 2),
        ]
        for row in found
    ]
    head = [
        "problem",
        "trained with",
        "given",
        "of",
        "PSNR",
        "measured",
        "missing",
        "SSIM",
        "LPIPS",
    ]
    head += [fid_heading(found), "floor"]
    intro = (
        f"One mask with 70 % of the pixels, or a Bayer mosaic; σ_n = {SIGMA:g}. Ours by default "
        "with our sampler and its spread where nothing was measured, the others with the paper's "
        "sampler alone, Ambient Diffusion with both. Also PSNR among the values that were measured "
        f"and those that were not, where it was recorded.{fid_words(found)}"
    )
    return "\n".join([intro, "", *markdown([*head, "error²/variance"], body)]) + "\n"


def show(workspace: Workspace) -> list[Path]:
    """The table."""
    return [write_table(workspace, NAME, table(workspace), rows(workspace))]


EXPERIMENT = Experiment(
    NAME, "inpainting and demosaicing: EI, ours, Ambient Diffusion", pieces, show
)
