"""A mask: inpainting, and mosaics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nediff.filling import fill_depth, fill_missing
from nediff.operators.base import LinearOperator, for_batch, turn


class Mask(LinearOperator):
    """A x = m ⊙ x with m of zeros and ones, (1 or B, C, H, W): inpainting, or a mosaic.

    ``periodic`` masks (a mosaic) repeat over an image of any size; others belong to images of
    exactly their size.
    """

    group = "shifts"

    def __init__(self, mask: Tensor, kind: str = "inpainting", periodic: bool = False) -> None:
        self.mask, self.kind, self.periodic = mask, kind, periodic
        self.guides = mask.shape[1]
        if kind == "demosaicing":
            self.group = "turns"
        if periodic:
            self.crop_step = mask.shape[-1]

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """That of the mask."""
        return None if self.periodic else (self.mask.shape[-2], self.mask.shape[-1])

    @cached_property
    def _fill_depth(self) -> int:
        periods = _tile(self.mask, 64, 64) if self.periodic else self.mask
        return fill_depth(periods)

    @property
    def fill_reach(self) -> int | None:
        """By the largest hole."""
        return int(2 ** (self._fill_depth + 1) - 1)

    @property
    def fill_step(self) -> int:
        """Of the coarsest scale that a hole is filled from; and mosaics begin alike."""
        period = self.mask.shape[-1] if self.periodic else 1
        return math.lcm(int(2**self._fill_depth), period)

    def _mask(self, x: Tensor) -> Tensor:
        mask = self.mask
        if self.periodic:
            mask = _tile(mask, *x.shape[-2:])
        return for_batch(mask, len(x)).to(x.dtype)

    def A(self, x: Tensor) -> Tensor:
        """m ⊙ x."""
        return self._mask(x) * x

    def A_adjoint(self, y: Tensor) -> Tensor:
        """m ⊙ y."""
        return self._mask(y) * y

    def mask_noise(self, noise: Tensor) -> Tensor:
        """m ⊙ noise."""
        return self._mask(noise) * noise

    def fill(self, y: Tensor) -> Tensor:
        """Normalised convolution of the measured pixels; see filling.py."""
        return fill_missing(y, self._mask(y))

    def guide(self, x: Tensor) -> Tensor:
        """The mask."""
        return self._mask(x).expand(len(x), -1, -1, -1)

    def known(self, x: Tensor) -> Tensor:
        """The mask."""
        return self._mask(x).expand_as(x)

    def unseen(self, x: Tensor) -> Tensor:
        """(1 − m) ⊙ x."""
        return x - self.A(x)

    def open_part(self, x: Tensor) -> Tensor:
        """What is not measured; the rest is, with noise σ."""
        return self.unseen(x)

    def unseen_share(self, x: Tensor) -> Tensor:
        """1 − m."""
        return 1 - self.known(x)

    def without(self, chance: Tensor, share: Tensor) -> Mask:
        """The mask without random pixels (all channels of each)."""
        kept = (chance > share[:, None, None, None]).to(chance.dtype)
        return Mask(kept * self.guide(chance), self.kind)

    def window(self, top: int, left: int, height: int, width: int) -> Mask:
        """The mask of the crop."""
        if self.periodic:
            mask = self.mask.roll((-top, -left), dims=(-2, -1))
            return Mask(_tile(mask, height, width), self.kind)
        return Mask(self.mask[..., top : top + height, left : left + width], self.kind)

    def turned(self, k: int) -> Mask:
        """The mask turned with the image."""
        return Mask(turn(self.mask, k), self.kind, self.periodic)

    def stack(self, others: Sequence[LinearOperator]) -> Mask:
        """One mask per image."""
        masks = [self.mask, *(o.mask for o in others if isinstance(o, Mask))]
        return Mask(torch.cat(masks), self.kind, self.periodic)

    def to(self, device: torch.device | str) -> Mask:
        return Mask(self.mask.to(device), self.kind, self.periodic)

    def settings(self) -> dict[str, Any]:
        return {"periodic": self.periodic}

    def arrays(self) -> dict[str, Tensor]:
        return {"mask": self.mask}


def _tile(mask: Tensor, height: int, width: int) -> Tensor:
    rows, columns = -(-height // mask.shape[-2]), -(-width // mask.shape[-1])
    return mask.repeat(1, 1, rows, columns)[..., :height, :width]
