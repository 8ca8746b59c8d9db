"""An exponential moving average of the weights."""

from __future__ import annotations

import torch
from torch import nn


class EMA:
    """w̄ ← d w̄ + (1 − d) w with d = min(decay, (k+1)/(k+10)), so early steps are forgotten."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights after step number ``step`` (from 0)."""
        decay = min(self.decay, (step + 1) / (step + 10))
        named = dict(model.named_parameters())
        torch._foreach_lerp_(
            list(self.weights.values()), [named[n] for n in self.weights], 1 - decay
        )
