"""Noise that belongs to an image: drawn once, the same whenever and wherever it is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from nediff.data.cache import Lru, image_cache
from nediff.data.layout import Array
from nediff.data.sigmas import Sigmas
from nediff.data.stabilise import StabilisedRange

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

        def block(block_top: int, block_left: int) -> NDArray[np.float32]:
            make = partial(self._block, name, channels, block_top, block_left)
            return self._blocks.get((name, channels, block_top, block_left), make)

        return _assemble(block, channels, height, width, top, left)

    def _block(self, name: str, channels: int, top: int, left: int) -> NDArray[np.float32]:
        from nediff.randomness import derive_key, normal_field  # brings in torch

        key = derive_key("simulate", self.seed, name)
        plane = normal_field([key], channels, _BLOCK, _BLOCK, top=top, left=left)[0]
        sigma = self.sigma if self.sigmas is None else self.sigmas.of(name)
        noise: NDArray[np.float32] = np.float32(sigma) * plane.numpy()
        return noise


Read = Callable[[int, int, int, int], Array]
"""(top, left, height, width) → that window of a clean image (C, height, width), data units."""


@dataclass(frozen=True)
class SimulatedPhotons:
    """Photon and read noise on every image, in data units, and the unit range it is white in.

    The noise of a pixel is a function of (seed, image, position) and of the clean value there.
    """

    range: StabilisedRange
    seed: int
    _blocks: Lru[NDArray[np.float32]] = field(
        default_factory=lambda: image_cache(_CACHE_BYTES), compare=False, repr=False
    )

    @property
    def sigma(self) -> float:
        """In unit range."""
        return self.range.sigma

    @property
    def mean_square(self) -> float:
        """The variance of the noise in unit range."""
        return self.sigma**2

    def window(
        self, name: str, read: Read, whole: tuple[int, int, int], place: tuple[int, int, int, int]
    ) -> NDArray[np.float32]:
        """What is measured at ``place`` (top, left, height, width) of a ``whole`` (C, H, W)."""
        channels, image_height, image_width = whole
        top, left, height, width = place

        def block(block_top: int, block_left: int) -> NDArray[np.float32]:
            rows = min(_BLOCK, image_height - block_top)
            columns = min(_BLOCK, image_width - block_left)
            corner = (block_top, block_left)
            return self._blocks.get(
                (name, *corner),
                lambda: self._measured(name, read(*corner, rows, columns), corner),
            )

        return _assemble(block, channels, height, width, top, left)

    def _measured(self, name: str, clean: Array, corner: tuple[int, int]) -> NDArray[np.float32]:
        """The block at ``corner``: gain · Poisson + offset + read noise, in unit range."""
        from nediff.randomness import derive_key, normal_field  # brings in torch

        noise = self.range.noise
        keys = [derive_key(what, self.seed, name) for what in ("photons", "read")]
        chance, read = (
            normal_field(keys, *clean.shape, top=corner[0], left=corner[1]).double().numpy()
        )
        counts = poisson_from_normal(np.maximum(noise.photons(clean), 0.0), chance)
        values = noise.gain * counts + noise.offset + noise.read_noise * read
        return self.range.of_measurements().to_unit(values)


def poisson_from_normal(
    rate: NDArray[np.float64], normal: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The Poisson numbers of ``rate`` at the quantiles Φ(normal): the inverse of the law.

    Cornish and Fisher's expansion is right to a count or two, the law itself settles these.
    """
    from scipy.special import ndtr, pdtr

    quantile = ndtr(normal)
    guess = rate + np.sqrt(rate) * normal + (np.square(normal) - 1) / 6
    counts = np.maximum(np.floor(guess), 0.0)
    while (low := pdtr(counts, rate) < quantile).any():
        counts[low] += 1
    while (high := (counts > 0) & (pdtr(np.maximum(counts - 1, 0), rate) >= quantile)).any():
        counts[high] -= 1
    return counts


def _assemble(
    block: Callable[[int, int], NDArray[np.float32]],
    channels: int,
    height: int,
    width: int,
    top: int,
    left: int,
) -> NDArray[np.float32]:
    """A window (C, height, width) at (top, left) from the blocks of a fixed grid."""
    out = np.empty((channels, height, width), dtype=np.float32)
    for block_top in range(top // _BLOCK * _BLOCK, top + height, _BLOCK):
        for block_left in range(left // _BLOCK * _BLOCK, left + width, _BLOCK):
            rows = slice(max(block_top, top), min(block_top + _BLOCK, top + height))
            columns = slice(max(block_left, left), min(block_left + _BLOCK, left + width))
            out[:, _from(rows, top), _from(columns, left)] = block(block_top, block_left)[
                :, _from(rows, block_top), _from(columns, block_left)
            ]
    return out


def _from(span: slice, origin: int) -> slice:
    return slice(span.start - origin, span.stop - origin)
