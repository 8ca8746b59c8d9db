"""Denoisers D(y, σ): sizes, kinds, and how to build one from its configuration."""

from __future__ import annotations

from typing import NamedTuple

import torch

from nediff.config import NetworkConfig
from nediff.networks.denoiser import (
    Denoiser,
    EDMDenoiser,
    HomogeneousDenoiser,
    StandardisedDenoiser,
)
from nediff.networks.homogeneous import HomogeneousUNet
from nediff.networks.unet import UNet

__all__ = ["SIZES", "Denoiser", "UNetSize", "build_denoiser", "count_parameters"]


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


def build_denoiser(config: NetworkConfig, seed: int = 0) -> Denoiser:
    """The denoiser of a configuration, its weights drawn from ``seed`` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _build(config)


def _build(config: NetworkConfig) -> Denoiser:
    if config.kind == "homogeneous":
        size = SIZES[config.size]
        bias_free = HomogeneousUNet(config.channels + 1, config.channels, *size)
        return HomogeneousDenoiser(bias_free, bias_free.multiple)
    if config.size == "paper":
        from nediff.networks.ddpmpp import DDPMpp

        network: DDPMpp | UNet = DDPMpp(config.channels, config.resolution)
    else:
        network = UNet(config.channels, *SIZES[config.size])
    if config.kind == "standardised":
        return StandardisedDenoiser(network, network.multiple)
    return EDMDenoiser(network, config.sigma_data, network.multiple)


def count_parameters(denoiser: Denoiser) -> int:
    """The number of trained values."""
    return sum(p.numel() for p in denoiser.parameters())
