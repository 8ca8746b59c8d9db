"""Rehearsal: late in training, the network's own posterior samples serve as clean images.

If the network is right, a posterior sample of a training image is a draw from the law of clean
images: at full contrast and full resolution, which neither a rescaled nor a pooled measurement
can show. Training on such samples is one round of Monte Carlo expectation–maximisation. The
measurements stay in every batch, so that the network cannot drift away with its own opinions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from nediff.data import Measurements
from nediff.divergence import Map
from nediff.errors import NediffError
from nediff.problem import Problem
from nediff.randomness import Draws, derive_key
from nediff.recipes import Batch
from nediff.runs import read_tensors
from nediff.sampling import SamplerSettings, sample_posterior

SIDE, MARGIN = 96, 8
"""Samples are drawn of squares of this side, and so much is cut off at their borders, where
the network cannot see what lies outside."""
SETTINGS = SamplerSettings(steps=6)
SHARE_OF_WORK = 1 / 25
"""Pixels sampled for each pixel that a run trains on."""


def pixels_to_sample(steps: int, batch: int, crop: int) -> int:
    """So many that drawing them takes some 8 % of the time of training."""
    return int(SHARE_OF_WORK * steps * batch * crop**2)


def draw_samples(
    denoiser: Map,
    train: Measurements,
    problem: Problem,
    crop: int,
    pixels: int,
    seed: int,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Posterior samples of random squares of the training images, (N, C, s, s), s ≥ ``crop``.

    Every image is as likely; sample k is a function of the weights, the seed and k alone.
    """
    side = max(crop, min(SIDE, train.min_size))
    margin = min(MARGIN, (side - crop) // 2)
    count = max(1, pixels // (side - 2 * margin) ** 2)
    draws = Draws(seed, "rehearsal squares", count)
    index = (draws.uniform().double() * len(train)).long().clamp_max(len(train) - 1).tolist()
    down, right = (draws.uniform().double().tolist() for _ in range(2))
    out = []
    for k, (i, d, r) in enumerate(zip(index, down, right, strict=True)):
        height, width = train.size(i)
        top, left = int(d * (height - side + 1)), int(r * (width - side + 1))
        y = torch.from_numpy(train.crop(i, top, left, side, side))[None].to(device)
        sigma = torch.full((1,), problem.sigma, device=device)
        seeds = [derive_key("rehearsal", seed, k)]
        sample = sample_posterior(denoiser, y, sigma, problem, 1, seeds, SETTINGS)[0]
        out.append(sample[..., margin : side - margin, margin : side - margin].cpu())
    return torch.cat(out)


def load_samples(path: Path) -> Tensor:
    """The samples a run has drawn before it was interrupted."""
    tensors, _ = read_tensors(path)
    if "samples" not in tensors or tensors["samples"].ndim != 4:
        raise NediffError(f"{path} does not hold the samples of this run; start it anew.")
    return tensors["samples"]


def rehearsal_batch(
    images: Tensor, indices: Sequence[int], sigma: float, crop: int, seed: int
) -> Batch:
    """Crops of the samples, one for each global sample index, as clean images of noise σ."""
    draws = Draws(seed, "rehearsal crops", indices)
    which, down, right, turns = (draws.uniform().double() for _ in range(4))
    room = images.shape[-1] - crop
    crops = []
    for w, d, r, t in zip(which, down, right, turns, strict=True):
        image = images[min(int(w * len(images)), len(images) - 1)]
        top, left = min(int(d * (room + 1)), room), min(int(r * (room + 1)), room)
        square = torch.rot90(image[:, top : top + crop, left : left + crop], int(t * 4), (1, 2))
        crops.append(square.flip(-1) if int(t * 8) % 2 else square)
    clean = torch.stack(crops)
    return Batch(clean, torch.full((len(clean),), sigma), clean)
