"""The state of a run on disk: a safetensors file, replaced atomically, and the one before it.

Each is whole by its checksum or not used. A run goes on from the older one exactly as well, it only
does some steps again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from nediff.keeping import Damaged, first_whole, read_notes, read_tensors, write_tensors
from nediff.runs import copy_checked
from nediff.training.optimizer import STATE_KEYS

STATE_FILE = "state/state.safetensors"
PREVIOUS_FILE = "state/previous.safetensors"


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
    loss_sum: float = 0.0
    loss_count: int = 0
    """The losses since the last validation."""
    history: tuple[tuple[str, ...], ...] = ()
    """The rows of metrics.csv."""

    def after(self, losses: Sequence[float], seconds: float) -> Progress:
        """More steps done, with these losses, at this time.

        The losses are added one by one, so that it does not matter how many come at once.
        """
        total = self.loss_sum
        for loss in losses:
            total += loss
        return replace(
            self,
            step=self.step + len(losses),
            seconds=seconds,
            loss_sum=total,
            loss_count=self.loss_count + len(losses),
        )


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
    tensors = training_tensors(model, optimizer, averages)
    metadata = {"progress": json.dumps(asdict(progress))}
    write_tensors(folder / STATE_FILE, tensors, metadata, folder / PREVIOUS_FILE)


def has_state(folder: Path) -> bool:
    """Whether there is any to go on from."""
    return any((folder / name).exists() for name in (STATE_FILE, PREVIOUS_FILE))


def training_tensors(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    averages: Mapping[str, dict[str, Tensor]],
) -> dict[str, Tensor]:
    """Weights, their averages and what the optimizer remembers of them, by name."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = parameter
        for kind, weights in averages.items():
            tensors[f"{kind}.{name}"] = weights[name]
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = value
    return tensors


def load_state(
    folder: Path,
    model: nn.Module,
    averages: Mapping[str, dict[str, Tensor]],
    optimizer: torch.optim.Optimizer,
) -> Progress:
    """Fill weights, averages and optimizer in place and say where the run stands."""

    def load(path: Path) -> Progress:
        tensors, metadata = read_tensors(path)
        try:
            progress = _progress_in(metadata)
            fill_training(tensors, path, model, optimizer, averages, begun=progress.step > 0)
        except _WRONG as error:
            raise Damaged(f"{path} does not hold the state of this run ({error}).") from error
        return progress

    paths = [folder / STATE_FILE, folder / PREVIOUS_FILE]
    return first_whole(paths, load, "the run goes on from this, the state before")


_WRONG = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
"""What metadata that are none of ours lead to."""


def _progress_in(metadata: Mapping[str, str]) -> Progress:
    values = json.loads(metadata["progress"])
    rows = tuple(tuple(map(str, row)) for row in values.get("history", ()))
    return Progress(**values | {"history": rows})


def saved_progress(folder: Path) -> Progress | None:
    """Where a run would go on, without reading its weights; None if that cannot be told."""
    for name in (STATE_FILE, PREVIOUS_FILE):
        with suppress(Damaged, *_WRONG):
            return _progress_in(read_notes(folder / name))
    return None


@torch.no_grad()
def fill_training(
    tensors: Mapping[str, Tensor],
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    averages: Mapping[str, dict[str, Tensor]],
    begun: bool,
) -> None:
    """The reverse of `training_tensors`; the optimizer remembers nothing unless ``begun``."""
    kinds = {p: group["kind"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        copy_checked(parameter, tensors[f"model.{name}"], name, path)
        for kind, weights in averages.items():
            copy_checked(weights[name], tensors[f"{kind}.{name}"], name, path)
        for key in STATE_KEYS[kinds[parameter]] if begun else ():
            state = torch.zeros(()) if key == "count" else torch.zeros_like(parameter)
            copy_checked(state, tensors[f"optimizer.{key}.{name}"], f"{key} of {name}", path)
            optimizer.state[parameter][key] = state
