"""Rehearsal: late in training, the network's own posterior samples serve as clean images.

If the network is right, a posterior sample of a training image is a draw from the law of clean
images: at full contrast and full resolution, which neither a rescaled nor a pooled measurement
can show. Training on such samples is one round of Monte Carlo expectation–maximisation. The
measurements stay in every batch, so that the network cannot drift away with its own opinions.

With an operator only A x is sampled (METHOD.md §4), so only A x is kept: a measurement without
noise. Pooled like other measurements, it shows the network what it does not see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from nediff.config import RecipeConfig
from nediff.data import Measurements
from nediff.errors import NediffError
from nediff.operators import Fourier, turn
from nediff.problem import Problem
from nediff.randomness import Draws, derive_key
from nediff.recipes import Batch, Network
from nediff.runs import read_tensors, write_tensors
from nediff.sampling import SamplerSettings, sample_posterior
from nediff.training.crops import (
    LEAST_POOLED_CROP,
    Crop,
    blocks,
    choices,
    coarser,
    offset,
    stack_by_size,
)

SIDE, MARGIN = 96, 8
"""Samples are drawn of squares of this side, and so much is cut off at their borders, where
the network cannot see what lies outside."""
SETTINGS = SamplerSettings(steps=6)
SHARE_OF_WORK = 1 / 25
"""Pixels sampled for each pixel that a run trains on."""


def pixels_to_sample(steps: int, batch: int, side: int) -> int:
    """So many that drawing them takes about a tenth of the time of training on such squares."""
    return int(SHARE_OF_WORK * steps * batch * side**2)


@dataclass(frozen=True)
class Rehearsal:
    """Noise-free measurements A x of posterior samples, (N, C, h, w); for MRI all of k-space.

    ``corners`` (N, 2) say where in the measurements they lie, on which the operator depends.
    """

    y: Tensor
    corners: Tensor

    def groups(
        self, samples: Sequence[int], problem: Problem, crop: int, recipe: RecipeConfig, seed: int
    ) -> list[tuple[list[int], Batch]]:
        """Crops, one for each global sample index, as measurements without noise.

        Where something is unmeasured they are pooled as the recipe says: a pooled crop shows
        what a measurement of the coarser image would not have seen.
        """
        draws = Draws(seed, "rehearsal crops", samples)
        columns = [draws.uniform().double().tolist() for _ in range(5)]
        pooled = problem.kind != "denoising"
        factors = choices(recipe.pool, recipe.pool_weights) if pooled else choices((1,), (1.0,))
        crops = [
            self._cut(numbers, problem, crop, factors, derive_key("rehearsal pool", seed, sample))
            for sample, numbers in zip(samples, zip(*columns, strict=True), strict=True)
        ]
        return stack_by_size(samples, crops, problem)

    def _cut(
        self,
        numbers: tuple[float, ...],
        problem: Problem,
        crop: int,
        factors: Callable[[float], int],
        key: int,
    ) -> Crop:
        """Five uniform numbers → one crop, pooled and turned; its noise is that to be added."""
        which, factor, down, right, way = numbers
        k = min(int(which * len(self.y)), len(self.y) - 1)
        height, width = self.y.shape[-2:]
        step = problem.operator.crop_step
        if isinstance(problem.operator, Fourier):
            return _turned_scan(self.y[k : k + 1], problem.sigma, problem.operator, int(way * 8))
        if step is None:
            return Crop(self.y[k : k + 1], problem.sigma, problem.operator)
        f = factors(factor)
        by = blocks(problem.operator, f)
        size = min(crop, height // by, width // by) // step * step
        if f > 1 and size < LEAST_POOLED_CROP:
            f, by, size = 1, 1, min(crop, height, width) // step * step
        top, left = offset(down, height - size * by, step), offset(right, width - size * by, step)
        at = (int(self.corners[k, 0]) + top, int(self.corners[k, 1]) + left)
        y = self.y[k : k + 1, :, top : top + size * by, left : left + size * by]
        out = Crop(y, 0.0, problem.operator.window(*at, size * by, size * by))
        if f > 1:
            out = coarser(out, f, problem.operator, at, key)
        return replace(out, sigma=problem.sigma).turned(
            int(way * 8) if problem.operator.turns else 0
        )

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


def _turned_scan(kspace: Tensor, sigma: float, operator: Fourier, k: int) -> Crop:
    """The sample turned, and measured as the instrument would: other lines of it are known.

    The network is shown the lines that the instrument measures and judged by those that were
    measured of the sample before it was turned, too: nothing it has invented is a target.
    """
    if operator.mask.shape[0] != operator.mask.shape[1]:
        k -= k % 2  # keep the shape
    whole = Fourier(torch.ones_like(operator.mask))
    turned = whole.A(turn(whole.A_adjoint(kspace), k))
    known = Fourier(torch.maximum(operator.mask, operator.moved(k).mask))
    return Crop(known.mask_noise(turned), sigma, known, operator)


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
    """A x of one posterior sample x of a window of a measurement, (1, C, h, w); for MRI, F x."""
    operator = problem.operator.window(*place).to(device)
    here = problem.with_operator(operator)
    y = here.lift(torch.from_numpy(train.crop(index, *place))[None].to(device))
    sigma = torch.full((1,), problem.sigma, device=device)
    sample = sample_posterior(
        lambda u, s: network(u, s, operator), y, sigma, here, 1, [seed], SETTINGS
    )
    if isinstance(operator, Fourier):
        return Fourier(torch.ones_like(operator.mask)).A(sample[0]).cpu()
    return here.A(sample[0]).cpu()
