"""The state of a run on disk: one safetensors file, replaced atomically, never pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from nediff.data import atomic_path
from nediff.errors import NediffError
from nediff.runs import copy_checked, make_folder, read_tensors

STATE_FILE = "state/state.safetensors"


@dataclass(frozen=True)
class Progress:
    """Where a run stands."""

    step: int = 0
    """Steps done."""
    best_psnr: float = float("-inf")
    """Best estimated PSNR on the held-out noisy images so far."""
    best_step: int = 0
    seconds: float = 0.0
    """Time spent training, over all sessions."""


def save_state(
    folder: Path,
    model: nn.Module,
    averages: Mapping[str, dict[str, Tensor]],
    optimizer: torch.optim.Optimizer,
    progress: Progress,
) -> None:
    """Write everything `load_state` needs to go on exactly.

    ``averages`` are further copies of the weights by name: the moving average and the best.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = parameter
        for kind, weights in averages.items():
            tensors[f"{kind}.{name}"] = weights[name]
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = value
    tensors = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    path = folder / STATE_FILE
    make_folder(path.parent)
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"progress": json.dumps(asdict(progress))})


@torch.no_grad()
def load_state(
    folder: Path,
    model: nn.Module,
    averages: Mapping[str, dict[str, Tensor]],
    optimizer: torch.optim.Optimizer,
) -> Progress:
    """Fill weights, averages and optimizer in place and say where the run stands."""
    path = folder / STATE_FILE
    tensors, metadata = read_tensors(path)
    try:
        progress = Progress(**json.loads(metadata["progress"]))
        for name, parameter in model.named_parameters():
            copy_checked(parameter, tensors[f"model.{name}"], name, path)
            for kind, weights in averages.items():
                copy_checked(weights[name], tensors[f"{kind}.{name}"], name, path)
            for key in ("momentum", "mean", "square", "count"):
                value = tensors.get(f"optimizer.{key}.{name}")
                if value is not None:
                    home = parameter.device if value.ndim else "cpu"
                    optimizer.state[parameter][key] = value.to(home)
    except (KeyError, TypeError, ValueError) as error:
        raise NediffError(f"{path} does not hold the state of this run ({error}).") from error
    return progress
