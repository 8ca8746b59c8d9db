"""The optimizer: Muon for the convolutions, Adam for everything else.

Muon (Jordan et al. 2024) replaces the gradient matrix of a layer by the nearest orthogonal
one, so every direction of the layer learns at the same pace. In our trials it got further than
Adam in the same minutes; `python -m benchmarks.denoising --only default default_adam` compares
them. PyTorch's own `torch.optim.Muon` takes matrices only; here a (out, in, k, k) kernel is read
as (out, in·k·k).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from nediff.config import OptimizerName

STATE_KEYS = {"muon": ("momentum",), "adam": ("count", "mean", "square")}
"""What is remembered of each parameter, by the kind of its group."""


def orthogonalise(matrix: Tensor, iterations: int = 5) -> Tensor:
    """UVᵀ of the matrix's singular value decomposition UΣVᵀ, roughly, by Newton-Schulz steps.

    X ← aX + (bXXᵀ + c(XXᵀ)²)X drives all singular values into about [0.7, 1.2].
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    norm: Tensor = torch.linalg.matrix_norm(matrix)
    x = matrix / (norm + 1e-7)
    wide = x if x.shape[0] <= x.shape[1] else x.T
    for _ in range(iterations):
        gram = wide @ wide.T
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide if x.shape[0] <= x.shape[1] else wide.T


class MuonAdam(torch.optim.Optimizer):
    """One optimizer, two kinds of parameter group (``kind`` is "muon" or "adam").

    Both keep the learning rate of their group; state tensors are saved by name like Adam's.
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        defaults = {"momentum": 0.95, "betas": (0.9, 0.99), "eps": 1e-8}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            update = self._muon if group["kind"] == "muon" else self._adam
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update(parameter, group)
        return loss

    def _muon(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        gradient = parameter.grad
        assert gradient is not None
        state["momentum"].lerp_(gradient, 1 - group["momentum"])
        nesterov = gradient.lerp(state["momentum"], group["momentum"]).flatten(1)
        rows, columns = nesterov.shape
        scale = max(1.0, rows / columns) ** 0.5
        parameter.add_(orthogonalise(nesterov).view_as(parameter), alpha=-group["lr"] * scale)

    def _adam(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["count"] = torch.zeros((), dtype=torch.float32)
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        gradient = parameter.grad
        assert gradient is not None
        beta1, beta2 = group["betas"]
        state["count"] += 1
        count = state["count"].item()
        state["mean"].lerp_(gradient, 1 - beta1)
        state["square"].lerp_(gradient.square(), 1 - beta2)
        mean, square = state["mean"] / (1 - beta1**count), state["square"] / (1 - beta2**count)
        parameter.addcdiv_(mean, square.sqrt() + group["eps"], value=-group["lr"])


def build_optimizer(model: nn.Module, learning_rate: float, kind: OptimizerName) -> MuonAdam:
    """Muon at 10 × the learning rate for inner kernels, Adam for first and last layer and the rest.

    The first and the last convolution map between pixels and features, where the directions
    are not alike; as usual with Muon, they are left to Adam. ``kind`` "adam" is Adam for all.
    """
    inner: list[nn.Parameter] = []
    other: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_inner = parameter.ndim == 4 and not any(end in name for end in ("head", "tail"))
        (inner if is_inner and kind == "muon" else other).append(parameter)
    groups = [
        {"params": inner, "kind": "muon", "lr": 10 * learning_rate, "peak": 10 * learning_rate},
        {"params": other, "kind": "adam", "lr": learning_rate, "peak": learning_rate},
    ]
    return MuonAdam([group for group in groups if group["params"]])
