"""Invariances of images, T_g, drawn per image (METHOD.md §2).

If turning or shifting an image gives another plausible image, then measuring the turned image
shows what the instrument did not see of the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from nediff.linear import conjugate_gradients, largest_eigenvalue
from nediff.operators import LinearOperator, turn
from nediff.randomness import Draws

Transform = Callable[[Tensor, Draws], Tensor]


def shifts(x: Tensor, draws: Draws) -> Tensor:
    """Circular shifts by any number of rows and columns."""
    height, width = x.shape[-2:]
    down = (draws.uniform() * height).long().tolist()
    right = (draws.uniform() * width).long().tolist()
    rolled = [row.roll((d, r), (-2, -1)) for row, d, r in zip(x, down, right, strict=True)]
    return torch.stack(rolled)


def turns(x: Tensor, draws: Draws) -> Tensor:
    """The 8 turns and flips of the square; the 4 that keep the shape if it is not one."""
    numbers = (draws.uniform() * 8).long().tolist()
    if x.shape[-1] != x.shape[-2]:
        numbers = [k - k % 2 for k in numbers]
    return torch.stack([turn(row, k) for row, k in zip(x, numbers, strict=True)])


def shifts_and_turns(x: Tensor, draws: Draws) -> Tensor:
    """A circular shift, then a turn."""
    return turns(shifts(x, draws), draws)


def any_angle(x: Tensor, draws: Draws) -> Tensor:
    """Rotation by any angle about the centre, as in the paper, but with reflected corners."""
    angle = draws.uniform(0.0, 2 * math.pi).to(x)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    ratio = x.shape[-2] / x.shape[-1]
    rows = torch.stack([cos, -sin * ratio, zero, sin / ratio, cos, zero], dim=1)
    grid = F.affine_grid(rows.view(-1, 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


GROUPS: dict[str, Transform] = {
    "shifts": shifts,
    "turns": turns,
    "shifts_and_turns": shifts_and_turns,
    "any_angle": any_angle,
}


def seen_share(
    operator: LinearOperator,
    like: Tensor,
    group: str | None,
    draws_of: Callable[[int], Draws],
    elements: int = 32,
    least_gain: float = 0.05,
) -> float:
    """The share of image space seen through {A T_g}: tr(N (N + ε)⁻¹)/n, N the mean of TᵀAᵀAT.

    ``like`` is one image (1, C, H, W); ``group`` None asks for A alone. Directions that reach
    the measurement with a gain under ``least_gain`` (of the largest) count as unseen. The trace
    is estimated with one random probe, the inverse by conjugate gradients; the error is about
    1/√n.
    """
    draws = [draws_of(k) for k in range(elements)]

    def through(x: Tensor) -> Tensor:
        if group is None:
            return operator.A_adjoint(operator.A(x))
        return _mean_normal(operator, GROUPS[group], x, draws)

    probe = draws_of(elements).normal_like(like).sign()
    top = largest_eigenvalue(through, probe)
    eps = least_gain**2 * top
    seen = through(probe)
    filtered = conjugate_gradients(lambda v: through(v) + eps * v, seen)
    return float((probe * filtered).sum() / probe.numel())


def _mean_normal(
    operator: LinearOperator, transform: Transform, x: Tensor, draws: list[Draws]
) -> Tensor:
    """(1/G) Σ_g T_gᵀ Aᵀ A T_g x; T_gᵀ by automatic differentiation of the linear T_g."""
    total = torch.zeros_like(x)
    for draw in draws:
        draw.restart()
        free = x.detach().requires_grad_()
        moved = transform(free, draw)
        seen = operator.A_adjoint(operator.A(moved.detach()))
        (back,) = torch.autograd.grad(moved, free, seen)
        total = total + back
    return total / len(draws)
