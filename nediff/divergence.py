"""The value of a map and its divergence, three ways (METHOD.md §2).

Each function takes ``f``, a map of measurements (B, C, H, W) → same shape that treats the
images of a batch independently, and returns (f(y), div f(y)) of shapes (B, C, H, W) and (B,).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Map = Callable[[Tensor, Tensor], Tensor]
"""(y (B, C, H, W), σ (B,)) → (B, C, H, W)."""


def expand(values: Tensor) -> Tensor:
    """(B,) → (B, 1, 1, 1), to multiply images by per-image numbers."""
    return values[:, None, None, None]


def monte_carlo(f: Map, y: Tensor, sigma: Tensor, probe: Tensor) -> tuple[Tensor, Tensor]:
    """b·(f(y + τ b) − f(y))/τ with τ = 0.01 σ; both evaluations in one batched forward."""
    value, change, step = _moved(f, y, sigma, probe)
    return value, (probe * change).flatten(1).sum(1) / step


def derivative(f: Map, y: Tensor, sigma: Tensor, probe: Tensor) -> tuple[Tensor, Tensor]:
    """(f(y), J b), J b by the same finite difference; both (B, C, H, W)."""
    value, change, step = _moved(f, y, sigma, probe)
    return value, change / expand(step)


def _moved(f: Map, y: Tensor, sigma: Tensor, probe: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f(y), f(y + τ b) − f(y), and τ (B,)."""
    step = 0.01 * sigma
    both = f(torch.cat([y, y + expand(step) * probe]), torch.cat([sigma, sigma]))
    value, moved = both.chunk(2)
    return value, moved - value, step


def directional(f: Map, y: Tensor, sigma: Tensor, probe: Tensor) -> tuple[Tensor, Tensor]:
    """b·J b with the exact forward-mode derivative J b (``torch.func.jvp``)."""
    value, derivative = _jvp(f, y, sigma, probe)
    return value, (probe * derivative).flatten(1).sum(1)


def _jvp(f: Map, y: Tensor, sigma: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    value, derivative = torch.func.jvp(lambda u: f(u, sigma), (y,), (direction,))  # type: ignore[misc]
    return value, derivative


def exact(f: Map, y: Tensor, sigma: Tensor, probe: Tensor) -> tuple[Tensor, Tensor]:
    """The full trace, one directional derivative per measured value: for tiny images only.

    ``probe`` only says which values are measured: where it is zero, nothing is summed.
    """
    flat = y.flatten(1)
    trace = torch.zeros(len(y), dtype=y.dtype, device=y.device)
    value = f(y, sigma)
    for k in range(flat.shape[1]):
        basis = torch.zeros_like(flat)
        basis[:, k] = (probe.flatten(1)[:, k] != 0).to(y.dtype)
        _, column = _jvp(f, y, sigma, basis.view_as(y))
        trace = trace + (column.flatten(1) * basis).sum(1)
    return value, trace


ESTIMATORS = {"monte_carlo": monte_carlo, "jvp": directional, "exact": exact}
