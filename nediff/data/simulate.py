"""Noise that belongs to an image: drawn once, the same whenever and wherever it is looked at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SimulatedNoise:
    """White Gaussian noise of standard deviation ``sigma`` (unit range) on every image."""

    sigma: float
    seed: int

    def window(
        self, name: str, channels: int, height: int, width: int, top: int, left: int
    ) -> NDArray[np.float32]:
        """The noise (C, height, width) of the image ``name`` at (top, left)."""
        from nediff.randomness import derive_key, normal_field  # brings in torch

        key = derive_key("simulate", self.seed, name)
        field = normal_field([key], channels, height, width, top=top, left=left)[0]
        noise: NDArray[np.float32] = np.float32(self.sigma) * field.numpy()
        return noise
