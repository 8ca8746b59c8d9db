"""Weights too large for one device: FSDP, in which each process keeps a part of every tensor.

It is switched on as Accelerate has it (`accelerate launch --use_fsdp --fsdp_version 2`), for the
paper's network. On CPUs, where Accelerate leaves it out, the same is done by PyTorch itself. What
is written to disk, and what samples are drawn with, is gathered: the files are those of any run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nediff.config import RunConfig
from nediff.errors import NediffError
from nediff.networks import build_denoiser
from nediff.training.optimizer import MuonAdam, build_optimizer

if TYPE_CHECKING:
    from accelerate import Accelerator


def wants_shards(accelerator: Accelerator) -> bool:
    """Whether this run was launched with FSDP."""
    asked = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    return asked and accelerator.num_processes > 1


def refuse_shards(config: RunConfig, processes: int, accelerator: Accelerator) -> None:
    """FSDP is for the paper's network, and all processes must do the same number of passes."""
    recipe, batch = config.recipe, config.training.batch
    if config.network.size != "paper":
        raise NediffError(
            f"FSDP is for --size paper; a network of size {config.network.size} fits any device: "
            "launch without it."
        )
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None and plugin.fsdp_version != 2:
        raise NediffError("Only version 2 of FSDP is supported: launch with --fsdp_version 2.")
    if recipe.loss == "cd":
        raise NediffError("The recipe cd looks at some crops only, which FSDP does not allow.")
    rehearsed = round(recipe.rehearse * batch)
    if min(n for n in (batch - rehearsed, rehearsed) if n) < processes:
        raise NediffError(
            f"With FSDP each of the {processes} processes needs a crop of every kind in a batch, "
            f"and {batch} are too few; give a larger --batch."
        )


def sharded(
    accelerator: Accelerator, model: nn.Module, config: RunConfig
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model cut into shards, and its optimizer, both as Accelerate wraps them."""
    settings = config.training
    model = model.to(memory_format=torch.contiguous_format)  # others cannot be cut
    if accelerator.device.type == "cpu":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (accelerator.num_processes,))
        fully_shard(model, mesh=mesh)
        optimizer = build_optimizer(model, settings.learning_rate, settings.optimizer)
        return model, accelerator.prepare_optimizer(optimizer)
    optimizer = build_optimizer(model, settings.learning_rate, settings.optimizer)
    wrapped: tuple[nn.Module, torch.optim.Optimizer] = accelerator.prepare(model, optimizer)
    return wrapped


def gathered(tensor: Tensor) -> Tensor:
    """All of a tensor that may be in shards; all processes must ask for it."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return tensor.detach()
    full: Tensor = tensor.full_tensor().detach()
    return full


@torch.no_grad()
def scatter(target: Tensor, full: Tensor) -> None:
    """target ← full, of which each process keeps its part; all processes must do it."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    full = full.to(target.device)
    if isinstance(target, DTensor):
        full = distribute_tensor(full, target.device_mesh, target.placements)
    target.copy_(full)


@dataclass
class Training:
    """What a state on disk is made of: a network, its optimizer, and averages of its weights."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    averages: dict[str, dict[str, Tensor]]


def plain_copy(training: Training, config: RunConfig) -> Training:
    """The same in one piece, in the memory of the CPU; all processes must ask for it."""
    model = build_denoiser(config.network)
    settings = config.training
    optimizer: MuonAdam = build_optimizer(model, settings.learning_rate, settings.optimizer)
    parts = dict(training.model.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(gathered(parts[name]))
            for key, value in training.optimizer.state.get(parts[name], {}).items():
                optimizer.state[parameter][key] = gathered(value).cpu().clone()
    averages = {
        kind: {name: gathered(value).cpu().clone() for name, value in weights.items()}
        for kind, weights in training.averages.items()
    }
    return Training(model, optimizer, averages)


def take_copy(training: Training, copy: Training) -> None:
    """The reverse: everything from one piece into its shards."""
    whole = dict(copy.model.named_parameters())
    for name, parameter in training.model.named_parameters():
        scatter(parameter, whole[name].detach())
        for kind, weights in training.averages.items():
            scatter(weights[name], copy.averages[kind][name])
        for key, value in copy.optimizer.state.get(whole[name], {}).items():
            kept = value.clone() if key == "count" else torch.zeros_like(parameter).detach()
            if key != "count":
                scatter(kept, value)
            training.optimizer.state[parameter][key] = kept
