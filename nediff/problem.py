"""What the instrument does: y = A x + σ_n η (METHOD.md §1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from nediff.errors import NediffError, did_you_mean
from nediff.operators import (
    Colour,
    Coloured,
    Convolution,
    Fourier,
    Identity,
    LinearOperator,
    Mask,
    Physics,
)

PATTERNS = ("RGGB", "BGGR", "GRBG", "GBRG")


@dataclass(frozen=True)
class Problem:
    """One instrument: an operator, its noise level σ_n (unit intensities), and its channels.

    ``channels`` are those of the image x. ``raw`` says that the data are mosaics of one
    channel, which `lift` spreads over three.
    """

    sigma: float
    channels: int
    operator: LinearOperator = field(default_factory=Identity)
    raw: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", float(self.sigma))  # NumPy's would make tensors double

    @classmethod
    def denoising(cls, sigma: float, channels: int = 1, colour: Colour | None = None) -> Problem:
        """y = x + σ_n η; with a ``colour`` the noise η is correlated."""
        return cls(sigma, channels, Identity() if colour is None else Coloured(colour))

    @classmethod
    def inpainting(cls, mask: ArrayLike | Tensor, sigma: float, channels: int = 1) -> Problem:
        """y = m ⊙ (x + σ_n η); ``mask`` (H, W) or (C, H, W), nonzero where measured."""
        values = torch.as_tensor(np.asarray(mask) if not isinstance(mask, Tensor) else mask)
        values = (values != 0).float()
        if values.ndim == 2:
            values = values[None]
        if values.ndim != 3 or values.shape[0] not in (1, channels):
            raise NediffError(
                f"A mask of shape {tuple(values.shape)} does not fit images with {channels} "
                "channel(s); it must be (H, W) or (C, H, W)."
            )
        if not values.any():
            raise NediffError("The mask is zero everywhere: nothing would be measured.")
        return cls(sigma, channels, Mask(values.expand(channels, -1, -1)[None].contiguous()))

    @classmethod
    def demosaicing(cls, sigma: float, pattern: str = "RGGB", raw: bool = False) -> Problem:
        """One colour per pixel, as a Bayer ``pattern`` says; ``raw`` for mosaics of one channel."""
        if pattern.upper() not in PATTERNS:
            raise NediffError(
                f"There is no Bayer pattern '{pattern}'; there are {', '.join(PATTERNS)}."
                + did_you_mean(pattern, PATTERNS)
            )
        mask = torch.zeros(1, 3, 2, 2)
        for place, colour in enumerate(pattern.upper()):
            mask[0, "RGB".index(colour), place // 2, place % 2] = 1
        return cls(sigma, 3, Mask(mask, "demosaicing", periodic=True), raw)

    @classmethod
    def blur(cls, kernel: ArrayLike | Tensor, sigma: float, channels: int = 1) -> Problem:
        """y = k ∗ x + σ_n η where the kernel (K, K') lies inside the image."""
        return cls(sigma, channels, Convolution(_kernel(kernel)))

    @classmethod
    def super_resolution(
        cls,
        factor: int,
        sigma: float,
        channels: int = 1,
        kernel: ArrayLike | Tensor | None = None,
    ) -> Problem:
        """Every factor-th value of k ∗ x; without a kernel, means of factor × factor pixels."""
        if factor < 2:
            raise NediffError(f"The super-resolution factor must be 2 or more, not {factor}.")
        box = torch.full((factor, factor), 1.0 / factor**2)
        weights = box if kernel is None else _kernel(kernel)
        return cls(sigma, channels, Convolution(weights, factor, "super_resolution"))

    @classmethod
    def mri(cls, mask: ArrayLike | Tensor, sigma: float, *, height: int | None = None) -> Problem:
        """y = m ⊙ F x + σ_n η, complex numbers as two channels.

        ``mask`` is (H, W), or (W,) for columns, with zero frequency in the middle. Columns are
        ``height`` values long, as many as there are of them unless told.
        """
        values = torch.as_tensor(np.asarray(mask) if not isinstance(mask, Tensor) else mask)
        values = (values != 0).float()
        if values.ndim == 1:
            values = values[None].repeat(len(values) if height is None else height, 1)
        if values.ndim == 2 and height not in (None, len(values)):
            raise NediffError(f"A k-space mask of {len(values)} rows is not {height} high.")
        if values.ndim != 2 or not values.numel():
            raise NediffError(
                f"A k-space mask has the shape (H, W), or (W,) for columns, not "
                f"{tuple(values.shape)}."
            )
        if not values[values.shape[0] // 2, values.shape[1] // 2]:
            raise NediffError(
                "The k-space mask leaves out the centre (the mean of the image); is it shifted? "
                "Zero frequency belongs at row H//2, column W//2."
            )
        return cls(sigma, 2, Fourier(values))

    @classmethod
    def from_physics(cls, physics: Any, sigma: float, image_shape: tuple[int, int, int]) -> Problem:
        """Any deepinv LinearPhysics, for images of the shape (C, H, W)."""
        try:
            operator = Physics(physics, image_shape)
        except (RuntimeError, ValueError, AttributeError) as error:
            raise NediffError(
                f"This physics cannot measure an image of shape {image_shape}: {error}."
            ) from error
        _refuse_false_adjoint(operator)
        return cls(sigma, image_shape[0], operator)

    @property
    def kind(self) -> str:
        """denoising, inpainting, demosaicing, blur, super_resolution, mri or physics."""
        return self.operator.kind

    def A(self, x: Tensor) -> Tensor:
        """The noise-free measurement A x."""
        return self.operator.A(x)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Aᵀ y."""
        return self.operator.A_adjoint(y)

    def A1(self, like: Tensor) -> Tensor:
        """The measurement of the constant image 1, shaped like the measurement ``like``."""
        return self.operator.A(torch.ones_like(self.operator.A_adjoint(like)))

    def mask_noise(self, noise: Tensor) -> Tensor:
        """Zero where nothing is measured."""
        return self.operator.mask_noise(noise)

    def noise(self, white: Tensor) -> Tensor:
        """White noise → noise as the instrument adds it: masked, or correlated."""
        return self.operator.noise(white)

    def measured(self, like: Tensor) -> Tensor:
        """m, the number of measured values per image, (B,)."""
        return self.mask_noise(torch.ones_like(like)).flatten(1).sum(1)

    def with_operator(self, operator: LinearOperator) -> Problem:
        """The same instrument seen through another (part of the) operator."""
        return replace(self, operator=operator)

    def check_size(self, height: int, width: int) -> None:
        """Refuse a measurement of a size that this instrument does not give."""
        wanted = self.operator.fixed_size
        if wanted is not None and (height, width) != wanted:
            what = "mask" if self.kind in ("inpainting", "mri") else "operator"
            raise NediffError(
                f"A measurement of {width} × {height} pixels does not fit the {what}, which is for "
                f"{wanted[1]} × {wanted[0]}."
            )

    def lift(self, y: Tensor) -> Tensor:
        """Data as stored, (B, C', h, w), to a measurement: raw mosaics go to three channels."""
        spread = y.expand(-1, 3, -1, -1) if self.raw else y
        return self.mask_noise(spread)

    # what `Measurements.simulate` asks of an instrument

    def measured_channels(self, channels: int) -> int:
        """Those of the measurement of a picture with so many channels."""
        if self.raw:
            return 1
        return 2 if self.kind == "mri" else self.operator.measured_channels(channels)

    def measured_size(self, height: int, width: int) -> tuple[int, int]:
        """The size of the measurement of a picture of this size."""
        return self.operator.measured_size(height, width)

    def measure(
        self,
        read: Callable[[int, int, int, int], NDArray[np.float32]],
        top: int,
        left: int,
        height: int,
        width: int,
    ) -> NDArray[np.float32]:
        """A window of A x, of the picture x that ``read`` reads windows of."""
        corner = self.operator.image_corner(top, left)
        picture = torch.from_numpy(read(*corner, *self.operator.image_size(height, width)))[None]
        here = self.operator.window(top, left, height, width)
        measured = here.A(here.as_image(picture))
        if self.raw:
            measured = measured.sum(dim=1, keepdim=True)
        out: NDArray[np.float32] = measured[0].numpy()
        return out

    def mask(self, noise: NDArray[np.float32], top: int, left: int) -> NDArray[np.float32]:
        """``noise`` where something is measured; the window is at (top, left)."""
        if self.raw:
            return noise
        here = self.operator.window(top, left, *noise.shape[-2:])
        out: NDArray[np.float32] = here.mask_noise(torch.from_numpy(noise)[None])[0].numpy()
        return out


def random_mask(fraction: float, size: tuple[int, int], seed: int) -> Tensor:
    """A mask (H, W) that measures each pixel with probability ``fraction``, by the seed alone."""
    from nediff.randomness import derive_key, normal_field

    if not 0 < fraction < 1:
        raise NediffError(f"A random mask measures a fraction between 0 and 1, not {fraction}.")
    field = normal_field([derive_key("mask", seed)], 1, *size)[0, 0]
    chance: Tensor = torch.special.ndtr(field)
    return (chance < fraction).float()


def cartesian_mask(
    size: tuple[int, int], acceleration: float, seed: int, centre: float = 0.08
) -> Tensor:
    """Columns of k-space (H, W): a sampled centre and random others, W/acceleration in all."""
    from nediff.randomness import Draws

    height, width = size
    columns = torch.zeros(width)
    middle = max(2, round(centre * width))
    start = width // 2 - middle // 2
    columns[start : start + middle] = 1
    wanted = max(round(width / acceleration), middle)
    order = Draws(seed, "cartesian mask", width).uniform()
    order[columns > 0] = 2.0
    columns[order.argsort()[: wanted - middle]] = 1
    return columns[None].repeat(height, 1)


def _kernel(kernel: ArrayLike | Tensor) -> Tensor:
    values = torch.as_tensor(np.asarray(kernel) if not isinstance(kernel, Tensor) else kernel)
    values = values.float()
    if values.ndim != 2 or not bool(torch.isfinite(values).all()):
        raise NediffError(
            f"A blur kernel is a finite array of shape (K, K'), not {tuple(values.shape)}."
        )
    if float(values.sum()) <= 0:
        raise NediffError("The values of the blur kernel must have a positive sum.")
    return values / values.sum()


def _refuse_false_adjoint(operator: Physics) -> None:
    """⟨Ax, y⟩ = ⟨x, Aᵀy⟩ for a random image x and a random measurement y, to 1e-3."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(1, *operator.image_shape, generator=generator)
    y = torch.randn(1, *operator.measured_shape, generator=generator)
    with torch.no_grad():
        ax, aty = operator.A(x).double(), operator.A_adjoint(y).double()
    if aty.shape != x.shape:
        raise NediffError(
            f"The A_adjoint of this physics gives images of shape {tuple(aty.shape[1:])}, not "
            f"{operator.image_shape}."
        )
    left, right = float((ax * y).sum()), float((x * aty).sum())
    # of independent x and y, the products are about as large as these norms, not as ‖Ax‖ ‖y‖
    if not abs(left - right) <= 1e-3 * max(float(ax.norm()), float(aty.norm())):
        raise NediffError(
            "The A_adjoint of this physics is not the adjoint of its A: for random x and y, "
            f"⟨Ax, y⟩ = {left:.4g} but ⟨x, Aᵀy⟩ = {right:.4g}; give one that is."
        )


def stack_operators(operators: Sequence[LinearOperator]) -> LinearOperator:
    """One operator for a batch, from one for each of its images."""
    return operators[0] if len(operators) == 1 else operators[0].stack(operators[1:])
