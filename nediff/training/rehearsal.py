"""Rehearsal: late in training, the network's own posterior samples serve as clean images.

If the network is right, a posterior sample of a training image is a draw from the law of clean
images: at full contrast and full resolution, which neither a rescaled nor a pooled measurement
can show. Training on such samples is one round of Monte Carlo expectation–maximisation. The
measurements stay in every batch, so that the network cannot drift away with its own opinions.

With an operator only A x is sampled (METHOD.md §4), so at full resolution only A x is a target.
Pooled, a sample is a complete image of which each pixel is measured in part, and averages over
what is not: the network is shown a measurement of it, and judged by all of it. Of a scan (MRI),
turned, other lines are known than the instrument would see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nediff.config import RecipeConfig
from nediff.data import Measurements
from nediff.errors import NediffError
from nediff.keeping import copy_whole, first_whole, read_tensors, write_tensors
from nediff.operators import Fourier, Identity, LinearOperator, Mask, turn
from nediff.pooling import pool
from nediff.problem import Problem
from nediff.processes import ALONE, Processes
from nediff.randomness import Draws, derive_key
from nediff.recipes import Batch, Network
from nediff.sampling import SamplerSettings, sample_posterior
from nediff.training.crops import Crop, choices, fitting_factor, offset, stack_by_size

SIDE, MARGIN = 96, 8
"""Samples are drawn of squares of this side and, unless these are whole images, so much is cut
off at their borders, where the network cannot see what lies outside."""
SETTINGS = SamplerSettings(steps=6)
SHARE_OF_WORK = 1 / 25
"""Pixels sampled for each pixel that a run trains on."""


def share_of_work(recipe: RecipeConfig) -> float:
    """Pixels to draw for each that is trained on: it takes about a tenth of the time.

    A restored image costs one call of the network, a sample several.
    """
    return SHARE_OF_WORK * (SETTINGS.steps if recipe.doubt else 1)


def pixels_to_sample(recipe: RecipeConfig, steps: int, batch: int, side: int) -> int:
    """So many in a run of such steps, in all."""
    return int(share_of_work(recipe) * steps * batch * side**2)


@dataclass(frozen=True)
class Rehearsal:
    """Posterior samples x (N, C, H, W) of parts of images.

    ``corners`` (N, 2) say where in the images they lie, on which a mask depends.
    """

    x: Tensor
    corners: Tensor

    def groups(
        self,
        samples: Sequence[int],
        problem: Problem,
        crop: int,
        recipe: RecipeConfig,
        seed: int,
        most: int | None = None,
    ) -> list[tuple[list[int], Batch]]:
        """Crops, one for each global sample index, as measurements without noise.

        A sample is a clean image, however noisy the one it was drawn from; so the noise to be
        added goes up to the largest σ, that of the problem. ``most`` crops may be together.
        """
        if not samples:
            return []
        draws = Draws(seed, "rehearsal crops", samples)
        columns = [draws.uniform().double().tolist() for _ in range(5)]
        pooled = problem.kind != "denoising"
        factors = choices(recipe.pool, recipe.pool_weights) if pooled else choices((1,), (1.0,))
        crops = [
            self._cut(numbers, problem, crop, factors) for numbers in zip(*columns, strict=True)
        ]
        return stack_by_size(samples, crops, problem, most)

    def _cut(
        self,
        numbers: tuple[float, ...],
        problem: Problem,
        crop: int,
        factors: Callable[[float], int],
    ) -> Crop:
        """Five uniform numbers → one crop, pooled and turned; its noise is that to be added."""
        which, factor, down, right, way = numbers
        k = min(int(which * len(self.x)), len(self.x) - 1)
        x, operator, number = self.x[k : k + 1], problem.operator, int(way * 8)
        if isinstance(operator, Fourier):
            return _turned_scan(x, problem.sigma, operator, number)
        step = operator.crop_step
        if step is None:
            return Crop(operator.A(x), problem.sigma, operator)
        height, width = x.shape[-2:]
        wanted = operator.image_size(crop, crop)[0]
        f, size = fitting_factor(
            factors(factor), lambda f: min(wanted, height // f, width // f) // step * step
        )
        side = operator.image_size(*operator.measured_size(size, size))[0]  # a stride may fit less
        top, left = offset(down, height - side * f, step), offset(right, width - side * f, step)
        part = x[..., top : top + side * f, left : left + side * f]
        at = (int(self.corners[k, 0]) + top, int(self.corners[k, 1]) + left)
        here = operator.window(*at, side, side)
        return _measured(part, f, here, problem.sigma).turned(number if operator.turns else 0)

    def save(self, path: Path) -> None:
        """Write a safetensors file, and a copy: both states of a run may need it."""
        write_tensors(path, self.tensors())
        copy_whole(path, _copy_of(path))

    def tensors(self) -> dict[str, Tensor]:
        """What is kept of it."""
        return {"x": self.x, "corners": self.corners}

    @classmethod
    def load(cls, path: Path) -> Rehearsal:
        """What a run had drawn before it was interrupted."""
        paths = [path, _copy_of(path)]
        tensors, _ = first_whole(paths, read_tensors, "this copy is used instead")
        if tensors.keys() != {"x", "corners"} or len(tensors["x"]) != len(tensors["corners"]):
            raise NediffError(f"{path} does not hold the samples of this run; start it anew.")
        return cls(tensors["x"], tensors["corners"])


def _copy_of(path: Path) -> Path:
    return path.with_name(f"{path.stem}-copy{path.suffix}")


def _measured(x: Tensor, factor: int, operator: LinearOperator, sigma: float) -> Crop:
    """A x as all that is known of x; or, pooled, all of the coarser x, of which A x is shown."""
    if factor == 1:
        return Crop(operator.A(x), sigma, operator)
    coarse = torch.from_numpy(pool(x[0].numpy(), factor))[None]
    everything: LinearOperator = Identity()
    if isinstance(operator, Mask):
        everything = Mask(torch.ones_like(coarse), operator.kind)
    return Crop(coarse, sigma, everything, operator)


def _turned_scan(x: Tensor, sigma: float, operator: Fourier, k: int) -> Crop:
    """The sample turned, and measured as the instrument would: other lines of it are known.

    The network is shown the lines that the instrument measures and judged by those that were
    measured of the sample before it was turned, too: nothing it has invented is a target.
    """
    if operator.mask.shape[0] != operator.mask.shape[1]:
        k -= k % 2  # keep the shape
    known = Fourier(torch.maximum(operator.mask, operator.moved(k).mask))
    return Crop(known.A(turn(x, k)), sigma, known, operator)


@torch.no_grad()
def draw_rehearsal(
    network: Network,
    train: Measurements,
    problem: Problem,
    crop: int,
    pixels: int,
    seed: int,
    device: torch.device | str = "cpu",
    processes: Processes = ALONE,
    restored: bool = False,
) -> Rehearsal:
    """Posterior samples of random squares of the training images (or whole ones).

    With ``restored``, their means instead. Every image is as likely; sample k is a function of
    the weights, the seed and k alone. So each of the ``processes`` draws some, and all have all
    of them afterwards.
    """
    operator = problem.operator
    step = operator.crop_step
    side = max(crop, min(SIDE, train.min_size)) // (step or 1) * (step or 1)
    margin = 0
    if step is not None and any(max(train.size(i)) > side for i in range(len(train))):
        margin = min(MARGIN, (side - crop) // 2) // step * step
    kept = train.min_size if step is None else side - 2 * margin
    count = max(1, pixels // kept**2)
    draws = Draws(seed, "rehearsal squares", count)
    index = (draws.uniform().double() * len(train)).long().clamp_max(len(train) - 1).tolist()
    down, right = (draws.uniform().double().tolist() for _ in range(2))
    drawn, corners = {}, []
    for k, (i, d, r) in enumerate(zip(index, down, right, strict=True)):
        height, width = train.size(i)
        place = (0, 0, height, width)
        if step is not None:
            place = (offset(d, height - side, step), offset(r, width - side, step), side, side)
        if k in processes.share(range(count)):
            key = None if restored else derive_key("rehearsal", seed, k)
            x = _sample(network, train, problem, i, place, key, device)
            drawn[k] = x[0, :, margin : x.shape[-2] - margin, margin : x.shape[-1] - margin]
        top, left = operator.image_corner(*place[:2])
        corners.append((top + margin, left + margin))
    return Rehearsal(processes.collect(drawn, count), torch.tensor(corners))


def _sample(
    network: Network,
    train: Measurements,
    problem: Problem,
    index: int,
    place: tuple[int, int, int, int],
    seed: int | None,
    device: torch.device | str,
) -> Tensor:
    """One posterior sample x of the image behind a window of a measurement, (1, C, H, W).

    Without a seed, the mean instead.
    """
    operator = problem.operator.window(*place).to(device)
    here = problem.with_operator(operator)
    y = here.lift(torch.from_numpy(train.crop(index, *place))[None].to(device))
    sigma = torch.full((1,), train.sigma_of(index, problem.sigma), device=device)
    if seed is None:
        return network(y, sigma, operator).cpu()
    sample = sample_posterior(
        lambda u, s: network(u, s, operator), y, sigma, here, 1, [seed], SETTINGS
    )
    return sample[0].cpu()
