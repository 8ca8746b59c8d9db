"""Whether this machine can train in bf16."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache

import torch

from nediff.config import PrecisionName
from nediff.errors import NediffError

PROBE = """
import torch
with torch.autocast("cpu", torch.bfloat16):
    x = torch.nn.Conv2d(8, 8, 3, padding=1)(torch.rand(2, 8, 16, 16, requires_grad=True))
    torch.nn.Linear(16, 32)(x).float().sum().backward()
"""
"""What a training step does."""


@lru_cache(maxsize=1)
def bf16_works(probe: str = PROBE) -> bool:
    """Whether this processor computes in bf16, tried by a process of its own.

    Virtual machines may promise instructions that they do not have, and whoever uses them is
    ended by the system at once.
    """
    return subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode == 0


def check_precision(precision: PrecisionName, device: torch.device) -> None:
    """Refuse bf16 on a processor that cannot; GPUs are believed."""
    if precision == "bf16" and device.type == "cpu" and not bf16_works():
        raise NediffError(
            "This processor cannot compute in bf16, which is for GPUs; train with --precision fp32."
        )
