"""The spread of pixels that were never measured: what a restorer keeps of it, and how it is used.

The sampler draws A x; what A does not see gets its conditional mean, and error bars from such
samples would be falsely narrow there. A small network (learned in training/spread.py from
measurements alone) says how uncertain the unseen part of each pixel is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nediff.config import RunConfig
from nediff.errors import NediffError
from nediff.networks import build_spread
from nediff.networks.spread import SpreadNetwork
from nediff.operators import LinearOperator
from nediff.randomness import derive_key, normal_field
from nediff.runs import copy_checked, read_tensors, write_tensors

SPREAD_FILE = "spread.safetensors"


@dataclass(frozen=True)
class UnmeasuredSpread:
    """Var(x | y) of what is unseen, and the ``share`` of it that samples do not have yet."""

    network: SpreadNetwork
    share: float

    @torch.no_grad()
    def variance(
        self, y: Tensor, estimate: Tensor, sigma: Tensor, operator: LinearOperator
    ) -> Tensor:
        """The variance to add to the unseen part of samples, (B, C, H, W)."""
        total: Tensor = self.network(y, estimate, sigma, operator)
        return self.share * total


def add_unseen(
    samples: Tensor, variance: Tensor, operator: LinearOperator, seeds: Sequence[int]
) -> Tensor:
    """Samples (n, B, C, H, W) plus N(√v w), w white noise and N the part that is unseen.

    What the instrument sees of a sample stays as it is. The noise of sample k of an image is a
    function of its seed and k alone.
    """
    n, batch, *shape = samples.shape
    keys = [derive_key("unmeasured", seed, k) for k in range(n) for seed in seeds]
    noise = normal_field(keys, *shape, device=samples.device).view(n, batch, *shape)
    shaped = variance.sqrt() * noise
    return samples + torch.stack([operator.unseen(of_all) for of_all in shaped])


def save_spread(folder: Path, spread: UnmeasuredSpread) -> None:
    """Write spread.safetensors."""
    weights = dict(spread.network.named_parameters())
    write_tensors(folder / SPREAD_FILE, weights, {"share": repr(spread.share)})


def load_spread(
    folder: Path, config: RunConfig, device: torch.device | str
) -> UnmeasuredSpread | None:
    """Read spread.safetensors; None where a run has none."""
    path = folder / SPREAD_FILE
    if not path.exists():
        return None
    tensors, metadata = read_tensors(path)
    network = build_spread(config.network)
    try:
        share = float(metadata["share"])
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                copy_checked(parameter, tensors[name], name, path)
    except (KeyError, ValueError) as error:
        raise NediffError(f"{path} does not fit this run ({error}).") from error
    return UnmeasuredSpread(network.eval().to(device), share)
