"""What a trained network is worth: one step at every level, and samples, against the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from nediff.data import Measurements, atomic_path
from nediff.evaluation.calibration import Calibration
from nediff.evaluation.library import LibraryMetrics, PerceptualMetrics
from nediff.evaluation.metrics import psnr, ssim
from nediff.evaluation.perceptual import Perceptual, frechet, statistics
from nediff.experiments.pieces import Piece, Result, Workspace, unfinished
from nediff.experiments.sets import open_set
from nediff.randomness import derive_key
from nediff.restorer import Restorer
from nediff.sampling import SamplerSettings

Images = NDArray[np.float32]
Statistics = tuple[NDArray[np.float64], NDArray[np.float64]]
BATCH = 16
REFERENCE = 1000
"""Clean training images that FID is measured against, at most."""


def truth_of(noisy: Measurements) -> Images:
    """The clean images behind simulated measurements, (N, C, H, W)."""
    clean = noisy.clean
    assert clean is not None
    return np.stack([clean.image(i) for i in range(len(clean))])


def measured_at(noisy: Measurements, sigma: float, restorer: Restorer) -> Images:
    """The same images measured at another noise level (the noise of an image is its own)."""
    if sigma == noisy.simulated:
        return np.stack([noisy.image(i) for i in range(len(noisy))])
    clean = noisy.clean
    assert clean is not None
    instrument = None if restorer.problem.kind == "denoising" else restorer.problem
    other = clean.simulate(sigma, noisy.simulate_seed + 1, instrument)
    return np.stack([other.image(i) for i in range(len(other))])


def estimates(restorer: Restorer, y: Images, sigma: float) -> Images:
    """One step, E[x | y] at level σ.

    Above the level σ_n it was trained for, by the method's own invariance:
    D(y, σ) = D(αy, ασ)/α with ασ = σ_n.
    """
    alpha = np.float32(min(restorer.problem.sigma / sigma, 1.0))
    level = sigma if alpha == 1 else restorer.problem.sigma
    parts = [
        restorer.restore(alpha * y[i : i + BATCH], level) / alpha for i in range(0, len(y), BATCH)
    ]
    return np.concatenate(parts)


def samples(
    restorer: Restorer, y: Images, n: int, settings: SamplerSettings, seed: int = 0
) -> Images:
    """n posterior samples of each image, (n, N, C, H, W), by the seed and the image's number."""
    parts = []
    for start in range(0, len(y), BATCH):
        batch = y[start : start + BATCH]
        seeds = [derive_key("reproduce", seed, start + i) for i in range(len(batch))]
        parts.append(restorer.sample(batch, n, seeds, settings=settings))
    return np.concatenate(parts, axis=1)


def image_scores(restored: Images, truth: Images, perceptual: PerceptualMetrics | None) -> Result:
    """PSNR, SSIM and LPIPS of each image."""
    scores: Result = {
        "psnr": [round(psnr(a, b), 4) for a, b in zip(restored, truth, strict=True)],
        "ssim": [round(ssim(a, b), 5) for a, b in zip(restored, truth, strict=True)],
    }
    if perceptual is not None:
        scores["lpips"] = [round(float(v), 5) for v in perceptual.lpips(restored, truth)]
    return scores


def scores_by_place(restored: Images, truth: Images, known: Images) -> Result:
    """PSNR of each image among the values that were measured, ``known`` > 0, and the others."""

    def among(chosen: NDArray[np.bool_]) -> list[float]:
        pairs = zip(restored, truth, chosen, strict=True)
        return [round(psnr(a[c], b[c]), 4) for a, b, c in pairs]

    return {"psnr_measured": among(known > 0), "psnr_missing": among(known <= 0)}


def metrics(workspace: Workspace) -> PerceptualMetrics | None:
    """LPIPS and FID-768 by weights at hand, LPIPS and FID by downloaded ones, or neither."""
    if workspace.weights is not None:
        return Perceptual(workspace.weights)
    return LibraryMetrics() if workspace.download else None


def check_metrics(pieces: Sequence[Piece], workspace: Workspace) -> None:
    """Open the networks of LPIPS and FID if one of the pieces will need them.

    They are asked for after a training; that they are missing has to be known before.
    """
    perceptual = metrics(workspace)
    if perceptual is not None and any(p.perceptual for p in unfinished(pieces, workspace)):
        perceptual.prepare()


def fid(workspace: Workspace, images: str, restored: Images, side: int) -> float | None:
    """FID (or FID-768) against clean training images of the set; None without its network."""
    perceptual = metrics(workspace)
    if perceptual is None:
        return None
    found = statistics(perceptual.features(restored))
    return round(frechet(*found, *_reference(workspace, perceptual, images, side)), 4)


def fid_floor(workspace: Workspace, images: str, truth: Images, side: int) -> float | None:
    """FID of the true validation images themselves, the least that any restoration can hope for."""
    perceptual = metrics(workspace)
    if perceptual is None:
        return None
    name = f"{images}-truth{len(truth)}-{side}"
    found = _kept_statistics(workspace, perceptual, name, lambda: truth)
    return round(frechet(*found, *_reference(workspace, perceptual, images, side)), 4)


def fid_name(workspace: Workspace) -> str | None:
    """Which of the two."""
    perceptual = metrics(workspace)
    return None if perceptual is None else perceptual.fid_name


def _reference(
    workspace: Workspace, perceptual: PerceptualMetrics, images: str, side: int
) -> Statistics:
    """Of the features of the first clean training images."""

    def pictures() -> Images:
        clean = open_set(workspace, images, "train", side)
        return np.stack([clean.image(i) for i in range(min(REFERENCE, len(clean)))])

    return _kept_statistics(workspace, perceptual, f"{images}-{side}", pictures)


def _kept_statistics(
    workspace: Workspace,
    perceptual: PerceptualMetrics,
    name: str,
    pictures: Callable[[], Images],
) -> Statistics:
    """Mean and covariance of the features of a set that many pieces ask for, computed once."""
    path = workspace.runs / "features" / f"{name}-{perceptual.fid_name}.npz"
    if not path.is_file():
        mean, covariance = statistics(perceptual.features(pictures()))
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, mean=mean, covariance=covariance)
    with np.load(path) as stored:
        return stored["mean"], stored["covariance"]


def calibration(drawn: Images, truth: Images, mmse: Images) -> Result:
    """Laws 4 and 5 of METHOD.md §5 for samples (n, N, C, H, W)."""
    sums = Calibration(len(drawn))
    for i in range(len(truth)):
        sums.add(truth[i], drawn[:, i], mmse[i])
    return {
        "error2_over_variance": sums.ratio,
        "psnr_drop": sums.psnr_drop,
        "coverage": sums.coverage(),
        "samples": len(drawn),
        "images": len(truth),
    }


def radial_spectrum(images: Images) -> list[float]:
    """Mean power of the images by spatial frequency, 0 to Nyquist, in N/2 rings."""
    side = images.shape[-1]
    centred = images - images.mean(axis=(-2, -1), keepdims=True)
    power = np.square(np.abs(np.fft.fft2(centred))).mean(axis=(0, 1)) / side**2
    frequency = np.fft.fftfreq(side)
    ring = np.rint(side * np.hypot(frequency[:, None], frequency)).astype(int)
    total = np.bincount(ring.ravel(), power.ravel())
    rings = total / np.bincount(ring.ravel())
    return [float(v) for v in rings[: side // 2 + 1]]


def mean_of(scores: Result) -> dict[str, float]:
    """The mean over images of each metric."""
    return {name: float(np.mean(values)) for name, values in scores.items()}
