"""What every operator is asked, and A = I."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nediff.linear import conjugate_gradients


def turn(x: Tensor, k: int) -> Tensor:
    """One of the 8 turns and flips of the square: k mod 4 quarter turns, mirrored if k ≥ 4."""
    rotated = torch.rot90(x, k % 4, dims=(-2, -1))
    return rotated.flip(-1) if k >= 4 else rotated


def for_batch(values: Tensor, batch: int) -> Tensor:
    """Repeat per-image values (B, ...) for a batch that holds the B images k times over."""
    if len(values) in (1, batch):
        return values
    return values.repeat(batch // len(values), *([1] * (values.ndim - 1)))


LEAST_GAIN = 0.05
"""What an instrument weakens more than this, it does not see."""


class LinearOperator(ABC):
    """A: images (B, C, H, W) → measurements (B, C', h, w)."""

    kind: str
    crop_step: int | None = 1
    """Offsets of crops must be multiples of this; None if only whole measurements make sense."""
    turns: bool = True
    """Whether a turned measurement is a measurement of the turned image, by `turned`."""
    group: str = "turns"
    """The invariance that shows this operator what it cannot see (groups.py)."""
    guides: int = 0
    """Channels of `guide`."""
    step: float = 1.0
    """1/‖A‖² or so: a gradient step x + step · Aᵀ(y − Ax) of this length does not overshoot."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LinearOperator) or type(self) is not type(other):
            return NotImplemented
        mine, theirs = self.arrays(), other.arrays()
        return (self.kind, self.settings()) == (other.kind, other.settings()) and all(
            torch.equal(mine[name], theirs[name]) for name in mine
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def fill_reach(self) -> int | None:
        """How many pixels away `fill` looks; None where an image cannot be looked at in parts."""
        return None

    @property
    def fill_step(self) -> int:
        """Parts of a measurement that begin at multiples of this are filled like the whole."""
        return 1

    noise_reach: int = 0
    """How many pixels away `noise` looks."""

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """The (h, w) of every measurement, where only one is possible."""
        return None

    @abstractmethod
    def A(self, x: Tensor) -> Tensor:
        """A x."""

    @abstractmethod
    def A_adjoint(self, y: Tensor) -> Tensor:
        """Aᵀ y."""

    def complement(self, noise: Tensor) -> Tensor:
        """White noise (B, C', h, w) to noise with covariance I − AAᵀ where something is measured.

        Added to A times white noise it makes that white. Zero where A's rows are orthonormal.
        """
        return torch.zeros_like(noise)

    @abstractmethod
    def fill(self, y: Tensor) -> Tensor:
        """A linear first guess of x, its weights summing to one.

        So fill(αy + μA1) = α fill(y) + μ1.
        """

    def mask_noise(self, noise: Tensor) -> Tensor:
        """Zero where nothing is measured."""
        return noise

    def noise(self, white: Tensor) -> Tensor:
        """White noise → noise as the instrument adds it, of variance 1 where it measures."""
        return self.mask_noise(white)

    def covariance(self, values: Tensor) -> Tensor:
        """C v, with C the covariance of `noise`."""
        return self.noise(self.noise(values))

    def covariance_square(self, like: Tensor) -> Tensor:
        """tr C² for measurements ``like`` (B, C', h, w), (B,)."""
        return self.mask_noise(torch.ones_like(like)).flatten(1).sum(1)

    def noise_variance(self, like: Tensor) -> Tensor:
        """The variance of each value of `noise`, the diagonal of C, for measurements ``like``."""
        return self.mask_noise(torch.ones_like(like))

    def guide(self, x: Tensor) -> Tensor | None:
        """What else the network should see of the operator, (B, guides, H, W)."""
        return None

    def known(self, x: Tensor) -> Tensor:
        """1 where a pixel of the image x is itself measured (with noise σ), 0 elsewhere."""
        return torch.zeros_like(x)

    def open_part(self, x: Tensor) -> Tensor:
        """The part of images x (B, C, H, W) that is not measured with noise σ, but worse or not.

        Zero for what A keeps as it is, x itself where A weakens everything.
        """
        return x

    def without(self, chance: Tensor, share: Tensor) -> LinearOperator | None:
        """This operator with measured values left out, those whose ``chance`` is under ``share``.

        ``chance`` (B, 1, h, w) is uniform noise, ``share`` (B,). None where single values are
        not what can be left out.
        """
        return None

    def unseen(self, x: Tensor) -> Tensor:
        """N x, the part of images x (B, C, H, W) that A does not see: x − Aᵀ(AAᵀ + ε)⁻¹A x.

        What reaches the measurement with a gain far under `LEAST_GAIN` (of the largest) counts
        as unseen, what has a gain far above it does not.
        """
        eps = LEAST_GAIN**2 / self.step
        solved = conjugate_gradients(lambda y: self.A(self.A_adjoint(y)) + eps * y, self.A(x))
        return x - self.A_adjoint(solved)

    @abstractmethod
    def unseen_share(self, x: Tensor) -> Tensor:
        """The part of the variance of white noise like x that is unseen: diag N Nᵀ.

        Pixel by pixel, or one number for all, in a shape that can be multiplied with x.
        """

    def image_size(self, height: int, width: int) -> tuple[int, int]:
        """The size of the image behind a measurement of this size."""
        return height, width

    def measured_channels(self, channels: int) -> int:
        """Those of the measurement of an image with so many channels."""
        return channels

    def as_image(self, x: Tensor) -> Tensor:
        """A picture (B, C, H, W) in the form this operator takes images in."""
        return x

    def measured_size(self, height: int, width: int) -> tuple[int, int]:
        """The size of the measurement of an image of this size; inverse of `image_size`."""
        return height, width

    def image_corner(self, top: int, left: int) -> tuple[int, int]:
        """Where in the image the window of a measurement at (top, left) begins."""
        return top, left

    def frame(self, x: Tensor, height: int, width: int) -> Tensor:
        """The part of an image that lies over a measurement of this size."""
        return x

    def window(self, top: int, left: int, height: int, width: int) -> LinearOperator:
        """The operator of a crop of the measurement (`crop_step` permitting)."""
        return self

    def turned(self, k: int) -> LinearOperator:
        """T A T⁻¹ for turn T number k: the operator of a turned measurement of a turned image."""
        return self

    def stack(self, others: Sequence[LinearOperator]) -> LinearOperator:
        """This and ``others``, one per image of a batch, as one operator."""
        return self

    def to(self, device: torch.device | str) -> LinearOperator:
        """The same on another device."""
        return self

    def settings(self) -> dict[str, Any]:
        """Numbers and names to rebuild it from, with `arrays`."""
        return {}

    def arrays(self) -> dict[str, Tensor]:
        """Tensors to rebuild it from."""
        return {}


class Identity(LinearOperator):
    """A = I: every pixel is measured once; restoring is denoising."""

    kind = "denoising"

    @property
    def fill_reach(self) -> int | None:
        """Nothing is filled."""
        return 0

    def A(self, x: Tensor) -> Tensor:
        """A x = x."""
        return x

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Aᵀ y = y."""
        return y

    def fill(self, y: Tensor) -> Tensor:
        """Nothing is missing."""
        return y

    def known(self, x: Tensor) -> Tensor:
        """Every pixel is measured."""
        return torch.ones_like(x)

    def unseen(self, x: Tensor) -> Tensor:
        """Nothing."""
        return torch.zeros_like(x)

    def open_part(self, x: Tensor) -> Tensor:
        """Nothing."""
        return torch.zeros_like(x)

    def unseen_share(self, x: Tensor) -> Tensor:
        """None."""
        return x.new_zeros(1, 1, 1, 1)
