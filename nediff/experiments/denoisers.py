"""One trained denoiser and all that the tables and figures of denoising ask of it."""

from __future__ import annotations

from typing import Literal

import numpy as np

from nediff.data import Measurements
from nediff.experiments import scoring
from nediff.experiments.models import Model
from nediff.experiments.pieces import Piece, Result, Workspace
from nediff.restorer import Restorer
from nediff.sampling import SamplerSettings
from nediff.sampling.posterior import PAPER_SETTINGS

LEVELS = (0.01, 0.02, 0.035, 0.05, 0.075, 0.1)
"""Test noise levels; those above σ_n are left out of the figures that stop there."""
SAMPLES = 8
Judged = Literal["levels", "calibration", "samples"]
SAMPLERS: dict[str, tuple[str, ...]] = {
    "supervised": ("paper", "default"),
    "cd": ("paper", "default"),
    "paper": ("paper",),
    "default": ("default",),
    "sure": (),
}
"""Which samplers each method is judged with: ours as printed with the paper's, ours by default
with our default one, the others with both."""


def sampler_of(name: str, sigma: float) -> SamplerSettings:
    """Our default, or the paper's: K = 25, γ = 7, σ_min = 0.01, for σ_n = 0.1 twice that."""
    if name == "default":
        return SamplerSettings()
    least = 0.02 if sigma >= 0.1 else 0.01
    return SamplerSettings("paper", PAPER_SETTINGS.steps, least / sigma, PAPER_SETTINGS.gamma)


def denoiser_piece(model: Model, workspace: Workspace, judged: Judged = "samples") -> Piece:
    """Train, then one-step scores at all levels, and what ``judged`` asks for:

    "levels" nothing more, "calibration" that of our default sampler, "samples" one sample of each
    image by the samplers of the method, with FID, spectra and calibration.
    """
    scale = workspace.scale
    training = scale.minutes * model.share(workspace)
    more = {"levels": 0.5, "calibration": 1.0, "samples": 1 + 2.5 * len(SAMPLERS[model.method])}
    settings = model.settings(workspace) | {"judged": judged}
    if judged != "levels":
        settings |= {"calibrated": scale.calibrated, "samples": SAMPLES}
    return Piece(
        model.key,
        training + more[judged] * scale.judging(model.images, scale.side),
        settings,
        lambda w: _run(model, w, judged),
        perceptual=True,
    )


def _run(model: Model, workspace: Workspace, judged: Judged) -> Result:
    restorer = model.train(workspace)
    model.keep(restorer, workspace)
    noisy = model.measurements(workspace, "val")
    truth = scoring.truth_of(noisy)
    perceptual = scoring.metrics(workspace)
    levels: Result = {}
    for sigma in sorted({*LEVELS, model.sigma}):
        y = scoring.measured_at(noisy, sigma, restorer)
        estimate = scoring.estimates(restorer, y, model.told * sigma)
        levels[f"{sigma:g}"] = scoring.image_scores(estimate, truth, perceptual)
    result: Result = {
        "trained": model.record(workspace),
        "training_images": len(model.measurements(workspace, "train")),
        "images": len(truth),
        "levels": levels,
    }
    if judged == "samples":
        result |= _sampled(restorer, model, workspace)
    if judged == "calibration":
        result["calibration"] = _calibration(restorer, noisy, workspace)
    return result


def _calibration(restorer: Restorer, noisy: Measurements, workspace: Workspace) -> Result:
    """Of our default sampler, by a user who believes the σ_n that the training was told."""
    few = noisy.select(range(min(workspace.scale.calibrated, len(noisy))))
    y = np.stack([few.image(i) for i in range(len(few))])
    drawn = scoring.samples(restorer, y, SAMPLES, SamplerSettings(), seed=1)
    estimate = scoring.estimates(restorer, y, restorer.problem.sigma)
    return scoring.calibration(drawn, scoring.truth_of(few), estimate)


def _sampled(restorer: Restorer, model: Model, workspace: Workspace) -> Result:
    """FID and spectra of the estimates, and everything of one sample by each sampler."""
    noisy = model.measurements(workspace, "val")
    truth, perceptual = scoring.truth_of(noisy), scoring.metrics(workspace)
    y = scoring.measured_at(noisy, model.sigma, restorer)
    estimate = scoring.estimates(restorer, y, model.sigma)
    side = workspace.scale.side
    out: Result = {
        "fid_reference": scoring.REFERENCE,
        "spectrum_truth": scoring.radial_spectrum(truth),
        "spectrum": scoring.radial_spectrum(estimate),
        "fid_name": scoring.fid_name(workspace),
        "fid": scoring.fid(workspace, model.images, estimate, side),
        "fid_truth": scoring.fid_floor(workspace, model.images, truth, side),
        "samplers": {},
    }
    few = min(workspace.scale.calibrated, len(truth))
    for name in SAMPLERS[model.method]:
        settings = sampler_of(name, model.sigma)
        one = scoring.samples(restorer, y, 1, settings)[0]
        several = scoring.samples(restorer, y[:few], SAMPLES, settings, seed=1)
        out["samplers"][name] = {
            **scoring.image_scores(one, truth, perceptual),
            "fid": scoring.fid(workspace, model.images, one, side),
            "spectrum": scoring.radial_spectrum(one),
            "calibration": scoring.calibration(several, truth[:few], estimate[:few]),
        }
    return out
