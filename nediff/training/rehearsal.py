"""Rehearsal: late in training, the network's own posterior samples serve as clean images.

If the network is right, a posterior sample of a training image is a draw from the law of clean
images: at full contrast and full resolution, which neither a rescaled nor a pooled measurement
can show. Training on such samples is one round of Monte Carlo expectation–maximisation. The
measurements stay in every batch, so that the network cannot drift away with its own opinions.

With an operator only A x is sampled (METHOD.md §4), so only A x is kept: a measurement without
noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nediff.data import Measurements
from nediff.errors import NediffError
from nediff.operators import turn
from nediff.problem import Problem, stack_operators
from nediff.randomness import Draws, derive_key
from nediff.recipes import Batch, Network
from nediff.runs import read_tensors, write_tensors
from nediff.sampling import SamplerSettings, sample_posterior

SIDE, MARGIN = 96, 8
"""Samples are drawn of squares of this side, and so much is cut off at their borders, where
the network cannot see what lies outside."""
SETTINGS = SamplerSettings(steps=6)
SHARE_OF_WORK = 1 / 25
"""Pixels sampled for each pixel that a run trains on."""


def pixels_to_sample(steps: int, batch: int, crop: int) -> int:
    """So many that drawing them takes about a tenth of the time of training."""
    return int(SHARE_OF_WORK * steps * batch * crop**2)


@dataclass(frozen=True)
class Rehearsal:
    """Noise-free measurements A x of posterior samples, (N, C, h, w).

    ``corners`` (N, 2) say where in the measurements they lie, on which the operator depends.
    """

    y: Tensor
    corners: Tensor

    def batch(self, samples: Sequence[int], problem: Problem, crop: int, seed: int) -> Batch:
        """Crops, one for each global sample index, as measurements without noise."""
        draws = Draws(seed, "rehearsal crops", samples)
        numbers = zip(*(draws.uniform().double().tolist() for _ in range(4)), strict=True)
        crops, operators = [], []
        step = problem.operator.crop_step
        for which, down, right, way in numbers:
            k = min(int(which * len(self.y)), len(self.y) - 1)
            height, width = self.y.shape[-2:]
            top, left, h, w = 0, 0, height, width
            if step is not None:
                h, w = min(crop, height), min(crop, width)
                top, left = offset(down, height - h, step), offset(right, width - w, step)
            at = self.corners[k].tolist()
            operator = problem.operator.window(at[0] + top, at[1] + left, h, w)
            number = int(way * 8) if problem.operator.turns else 0
            crops.append(turn(self.y[k : k + 1, :, top : top + h, left : left + w], number))
            operators.append(operator.turned(number))
        sigma = torch.full((len(crops),), problem.sigma)
        here = problem.with_operator(stack_operators(operators))
        return Batch(torch.cat(crops), sigma, here)

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        write_tensors(path, {"y": self.y, "corners": self.corners})

    @classmethod
    def load(cls, path: Path) -> Rehearsal:
        """What a run had drawn before it was interrupted."""
        tensors, _ = read_tensors(path)
        if tensors.keys() != {"y", "corners"} or len(tensors["y"]) != len(tensors["corners"]):
            raise NediffError(f"{path} does not hold the samples of this run; start it anew.")
        return cls(tensors["y"], tensors["corners"])


def draw_rehearsal(
    network: Network,
    train: Measurements,
    problem: Problem,
    crop: int,
    pixels: int,
    seed: int,
    device: torch.device | str = "cpu",
) -> Rehearsal:
    """Posterior samples of random squares of the training images (or whole ones).

    Every image is as likely; sample k is a function of the weights, the seed and k alone.
    """
    step = problem.operator.crop_step
    side = max(crop, min(SIDE, train.min_size)) // (step or 1) * (step or 1)
    margin = 0 if step is None else min(MARGIN, (side - crop) // 2) // step * step
    kept = train.min_size if step is None else side - 2 * margin
    count = max(1, pixels // kept**2)
    draws = Draws(seed, "rehearsal squares", count)
    index = (draws.uniform().double() * len(train)).long().clamp_max(len(train) - 1).tolist()
    down, right = (draws.uniform().double().tolist() for _ in range(2))
    drawn, corners = [], []
    for k, (i, d, r) in enumerate(zip(index, down, right, strict=True)):
        height, width = train.size(i)
        place = (0, 0, height, width)
        if step is not None:
            place = (offset(d, height - side, step), offset(r, width - side, step), side, side)
        y = _sample(network, train, problem, i, place, derive_key("rehearsal", seed, k), device)
        drawn.append(y[..., margin : y.shape[-2] - margin, margin : y.shape[-1] - margin])
        corners.append((place[0] + margin, place[1] + margin))
    return Rehearsal(torch.cat(drawn), torch.tensor(corners))


def _sample(
    network: Network,
    train: Measurements,
    problem: Problem,
    index: int,
    place: tuple[int, int, int, int],
    seed: int,
    device: torch.device | str,
) -> Tensor:
    """A x of one posterior sample x of a window of a measurement, (1, C, h, w)."""
    operator = problem.operator.window(*place).to(device)
    here = problem.with_operator(operator)
    y = here.lift(torch.from_numpy(train.crop(index, *place))[None].to(device))
    sigma = torch.full((1,), problem.sigma, device=device)
    sample = sample_posterior(
        lambda u, s: network(u, s, operator), y, sigma, here, 1, [seed], SETTINGS
    )
    return here.A(sample[0]).cpu()


def offset(unit: float, room: int, step: int) -> int:
    """A number in [0, 1) → a multiple of ``step`` from 0 to ``room``, all as likely."""
    places = room // step
    return step * min(int(unit * (places + 1)), places)
