"""One trained denoiser and all that the tables and figures of denoising ask of it."""

from __future__ import annotations

from nediff.experiments import scoring
from nediff.experiments.models import Model
from nediff.experiments.pieces import Piece, Result, Workspace
from nediff.restorer import Restorer
from nediff.sampling import SamplerSettings
from nediff.sampling.posterior import PAPER_SETTINGS

LEVELS = (0.01, 0.02, 0.035, 0.05, 0.075, 0.1)
"""Test noise levels; those above σ_n are left out of the figures that stop there."""
SAMPLES = 8
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


def denoiser_piece(model: Model, workspace: Workspace, sampled: bool = True) -> Piece:
    """Train, then one-step scores at all levels; with ``sampled``, samples and FID too."""
    training = workspace.scale.minutes * model.share(workspace)
    minutes = training + (1 + 2.5 * len(SAMPLERS[model.method]) if sampled else 0.5)
    return Piece(model.key, minutes, model.settings(workspace), lambda w: _run(model, w, sampled))


def _run(model: Model, workspace: Workspace, sampled: bool) -> Result:
    restorer = model.train(workspace)
    noisy = model.measurements(workspace, "val")
    truth = scoring.truth_of(noisy)
    perceptual = scoring.metrics(workspace)
    levels: Result = {}
    for sigma in sorted({*LEVELS, model.sigma}):
        y = scoring.measured_at(noisy, sigma, restorer)
        estimate = scoring.estimates(restorer, y, sigma)
        levels[f"{sigma:g}"] = scoring.image_scores(estimate, truth, perceptual)
    trained_on = len(model.measurements(workspace, "train"))
    result: Result = {"training_images": trained_on, "images": len(truth), "levels": levels}
    if sampled:
        result |= _sampled(restorer, model, workspace)
    return result


def _sampled(restorer: Restorer, model: Model, workspace: Workspace) -> Result:
    """FID and spectra of the estimates, and everything of one sample by each sampler."""
    noisy = model.measurements(workspace, "val")
    truth, perceptual = scoring.truth_of(noisy), scoring.metrics(workspace)
    y = scoring.measured_at(noisy, model.sigma, restorer)
    estimate = scoring.estimates(restorer, y, model.sigma)
    side = workspace.scale.side
    out: Result = {
        "spectrum_truth": scoring.radial_spectrum(truth),
        "spectrum": scoring.radial_spectrum(estimate),
        "fid_name": scoring.fid_name(workspace),
        "fid": scoring.fid(workspace, model.images, estimate, side),
        "fid_truth": scoring.fid(workspace, model.images, truth, side),
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
