"""Where is a restoration known to be wrong, though no truth is known?

Each function here makes a task of which more is known than the network is shown, and says how
far a restoration misses in the part that was not shown: an image-like tensor with
E[miss²] = share · Var(x | shown) + noise in each pixel, ``share`` being that of white noise
which is unseen (`LinearOperator.unseen_share`). No clean image is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nediff.divergence import expand
from nediff.groups import GROUPS
from nediff.operators import Fourier, LinearOperator, Mask
from nediff.problem import Problem
from nediff.randomness import Draws
from nediff.recipes import Batch, hide_values

HIDDEN = 0.15
"""Of the values that were measured, up to this share is hidden."""


@dataclass(frozen=True)
class Task:
    """A measurement to restore, ``shown`` (B, C', h, w) by ``given`` with noise ``sigma`` (B,)."""

    shown: Tensor
    sigma: Tensor
    given: LinearOperator
    miss: Callable[[Tensor], Tensor]
    """Of an estimate (B, C, H, W): how far it misses, in the unseen part."""
    share: Tensor
    noise: Tensor
    """E[miss²] = share · Var(x | shown) + noise; both can be multiplied with an image."""


def hidden_pixels(batch: Batch, draws: Draws) -> Task:
    """For masks: some measured pixels are hidden, and miss is x̂ − y there."""
    given = hide_values(batch.problem.operator, batch.y, HIDDEN, draws)
    hidden = batch.problem.operator.known(batch.y) * (1 - given.known(batch.y))
    return Task(
        given.mask_noise(batch.y),
        batch.sigma,
        given,
        lambda estimate: hidden * (estimate - batch.y),
        hidden,
        hidden * expand(batch.sigma.square()),
    )


def measured_again(batch: Batch, draws: Draws, sigma: Tensor | None = None) -> Task:
    """For mosaics and blur: averages of posterior samples, y, are complete images, measured again.

    A block of 2×2 pixels of a mosaic has all colours, so most of its average was measured; and
    averaged, a blurred image is hardly blurred. (Gathered mosaics would do without samples, but are
    aliased: their colours have detail that is far too strong, and the misses came out a quarter too
    large.) A miss is x̂ − y, of a mosaic where nothing is measured, of a blurred image everywhere.
    The noise is that of the batch, or ``sigma``.
    """
    given = batch.given
    assert given is not None
    level = batch.sigma if sigma is None else sigma
    everywhere = torch.ones_like(batch.y)
    unknown = 1 - given.known(batch.y) if isinstance(given, Mask) else everywhere
    clear = given.A(batch.y)
    return Task(
        clear + expand(level) * given.mask_noise(draws.normal_like(clear)),
        level,
        given,
        lambda estimate: unknown * (estimate - batch.y),
        unknown,
        torch.zeros_like(unknown),
    )


def coarse_again(batch: Batch, draws: Draws, sigma: float | Tensor) -> Task:
    """For super-resolution: the pooled measurement y is an image, measured again.

    Its own noise reaches the new measurement through A and is made white; noise is added up to
    ``sigma``. What A does not see of it, N(x̂ − y), has noise that the network was not shown.
    """
    given = batch.given
    assert given is not None
    level = sigma * torch.ones_like(batch.sigma)
    clear = given.A(batch.y)
    white = expand(batch.sigma) * given.complement(draws.normal_like(clear))
    more = expand((level.square() - batch.sigma.square()).clamp_min(0).sqrt())
    share = given.unseen_share(batch.y)
    return Task(
        clear + white + more * draws.normal_like(clear),
        level,
        given,
        lambda estimate: given.unseen(estimate - batch.y),
        share,
        share * expand(batch.sigma.square()),
    )


def moved_again(
    images: Tensor, problem: Problem, group: str, draws: Draws, sigma: Tensor | None = None
) -> Task:
    """For any operator: images of our own (posterior samples) are moved and measured again.

    An equivariant bootstrap: what the instrument did not see of x it may see of T_g x, so the
    unseen part of these images is not only invented. But they are smoother than true ones.
    The noise is that of the problem, or ``sigma`` (B,).
    """
    moved = GROUPS[group](images, draws)
    clear = problem.A(moved)
    operator = problem.operator
    level = clear.new_full((len(moved),), problem.sigma) if sigma is None else sigma
    return Task(
        clear + expand(level) * problem.mask_noise(draws.normal_like(clear)),
        level,
        operator,
        lambda estimate: operator.unseen(estimate - moved),
        operator.unseen_share(moved),
        moved.new_zeros(1, 1, 1, 1),
    )


def hidden_lines(batch: Batch, draws: Draws) -> Task:
    """For MRI: some lines of k-space are hidden, and each stands for the unmeasured ones near it.

    A line is a wave all over the image, so this says how much is missed, but hardly where.
    """
    operator = batch.problem.operator
    assert isinstance(operator, Fourier)
    given = hide_values(operator, batch.y, HIDDEN, draws)
    ones = torch.ones_like(batch.y)
    hidden = operator.mask_noise(ones) - given.mask_noise(ones)
    weight = hidden * _stands_for(operator.mask).to(batch.y)
    total = weight[:, :1].sum(dim=(1, 2, 3), keepdim=True)
    missing = (1 - operator.mask).sum().to(batch.y)
    weight = torch.where(total > 0, weight * missing / total.clamp_min(1), 0.0)
    share = operator.unseen_share(batch.y) * (total > 0)
    whole = Fourier(torch.ones_like(operator.mask))
    return Task(
        given.mask_noise(batch.y),
        batch.sigma,
        given,
        lambda estimate: whole.A_adjoint(weight.sqrt() * (whole.A(estimate) - batch.y)),
        share,
        share * expand(batch.sigma.square()),
    )


def _stands_for(mask: Tensor) -> Tensor:
    """How many values of k-space that were not measured have this one for their nearest."""
    from scipy.ndimage import distance_transform_edt

    missing = mask.cpu().numpy() == 0
    nearest = distance_transform_edt(missing, return_distances=False, return_indices=True)
    count = np.zeros(mask.shape, dtype=np.float32)
    np.add.at(count, tuple(axis[missing] for axis in nearest), 1)
    return torch.from_numpy(count)
