"""Denoisers D(y, σ): sizes, kinds, and how to build one from its configuration."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from nediff.config import NetworkConfig
from nediff.networks import ddpmpp
from nediff.networks.denoiser import (
    Denoiser,
    EDMDenoiser,
    HomogeneousDenoiser,
    StandardisedDenoiser,
    UncentredDenoiser,
)
from nediff.networks.homogeneous import HomogeneousUNet
from nediff.networks.measured import FilledDenoiser, UnrolledDenoiser
from nediff.networks.spread import SpreadNetwork
from nediff.networks.unet import UNet

__all__ = [
    "SIZES",
    "Denoiser",
    "UNetSize",
    "build_denoiser",
    "build_spread",
    "compile_networks",
    "count_parameters",
]


class UNetSize(NamedTuple):
    """Channels and residual blocks of each level, and pixels folded by the stem."""

    widths: tuple[int, ...]
    blocks: tuple[int, ...]
    stem: int


SIZES: dict[str, UNetSize] = {
    "tiny": UNetSize((8, 16, 32), (1, 1, 1), 1),
    "small": UNetSize((16, 32, 64), (2, 2, 2), 1),
    "base": UNetSize((32, 64, 128), (2, 3, 3), 1),
}


STAGES = 3
"""Of an unrolled network."""


def build_denoiser(config: NetworkConfig, seed: int = 0) -> Denoiser:
    """The denoiser of a configuration, its weights drawn from ``seed`` alone.

    Its kernels are stored with the channels last, which convolutions are faster with.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _build(config).to(memory_format=torch.channels_last)


def _build(config: NetworkConfig) -> Denoiser:
    if config.kind == "homogeneous":
        size = SIZES[config.size]
        bias_free = HomogeneousUNet(config.channels + 1, config.channels, *size)
        return HomogeneousDenoiser(bias_free, bias_free.multiple)
    if config.kind == "unrolled":
        return _unrolled(config)
    if config.size == "paper":
        network: ddpmpp.DDPMpp | UNet = ddpmpp.DDPMpp(
            config.channels, config.resolution, config.guides
        )
    else:
        network = UNet(config.channels, *SIZES[config.size], guides=config.guides)
    if config.measured:
        error = config.fill_error
        return FilledDenoiser(network, config.sigma_data, error, network.multiple)
    if config.kind == "standardised":
        return StandardisedDenoiser(network, network.multiple)
    if config.kind == "uncentred":
        return UncentredDenoiser(network, config.sigma_data, network.multiple)
    return EDMDenoiser(network, config.sigma_data, network.multiple)


def _unrolled(config: NetworkConfig) -> UnrolledDenoiser:
    """Networks of the size, but with one block per level, for each of the stages."""
    size = SIZES[config.size]
    blocks = tuple(1 for _ in size.blocks)
    stages: list[nn.Module] = [
        UNet(
            config.channels, size.widths, blocks, size.stem, guides=config.channels + config.guides
        )
        for _ in range(STAGES)
    ]
    multiple = size.stem * 2 ** (len(size.widths) - 1)
    return UnrolledDenoiser(stages, config.sigma_data, config.fill_error, multiple)


def build_spread(config: NetworkConfig, seed: int = 0) -> SpreadNetwork:
    """The network that says how uncertain unmeasured pixels are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SpreadNetwork(config.channels, config.guides, config.sigma_data, config.fill_error)


def compile_networks(denoiser: Denoiser, backend: str = "inductor") -> None:
    """Let torch.compile make kernels of the networks inside, when they are first called.

    The names of the weights stay. Sizes and numbers of crops differ from pass to pass, so the
    kernels are for any. Where compiling fails, the network runs as it is, and PyTorch says so.
    """
    import torch._dynamo

    torch._dynamo.config.suppress_errors = True
    for module in denoiser.modules():
        if isinstance(module, (UNet, HomogeneousUNet, ddpmpp.DDPMpp)):
            module.compile(backend=backend, dynamic=True)


def count_parameters(denoiser: Denoiser) -> int:
    """The number of trained values."""
    return sum(p.numel() for p in denoiser.parameters())
