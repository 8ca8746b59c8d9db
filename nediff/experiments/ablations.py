"""What each part of the method is worth: one change at a time, AFHQ, σ_n = 0.075."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nediff.experiments import scoring
from nediff.experiments.denoisers import denoiser_piece
from nediff.experiments.models import Model
from nediff.experiments.pieces import Experiment, Piece, Result, Workspace
from nediff.experiments.scoring import mean_of
from nediff.experiments.tables import markdown, write_table
from nediff.sampling import SamplerSettings

NAME = "ablations"
IMAGES, SIGMA = "afhq", 0.075
LEVELS = (0.01, 0.02, 0.05, 0.075)
SAMPLES = 8


@dataclass(frozen=True)
class Ablation:
    """A network trained with one change."""

    group: str
    words: str
    name: str
    method: str
    changes: tuple[tuple[str, Any], ...] = ()
    kind: str = "edm"
    told: float = 1.0


TRAINED = (
    Ablation("pooling", "the default recipe", "default", "default"),
    Ablation(
        "pooling",
        "without pooling",
        "no-pool",
        "default",
        (("pool", (1,)), ("pool_weights", (1.0,))),
    ),
    Ablation("pooling", "without rehearsal", "no-rehearsal", "default", (("rehearse", 0.0),)),
    Ablation("loss", "NE-SURE, as in the paper", "paper", "paper"),
    Ablation("range of α", "α from 0.1 to 1", "alpha-0.1", "paper", (("alpha_min", 0.1),)),
    Ablation("range of α", "α from 0.5 to 1", "alpha-0.5", "paper", (("alpha_min", 0.5),)),
    Ablation("range of μ", "μ = 0", "mu-0", "paper", (("mu_max", 0.0),)),
    Ablation("range of μ", "mean kept, μ from 0 to 1", "kept-mu-1", "paper", (), "uncentred"),
    Ablation(
        "range of μ",
        "mean kept, μ from 0 to 0.3",
        "kept-mu-0.3",
        "paper",
        (("mu_max", 0.3),),
        "uncentred",
    ),
    Ablation(
        "range of μ", "mean kept, μ = 0", "kept-mu-0", "paper", (("mu_max", 0.0),), "uncentred"
    ),
    Ablation("weighting", "divided by (ασ_n)²", "weighted", "paper", (("weighted", True),)),
    Ablation("architecture", "SURE alone", "sure", "sure"),
    Ablation("architecture", "SURE, exactly equivariant", "homogeneous", "sure", (), "homogeneous"),
    Ablation("architecture", "SURE, standardised", "standardised", "sure", (), "standardised"),
    Ablation("σ_n as told", "30 % too small", "told-0.7", "default", (), "edm", 0.7),
    Ablation("σ_n as told", "15 % too small", "told-0.85", "default", (), "edm", 0.85),
    Ablation("σ_n as told", "15 % too large", "told-1.15", "default", (), "edm", 1.15),
    Ablation("σ_n as told", "30 % too large", "told-1.3", "default", (), "edm", 1.3),
)
DEFAULT = SamplerSettings()
SAMPLERS: dict[str, tuple[SamplerSettings, ...]] = {
    "K": tuple(SamplerSettings(steps=k) for k in (5, 10, 20, 40)),
    "γ": tuple(SamplerSettings(gamma=g) for g in (1.0, 3.0, 7.0)),
    "σ_min/σ_n": tuple(
        SamplerSettings(sigma_min_ratio=r) for r in (1 / 60, 1 / 15, 2 / 15, 4 / 15)
    ),
    "solver": (
        SamplerSettings("paper", 25, 2 / 15, 7.0),
        SamplerSettings("heun", 25, 2 / 15, 7.0),
        DEFAULT,
    ),
}


def model_of(ablation: Ablation, workspace: Workspace) -> Model:
    """Its network."""
    return Model(
        IMAGES,
        SIGMA,
        ablation.method,
        steps=workspace.scale.ablation_steps[ablation.method],
        kind=ablation.kind,
        told=ablation.told,
        changes=ablation.changes,
        name=f"ablation-{ablation.name}",
    )


def _fits(ablation: Ablation, workspace: Workspace) -> bool:
    """The paper's network has no equivariant form."""
    return not (workspace.scale.size == "paper" and ablation.kind == "homogeneous")


def pieces(workspace: Workspace) -> list[Piece]:
    """One network for each change, then the samplers on that of table 1."""
    found = []
    for ablation in (a for a in TRAINED if _fits(a, workspace)):
        found.append(denoiser_piece(model_of(ablation, workspace), workspace, "calibration"))
    base = Model(IMAGES, SIGMA, "default")
    for settings in SAMPLERS.values():
        for chosen in settings:
            found.append(_sampler_piece(base, chosen, workspace))
    return [denoiser_piece(base, workspace), *found]


def _sampler_key(settings: SamplerSettings) -> str:
    values = f"{settings.steps}-{settings.gamma:g}-{settings.sigma_min_ratio:.3f}"
    return f"sampler-{settings.solver}-{values}"


def _sampler_piece(base: Model, settings: SamplerSettings, workspace: Workspace) -> Piece:
    recorded: Result = {"model": base.key, "sampler": asdict(settings)}

    def run(workspace: Workspace) -> Result:
        return judge(base, settings, workspace)

    minutes = workspace.scale.judging(IMAGES, workspace.scale.side)
    return Piece(_sampler_key(settings), minutes, recorded, run, (base.key,), perceptual=True)


def judge(model: Model, settings: SamplerSettings, workspace: Workspace) -> Result:
    """Quality and calibration of several samples of some images."""
    restorer = model.train(workspace)
    noisy = model.measurements(workspace, "val").select(range(workspace.scale.calibrated))
    truth, perceptual = scoring.truth_of(noisy), scoring.metrics(workspace)
    y = scoring.measured_at(noisy, model.sigma, restorer)
    drawn = scoring.samples(restorer, y, SAMPLES, settings, seed=1)
    estimate = scoring.estimates(restorer, y, model.sigma)
    scores = scoring.image_scores(drawn[0], truth, perceptual)
    return {**scores, "calibration": scoring.calibration(drawn, truth, estimate)}


def rows(workspace: Workspace) -> list[dict[str, Any]]:
    """Of the trained changes: PSNR at each level."""
    out = []
    for ablation in (a for a in TRAINED if _fits(a, workspace)):
        result = workspace.result(model_of(ablation, workspace).key)
        if result is None:
            continue
        psnr = {f"{s:g}": mean_of(result["levels"][f"{s:g}"])["psnr"] for s in LEVELS}
        row: dict[str, Any] = {"group": ablation.group, "words": ablation.words, "psnr": psnr}
        ratio = result["calibration"]["error2_over_variance"]
        out.append(row | {"method": ablation.method, "error2_over_variance": ratio})
    return out


def sampler_rows(workspace: Workspace) -> list[dict[str, Any]]:
    """Of the samplers: quality of one sample, calibration of eight."""
    out = []
    for group, settings in SAMPLERS.items():
        for chosen in settings:
            result = workspace.result(_sampler_key(chosen))
            if result is None:
                continue
            row: dict[str, Any] = {"group": group, **asdict(chosen)}
            row |= {k: float(np.mean(result[k])) for k in ("psnr", "ssim", "lpips") if k in result}
            calibration = result["calibration"]
            row |= {k: calibration[k] for k in ("error2_over_variance", "psnr_drop")}
            out.append(row)
    return out


def table(workspace: Workspace) -> str:
    """Markdown: two tables."""
    steps = workspace.scale.ablation_steps
    intro = (
        "One step, PSNR in dB. Ablations of NE-SURE and SURE are trained for "
        f"{steps['paper']} steps, of the default recipe for {steps['default']}, which takes about "
        "as long; compare within a group, and with the first row of its loss. A network that was "
        "told a wrong σ_n is used with levels as wrong. Networks subtract the mean of an image, so "
        "that μ changes nothing, but for those with *mean kept*. The last column is of samples at "
        "σ_n."
    )
    body = [
        [
            r["group"],
            r["words"],
            *(f"{r['psnr'][f'{s:g}']:.2f}" for s in LEVELS),
            f"{r['error2_over_variance']:.2f}",
        ]
        for r in rows(workspace)
    ]
    head = ["part", "change", *(f"σ = {s:g}" for s in LEVELS), "error²/variance"]
    lines = [intro, "", *markdown(head, body)]
    head = ["varied", "solver", "K", "γ", "σ_min/σ_n", "PSNR", "LPIPS", "error²/variance", "lost"]
    body = [
        [
            r["group"],
            r["solver"],
            str(r["steps"]),
            f"{r['gamma']:g}",
            f"{r['sigma_min_ratio']:.3f}",
            f"{r['psnr']:.2f}",
            f"{r['lpips']:.3f}" if "lpips" in r else "",
            f"{r['error2_over_variance']:.3f}",
            f"{r['psnr_drop']:.2f}",
        ]
        for r in sampler_rows(workspace)
    ]
    words = (
        "Samplers, on the network of table 1 (the default recipe): one sample's PSNR and LPIPS; of "
        f"{SAMPLES} samples error²/variance (1 is right) and the PSNR lost to the one-step "
        "estimate (3.01 dB is right)."
    )
    return "\n".join([*lines, "", words, "", *markdown(head, body)]) + "\n"


def show(workspace: Workspace) -> list[Path]:
    """The tables."""
    found = [*rows(workspace), *sampler_rows(workspace)]
    return [write_table(workspace, NAME, table(workspace), found)]


EXPERIMENT = Experiment(NAME, "what each part of the method is worth", pieces, show)
