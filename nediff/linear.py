"""Symmetric linear maps known only by what they do: their largest eigenvalue, and systems."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LinearMap = Callable[[Tensor], Tensor]


def largest_eigenvalue(matrix: LinearMap, x: Tensor, rounds: int = 12) -> float:
    """By power iteration from x."""
    value = 0.0
    for _ in range(rounds):
        x = matrix(x / x.norm().clamp_min(1e-12))
        value = float(x.norm())
    return value


def conjugate_gradients(matrix: LinearMap, b: Tensor, rounds: int = 60) -> Tensor:
    """x with M x = b for positive definite M, one system for each b of a batch (B, ...)."""

    def product(u: Tensor, v: Tensor) -> Tensor:
        return (u * v).flatten(1).sum(1).view(-1, *[1] * (b.ndim - 1))

    x, r = torch.zeros_like(b), b.clone()
    p, rr = r.clone(), product(r, r)
    enough = 1e-12 * rr
    for _ in range(rounds):
        if bool((rr <= enough).all()):
            break
        q = matrix(p)
        step = rr / product(p, q).clamp_min(1e-30)  # a system that is solved stands still
        x, r = x + step * p, r - step * q
        rr, previous = product(r, r), rr
        p = r + (rr / previous.clamp_min(1e-30)) * p
    return x
