"""What a run is, how good it is, and what it was trained on: for `nediff info` and `compare`."""

from __future__ import annotations

import csv
import math
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nediff.config import DataConfig, RunConfig
from nediff.correction import load_correction
from nediff.errors import NediffError
from nediff.losses import decibels
from nediff.networks import build_denoiser, count_parameters
from nediff.runs import SIGMAS_FILE, WEIGHTS_FILE, load_config, load_sigmas
from nediff.training.loop import keeps_newest
from nediff.training.metrics import read_metrics
from nediff.training.state import Progress, saved_progress
from nediff.unmeasured import SPREAD_FILE


@dataclass(frozen=True)
class RunSummary:
    """A run folder in short; levels and PSNR are of unit intensities."""

    run: str
    version: str
    operator: str
    sigma: float
    """The largest noise level of its images …"""
    sigma_least: float
    """… and the least."""
    sigma_known: str
    """given, estimated or learned."""
    correlated: bool
    """Whether the noise of neighbouring pixels is."""
    photons: dict[str, float] | None
    """Gain, read noise and offset in data units, where the noise depends on the signal; σ is then
    of the stabilised range."""
    range: tuple[float, float]
    channels: int
    source: str
    fingerprint: str
    """Of the names and sizes of its images; empty in runs of older versions."""
    images: int
    clean: bool
    """Whether clean images were used: simulated noise, or the supervised recipe."""
    recipe: str
    loss: str
    size: str
    kind: str
    parameters: int
    steps: int
    """Planned …"""
    steps_done: int
    """… and done, as far as they are saved: there a training would go on."""
    seconds: float
    seed: int
    noisy_psnr: float | None
    """Of complete images, by σ alone; None with an operator."""
    estimated_psnr: float | None
    """The best on held-out noisy images, without the truth (SURE), of what is measured …"""
    newest_kept: bool
    """… but of the newest weights where estimated noise is doubted: those are kept then."""
    best_step: int
    usable: bool
    """Whether there are weights to restore with."""
    calibrated: bool
    conformal: bool
    """Intervals checked with clean images (`nediff calibrate --clean`)."""
    spread_learned: bool
    """How uncertain unmeasured pixels are was learned."""

    @property
    def finished(self) -> bool:
        """Whether it was trained to its last step."""
        return self.steps_done >= self.steps

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "finished": self.finished}


def _kept(rows: list[tuple[int, float]], config: RunConfig) -> tuple[int, float]:
    """The step whose weights the run has, and their estimated PSNR: the best, unless in doubt."""
    if rows and keeps_newest(config, rows[-1][0]):
        return rows[-1]
    return max(rows, key=lambda row: row[1], default=(0, math.nan))


def describe_run(folder: Path) -> RunSummary:
    """Read a run folder, without its data and without running its network."""
    config = load_config(folder)
    rows = [(int(r["step"]), float(r["estimated_psnr"])) for r in read_metrics(folder)]
    best_step, best = _kept(rows, config)
    seconds = [float(row["seconds"]) for row in read_metrics(folder)]
    saved = saved_progress(folder) or Progress()
    correction = load_correction(folder)
    data, network = config.data, config.network
    known = data.sigma_known
    return RunSummary(
        run=str(folder),
        version=config.version,
        operator=config.operator.kind,
        sigma=data.sigma,
        sigma_least=data.sigma if data.sigmas is None else data.sigmas.least,
        sigma_known="given" if known is None else known.how,
        correlated=config.operator.coloured,
        photons=None if data.photons is None else data.photons.model_dump(),
        range=(data.low, data.high),
        channels=data.channels,
        source=data.source,
        fingerprint=data.fingerprint,
        images=data.images,
        clean=data.simulate is not None,
        recipe=config.recipe.name,
        loss=config.recipe.loss,
        size=network.size,
        kind=network.kind,
        parameters=count_parameters(build_denoiser(network)),
        steps=config.training.steps,
        steps_done=max(saved.step, rows[-1][0] if rows else 0),
        seconds=max(saved.seconds, seconds[-1] if seconds else 0.0),
        seed=config.training.seed,
        noisy_psnr=_noisy_psnr(folder, config),
        estimated_psnr=best if math.isfinite(best) else None,
        newest_kept=bool(rows) and keeps_newest(config, rows[-1][0]),
        best_step=best_step,
        usable=(folder / WEIGHTS_FILE).is_file(),
        calibrated=correction is not None,
        conformal=correction is not None and correction.conformal is not None,
        spread_learned=(folder / SPREAD_FILE).is_file(),
    )


def _noisy_psnr(folder: Path, config: RunConfig) -> float | None:
    """PSNR = −10 log₁₀ σ² of an image with nothing but noise on it; of several, the mean σ²."""
    data: DataConfig = config.data
    if config.operator.kind != "denoising":
        return None
    if data.sigmas is None:
        return decibels(data.sigma**2)
    with suppress(NediffError, OSError, KeyError):  # from the hub a run comes without them
        text = (folder / SIGMAS_FILE).read_text(encoding="utf-8")
        names = [row["name"] for row in csv.DictReader(text.splitlines())]
        return decibels(load_sigmas(folder, config, zip(names, names, strict=True)).mean_square)
    return None
