"""The convolution peak of this machine: the best of a sweep of forward and backward passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor, nn

CHANNELS = (16, 32, 64, 128)
SIDES = (20, 40, 80)
BATCH, REPEATS = 16, 5
Pass = tuple[Callable[[], object], float]
"""What to run, and its floating-point operations."""


def conv_pass(channels: int, side: int, backward: bool, last: bool) -> Pass:
    """A 3 × 3 convolution of a batch: forward alone, or both gradients alone."""
    form = torch.channels_last if last else torch.contiguous_format
    conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False).to(memory_format=form)
    x = torch.randn(BATCH, channels, side, side).to(memory_format=form)
    operations = 2.0 * 9 * channels**2 * side**2 * BATCH
    if not backward:

        def forward() -> Tensor:
            with torch.no_grad():
                out: Tensor = conv(x)
            return out

        return forward, operations
    out = conv(x.requires_grad_())
    seed = torch.randn_like(out)

    def gradients() -> object:
        return torch.autograd.grad(out, (x, conv.weight), seed, retain_graph=True)

    return gradients, 2 * operations


def best_pass() -> tuple[str, Pass]:
    """The pass with the most operations per second, and its name."""
    found: dict[str, tuple[float, Pass]] = {}
    for channels, side, backward, last in product(CHANNELS, SIDES, (False, True), (False, True)):
        work, operations = conv_pass(channels, side, backward, last)
        work()
        seconds = []
        for _ in range(REPEATS):
            started = time.process_time()
            work()
            seconds.append(time.process_time() - started)
        way = "backward" if backward else "forward"
        name = f"{way}, {channels} channels, {side}²{', channels last' if last else ''}"
        found[name] = operations / min(seconds), (work, operations)
    name = max(found, key=lambda key: found[key][0])
    return name, found[name][1]
