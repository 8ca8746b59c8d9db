"""Noise that belongs to an image: drawn once, the same whenever and wherever it is looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from nediff.data.cache import Lru, image_cache
from nediff.data.sigmas import Sigmas

_BLOCK = 64
_CACHE_BYTES = 2**29


@dataclass(frozen=True)
class SimulatedNoise:
    """White Gaussian noise of standard deviation ``sigma`` (unit range) on every image.

    With ``sigmas``, that of each image is its own, and ``sigma`` the largest. The noise of a
    pixel is a function of (seed, image, position). Blocks of it are kept, only because training
    comes back to the same images again and again.
    """

    sigma: float
    seed: int
    sigmas: Sigmas | None = None
    _blocks: Lru[NDArray[np.float32]] = field(
        default_factory=lambda: image_cache(_CACHE_BYTES), compare=False, repr=False
    )

    @property
    def mean_square(self) -> float:
        """The variance of the noise, averaged over the images."""
        return self.sigma**2 if self.sigmas is None else self.sigmas.mean_square

    def window(
        self, name: str, channels: int, height: int, width: int, top: int, left: int
    ) -> NDArray[np.float32]:
        """The noise (C, height, width) of the image ``name`` at (top, left)."""
        out = np.empty((channels, height, width), dtype=np.float32)
        for block_top in range(top // _BLOCK * _BLOCK, top + height, _BLOCK):
            for block_left in range(left // _BLOCK * _BLOCK, left + width, _BLOCK):
                make = partial(self._block, name, channels, block_top, block_left)
                block = self._blocks.get((name, channels, block_top, block_left), make)
                rows = slice(max(block_top, top), min(block_top + _BLOCK, top + height))
                columns = slice(max(block_left, left), min(block_left + _BLOCK, left + width))
                out[:, _from(rows, top), _from(columns, left)] = block[
                    :, _from(rows, block_top), _from(columns, block_left)
                ]
        return out

    def _block(self, name: str, channels: int, top: int, left: int) -> NDArray[np.float32]:
        from nediff.randomness import derive_key, normal_field  # brings in torch

        key = derive_key("simulate", self.seed, name)
        plane = normal_field([key], channels, _BLOCK, _BLOCK, top=top, left=left)[0]
        sigma = self.sigma if self.sigmas is None else self.sigmas.of(name)
        noise: NDArray[np.float32] = np.float32(sigma) * plane.numpy()
        return noise


def _from(span: slice, origin: int) -> slice:
    return slice(span.start - origin, span.stop - origin)
