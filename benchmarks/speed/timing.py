"""Timings that can be believed on a busy machine: side by side, in turns, as ratios.

Seconds are of the processor: all candidates have one thread, and waiting for other programs that
want the core would count against those that take long.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Work = Callable[[], object]


def in_turns(candidates: dict[str, Work], rounds: int) -> dict[str, list[float]]:
    """Processor seconds of each candidate in each round; every other round goes backwards.

    One more round before them, which fills caches, does not count. What else the machine does
    slows the candidates of a round alike, so compare within rounds (`ratio`).
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for round_ in range(rounds + 1):
        names = list(candidates) if round_ % 2 else list(reversed(candidates))
        for name in names:
            started = time.process_time()
            candidates[name]()
            took = time.process_time() - started
            if round_ > 0:
                seconds[name].append(took)
    return seconds


def ratio(of: Sequence[float], to: Sequence[float]) -> dict[str, float]:
    """Of two lists of seconds, round by round: the median quotient and its quartiles."""
    quotients = np.array(of, dtype=np.float64) / np.array(to, dtype=np.float64)
    low, middle, high = np.quantile(quotients, (0.25, 0.5, 0.75))
    return {"median": float(middle), "low": float(low), "high": float(high)}


def words(found: dict[str, float], digits: int = 2) -> str:
    """A ratio with its quartiles."""
    return f"{found['median']:.{digits}f} ({found['low']:.{digits}f} to {found['high']:.{digits}f})"


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    import torch

    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), model)
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
