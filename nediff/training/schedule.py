"""The learning rate over a run of known length."""

from __future__ import annotations

import math


def learning_rate(step: int, steps: int, peak: float, warmup: int) -> float:
    """Linear warm-up, then half a cosine down to zero at the last step."""
    warm = min(1.0, (step + 1) / max(1, min(warmup, steps // 5)))
    return peak * warm * 0.5 * (1 + math.cos(math.pi * step / steps))
