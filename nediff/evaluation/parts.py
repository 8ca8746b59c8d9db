"""Which parts of large images to judge: samples of all their pixels would take hours."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nediff.data import Measurements, Window
from nediff.problem import Problem
from nediff.randomness import derive_key

SIDE = 192
"""Of a square, in pixels: about as many as a recorrupted pair looks at (`revealed.MOST_VALUES`)."""
SQUARES = 12
"""Of fewer than `FEW` images several each, so many in all …"""
FEW = 4
"""… and of more one each, so that chance can be told from image to image."""


def parts_to_judge(noisy: Measurements, problem: Problem, seed: int) -> Measurements:
    """The images, those with a side over `SIDE` cut down to squares at places chosen by the seed.

    Where a part is no measurement of its own (an operator that mixes all pixels), the images.
    """
    if problem.kind != "denoising":
        return noisy
    each = SQUARES // len(noisy) if len(noisy) < FEW else 1
    windows = [part for window in noisy.windows for part in _squares(window, each, seed)]
    return noisy.with_windows(windows)


def _squares(window: Window, count: int, seed: int) -> list[Window]:
    """Different cells of a grid of squares, the grid shifted at random; a small image whole."""
    height, width = min(window.height, SIDE), min(window.width, SIDE)
    if (height, width) == (window.height, window.width):
        return [window]
    rng = np.random.default_rng(derive_key("judge", seed, window.name))
    down, across = window.height // height, window.width // width
    first = window.top + rng.integers(window.height - down * height + 1)
    left = window.left + rng.integers(window.width - across * width + 1)
    chosen = sorted(rng.permutation(down * across)[:count])
    return [
        replace(
            window,
            top=int(first + cell // across * height),
            left=int(left + cell % across * width),
            height=height,
            width=width,
        )
        for cell in chosen
    ]
