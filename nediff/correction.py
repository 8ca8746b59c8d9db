"""Samples that are too narrow or too wide, put right: what `nediff calibrate` stores."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nediff.data import atomic_path
from nediff.divergence import expand
from nediff.errors import NediffError, NediffWarning
from nediff.keeping import CHECKSUM, Damaged, checksum_of, plain, read_tensors, read_text
from nediff.operators import Coloured, LinearOperator
from nediff.problem import Problem
from nediff.randomness import derive_key, normal_field
from nediff.runs import WEIGHTS_FILE
from nediff.sampling import SamplerSettings

CALIBRATION_FILE = "calibration.json"
_WEIGHTS = "weights"
"""The value there that says for which weights it was found: their checksum. Not in older files."""


@dataclass(frozen=True)
class Conformal:
    """Intervals of n samples, stretched so that new images are covered as promised."""

    samples: int
    """n, for which it holds."""
    coverage: float
    """Promised, on average over images like the clean ones it was found with."""
    stretch: float
    images: int
    """Pairs of noisy and clean images it was found with."""


@dataclass(frozen=True)
class AtLevel:
    """The same two numbers at a noise level below that of the training."""

    sigma: float
    factor: float
    floor: float


@dataclass(frozen=True)
class Correction:
    """error² ≈ ``factor`` · variance of the samples + ``floor`` σ², value by value.

    A sampler of few steps loses the weakest components of an image, so its samples agree too
    well where they agree best: a floor. What it gets wrong everywhere is a factor.
    """

    factor: float = 1.0
    floor: float = 0.0
    sampler: SamplerSettings = field(default_factory=SamplerSettings)
    """For samples drawn like this; others are left as they are."""
    conformal: Conformal | None = None
    found: dict[str, Any] = field(default_factory=dict)
    """The figures that led to it, for the record."""
    lower: tuple[AtLevel, ...] = ()
    """Where it was found at lower noise levels, too, the lowest first. Levels in between get
    what lies in between, by log σ; without them all levels are corrected alike."""

    def __post_init__(self) -> None:
        for factor, floor in (
            (self.factor, self.floor),
            *((k.factor, k.floor) for k in self.lower),
        ):
            if not (math.isfinite(factor) and math.isfinite(floor) and factor > 0 and floor >= 0):
                raise NediffError(f"{factor:g} and {floor:g} are no correction of a spread.")
        levels = [k.sigma for k in self.lower]
        if levels != sorted(set(levels)) or (levels and not 0 < levels[0] < math.inf):
            raise NediffError("The noise levels of a correction must be positive and increase.")

    def at(self, sigma: Tensor, largest: float) -> tuple[Tensor, Tensor]:
        """(factor, floor) for noise levels (B,) of a run that was trained at ``largest``."""
        knots = (*self.lower, AtLevel(largest, self.factor, self.floor))
        levels, places = np.log([k.sigma for k in knots]), np.log(sigma.double().cpu().numpy())
        factor = np.interp(places, levels, [k.factor for k in knots])
        floor = np.interp(places, levels, [k.floor for k in knots])
        return torch.from_numpy(factor).to(sigma.device), torch.from_numpy(floor).to(sigma.device)

    def apply(
        self,
        samples: Tensor,
        estimate: Tensor,
        sigma: Tensor,
        problem: Problem,
        seeds: list[int],
        first: int = 0,
        corner: tuple[int, int] = (0, 0),
    ) -> Tensor:
        """x̂ + √factor (x_k − x̂) + √floor σ ε for samples x_k (n, B, C, H, W), σ (B,).

        ``estimate`` x̂ is the posterior mean (B, C, H, W). The added noise ε is white, or of the
        colour that the noise of the images has, and only where an image is measured pixel by
        pixel: elsewhere it would not be that of A x. The samples are those from number ``first``
        on, of a part that begins at ``corner``.
        """
        factor, floor = (expand(v.sqrt()).to(estimate) for v in self.at(sigma, problem.sigma))
        out = estimate + factor * (samples - estimate)
        known = problem.operator.known(estimate)
        if not bool((floor > 0).any() and (known > 0).any()):
            return out
        numbers = range(first, first + len(out))
        keys = [derive_key("correction", seed, k) for k in numbers for seed in seeds]
        return out + floor * expand(sigma) * known * _noise(keys, out, problem.operator, corner)


def _noise(
    keys: list[int], like: Tensor, operator: LinearOperator, corner: tuple[int, int]
) -> Tensor:
    """ε shaped like samples (n, B, C, H, W), a function of the place: parts of an image fit."""
    channels, height, width = like.shape[2:]
    top, left = corner
    if not isinstance(operator, Coloured):
        white = normal_field(keys, channels, height, width, top=top, left=left, device=like.device)
        return white.view_as(like)
    reach = operator.noise_reach
    size = (channels, height + 2 * reach, width + 2 * reach)
    out = torch.empty((len(keys), channels, height, width), dtype=like.dtype, device=like.device)
    for k, key in enumerate(keys):  # one by one: with what is around them they are large
        wide = normal_field([key], *size, top=top, left=left, device=like.device)
        out[k] = operator.noise(wide.double())[0, :, reach:-reach, reach:-reach]
    return out.view_as(like)


def save_correction(
    folder: Path, correction: Correction, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write calibration.json; with ``weights``, for no others than these."""
    with atomic_path(folder / CALIBRATION_FILE) as temporary:
        values = asdict(correction)
        if weights is not None:
            values[_WEIGHTS] = checksum_of(plain(weights), {})
        values[CHECKSUM] = _checksum(values)
        temporary.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _checksum(values: dict[str, Any]) -> str:
    """Of the values as they are written; Python reads the same numbers from that again."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def load_correction(folder: Path) -> Correction | None:
    """The correction of a run; None if it was never calibrated, or with other weights."""
    path = folder / CALIBRATION_FILE
    if not path.is_file():
        return None
    try:
        stored = json.loads(read_text(path))
        told = stored.pop(CHECKSUM, None)
        if told is not None and told != _checksum(stored):
            raise ValueError("the checksum does not fit")
        if _of_other_weights(folder, stored.pop(_WEIGHTS, None)):
            warnings.warn(
                f"{path} was found with other weights than the run has now, so it is not used; "
                "calibrate the run again (nediff calibrate).",
                NediffWarning,
                stacklevel=2,
            )
            return None
        stored["sampler"] = SamplerSettings(**stored["sampler"])
        if stored["conformal"] is not None:
            stored["conformal"] = Conformal(**stored["conformal"])
        stored["lower"] = tuple(AtLevel(**level) for level in stored.get("lower", ()))
        return Correction(**stored)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, NediffError) as error:
        raise NediffError(
            f"{path} is damaged; remove it, and calibrate the run again (nediff calibrate)."
        ) from error


def _of_other_weights(folder: Path, mark: object) -> bool:
    """Whether the weights have changed since; where that cannot be told, they have not."""
    if mark is None:
        return False
    try:
        tensors, _ = read_tensors(folder / WEIGHTS_FILE)
    except Damaged:  # who needs them says so
        return False
    return mark != checksum_of(tensors, {})
