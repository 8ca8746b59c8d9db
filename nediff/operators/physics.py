"""Any linear physics of deepinv."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nediff.filling import fill_missing
from nediff.linear import largest_eigenvalue
from nediff.operators.base import LinearOperator

_PROBES = 16


class Physics(LinearOperator):
    """Any `deepinv.physics.LinearPhysics`, for images of one size.

    Only its `A` and `A_adjoint` are used; the noise is ours.
    """

    kind = "physics"
    crop_step = None
    turns = False

    def __init__(self, physics: Any, image_shape: tuple[int, int, int]) -> None:
        self.physics, self.image_shape = physics, image_shape
        self._unseen_share: Tensor | None = None
        with torch.no_grad():
            ones = torch.ones(1, *image_shape)
            measured = physics.A(ones)
            self.measured_shape: tuple[int, ...] = tuple(int(k) for k in measured.shape[1:])
            self._through = physics.A_adjoint(measured)
            self._reached = _reached(physics, ones)
            self.step = 1.0 / max(_gain(physics, ones), 1e-12)
        if len(self.measured_shape) != 3:
            raise ValueError(
                "the measurement of an image must have the shape (C, h, w), "
                f"not {self.measured_shape}"
            )

    @property
    def fixed_size(self) -> tuple[int, int]:
        """That of the measurement of an image of the one shape."""
        return self.measured_shape[1], self.measured_shape[2]

    def A(self, x: Tensor) -> Tensor:
        """The physics' own A."""
        out: Tensor = self.physics.A(x)
        return out

    def A_adjoint(self, y: Tensor) -> Tensor:
        """The physics' own adjoint."""
        out: Tensor = self.physics.A_adjoint(y)
        return out

    def fill(self, y: Tensor) -> Tensor:
        """Aᵀy / AᵀA1 where that is not close to zero; the rest from its neighbours."""
        through = self._through.to(y)
        safe = through.abs() > 1e-3 * through.abs().max()
        known = self.A_adjoint(y) / torch.where(safe, through, 1.0)
        return fill_missing(known, safe.to(y.dtype))

    def mask_noise(self, noise: Tensor) -> Tensor:
        """Zero where no image reaches: a value that A leaves zero is not measured."""
        return self._reached.to(noise) * noise

    def unseen_share(self, x: Tensor) -> Tensor:
        """Estimated once, with a few random images, and smoothed over neighbours."""
        if self._unseen_share is None:
            generator = torch.Generator().manual_seed(2)
            probes = torch.randn((_PROBES, *self.image_shape), generator=generator).to(x)
            energy = torch.cat([self.unseen(p[None]) for p in probes]).square().mean(0)
            around = F.pad(energy[None], (2, 2, 2, 2), mode="replicate")
            self._unseen_share = F.avg_pool2d(around, 5, stride=1).clamp(0, 1)
        return self._unseen_share.to(x)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Physics):
            return NotImplemented
        return self.physics is other.physics and self.image_shape == other.image_shape

    __hash__ = None

    def measured_channels(self, channels: int) -> int:
        return self.measured_shape[0]

    def settings(self) -> dict[str, Any]:
        return {"image_shape": self.image_shape}

    def image_size(self, height: int, width: int) -> tuple[int, int]:
        return self.image_shape[1], self.image_shape[2]

    def measured_size(self, height: int, width: int) -> tuple[int, int]:
        return self.measured_shape[1], self.measured_shape[2]


def _reached(physics: Any, like: Tensor) -> Tensor:
    """1 where the measurement of a random image is not exactly zero."""
    image = torch.randn(like.shape, generator=torch.Generator().manual_seed(1))
    values: Tensor = physics.A(image)
    return (values != 0).float()


def _gain(physics: Any, like: Tensor) -> float:
    """‖A‖²."""
    start = torch.randn(like.shape, generator=torch.Generator().manual_seed(0))
    return largest_eigenvalue(lambda x: physics.A_adjoint(physics.A(x)), start, rounds=20)
