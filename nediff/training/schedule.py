"""The learning rate over a run of known length."""

from __future__ import annotations

import math


def ema_of(steps: int) -> float:
    """The decay of the average of weights, which goes over the last twelfth of the run or so."""
    return min(max(1 - 12 / max(steps, 1), 0.0), 0.9995)


def learning_rate(step: int, steps: int, peak: float, warmup: int) -> float:
    """Linear warm-up, then half a cosine down to zero at the last step."""
    warm = min(1.0, (step + 1) / max(1, min(warmup, steps // 5)))
    return peak * warm * 0.5 * (1 + math.cos(math.pi * step / steps))
