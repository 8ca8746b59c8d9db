"""Linear operators: what an instrument measures of an image (METHOD.md §1 to §3).

An operator acts on tensors, images x (B, C, H, W) to measurements y, and knows what training
and sampling ask of it: its adjoint, where its noise is, a linear first guess of the image, and
which part of it a crop of a measurement belongs to. `window` gives the operator of a crop,
`turned` that of a crop turned with it, `stack` one operator for a batch of crops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nediff.filling import fill_missing


def turn(x: Tensor, k: int) -> Tensor:
    """One of the 8 turns and flips of the square: k mod 4 quarter turns, mirrored if k ≥ 4."""
    rotated = torch.rot90(x, k % 4, dims=(-2, -1))
    return rotated.flip(-1) if k >= 4 else rotated


def _for_batch(values: Tensor, batch: int) -> Tensor:
    """Repeat per-image values (B, ...) for a batch that holds the B images k times over."""
    if len(values) in (1, batch):
        return values
    return values.repeat(batch // len(values), *([1] * (values.ndim - 1)))


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
        """Noise as the instrument adds it: zero where nothing is measured."""
        return noise

    def guide(self, x: Tensor) -> Tensor | None:
        """What else the network should see of the operator, (B, guides, H, W)."""
        return None

    def known(self, x: Tensor) -> Tensor:
        """1 where a pixel of the image x is itself measured (with noise σ), 0 elsewhere."""
        return torch.zeros_like(x)

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

    def _mask(self, x: Tensor) -> Tensor:
        mask = self.mask
        if self.periodic:
            mask = _tile(mask, *x.shape[-2:])
        return _for_batch(mask, len(x)).to(x.dtype)

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


class Convolution(LinearOperator):
    """A x = every stride-th value of k ∗ x, only where the kernel lies inside the image.

    Blur has stride 1; super-resolution averages, then keeps one value in stride × stride. The
    image is larger than the measurement by what the kernel needs at the border, so that a crop
    of a measurement is exactly the measurement of a (larger) crop of the image: nothing is
    assumed about what lies outside. ``kernel`` is (K, K'), applied to each channel alike.
    """

    def __init__(self, kernel: Tensor, stride: int = 1, kind: str = "blur") -> None:
        self.kernel, self.stride, self.kind = kernel, stride, kind
        self.step = 1 / _convolution_gain(kernel, stride)
        if stride > 1:  # which does not commute with shifts, and a box is the same for all turns
            self.group = "shifts"
        # turned, an oblong kernel needs an image of another size: not one for the same batch
        self.turns = kernel.shape[-2] == kernel.shape[-1]

    def _weight(self, x: Tensor) -> Tensor:
        # torch's conv2d correlates: the kernel is flipped to convolve
        flipped = self.kernel.flip(-2, -1).to(x)
        kernels = flipped if flipped.ndim == 3 else flipped[None]
        return _for_batch(kernels, len(x)).repeat_interleave(x.shape[1], 0)[:, None]

    def A(self, x: Tensor) -> Tensor:
        """(k ∗ x) at every stride-th place."""
        if self.kernel.ndim == 2:
            weight = self._weight(x[:1])
            return F.conv2d(x, weight, stride=self.stride, groups=x.shape[1])
        batch, channels = x.shape[:2]
        folded = x.reshape(1, batch * channels, *x.shape[-2:])
        out = F.conv2d(folded, self._weight(x), stride=self.stride, groups=batch * channels)
        return out.view(batch, channels, *out.shape[-2:])

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Correlation with k of y, spread out by the stride."""
        if self.kernel.ndim == 2:
            weight = self._weight(y[:1])
            return F.conv_transpose2d(y, weight, stride=self.stride, groups=y.shape[1])
        batch, channels = y.shape[:2]
        folded = y.reshape(1, batch * channels, *y.shape[-2:])
        out = F.conv_transpose2d(
            folded, self._weight(y), stride=self.stride, groups=batch * channels
        )
        return out.view(batch, channels, *out.shape[-2:])

    def fill(self, y: Tensor) -> Tensor:
        """y / Σk, brought to the size of the image by bilinear interpolation, edges repeated."""
        height, width = y.shape[-2:]
        size = self.image_size(height, width)
        enlarged = (height * self.stride, width * self.stride)
        if self.stride > 1:
            y = F.interpolate(y, size=enlarged, mode="bilinear", align_corners=False)
        down, right = size[0] - enlarged[0], size[1] - enlarged[1]
        pad = (right // 2, right - right // 2, down // 2, down - down // 2)
        return F.pad(y, pad, mode="replicate") / self._total(y)

    def _total(self, y: Tensor) -> Tensor:
        total = self.kernel.to(y).sum(dim=(-2, -1))
        return total if self.kernel.ndim == 2 else _for_batch(total, len(y))[:, None, None, None]

    def complement(self, noise: Tensor) -> Tensor:
        """By the spectrum of AAᵀ on the grid of measurements, as if it were periodic."""
        kernels = self.kernel if self.kernel.ndim == 3 else self.kernel[None]
        height, width = noise.shape[-2:]
        spectra = torch.stack([_spectrum(k, self.stride, height, width) for k in kernels])
        root = (1 - spectra).clamp_min(0).sqrt().to(noise)
        shaped = _for_batch(root, len(noise))[:, None]
        out: Tensor = torch.fft.ifft2(torch.fft.fft2(noise) * shaped).real
        return out

    def image_size(self, height: int, width: int) -> tuple[int, int]:
        """(h − 1)·stride + K."""
        rows, columns = self.kernel.shape[-2:]
        return (height - 1) * self.stride + rows, (width - 1) * self.stride + columns

    def measured_size(self, height: int, width: int) -> tuple[int, int]:
        """(H − K)/stride + 1, rounded down."""
        rows, columns = self.kernel.shape[-2:]
        return (height - rows) // self.stride + 1, (width - columns) // self.stride + 1

    def image_corner(self, top: int, left: int) -> tuple[int, int]:
        """stride × (top, left)."""
        return top * self.stride, left * self.stride

    def frame(self, x: Tensor, height: int, width: int) -> Tensor:
        """Without the border that only the kernel reaches."""
        rows = min(height * self.stride, x.shape[-2])
        columns = min(width * self.stride, x.shape[-1])
        top, left = (x.shape[-2] - rows) // 2, (x.shape[-1] - columns) // 2
        return x[..., top : top + rows, left : left + columns]

    def turned(self, k: int) -> Convolution:
        """The kernel turned with the image."""
        return Convolution(turn(self.kernel, k), self.stride, self.kind)

    def stack(self, others: Sequence[LinearOperator]) -> Convolution:
        """One kernel per image, if they differ."""
        kernels = [self.kernel, *(o.kernel for o in others if isinstance(o, Convolution))]
        if all(torch.equal(kernels[0], k) for k in kernels):
            return self
        return Convolution(torch.stack(kernels), self.stride, self.kind)

    def to(self, device: torch.device | str) -> Convolution:
        return Convolution(self.kernel.to(device), self.stride, self.kind)

    def settings(self) -> dict[str, Any]:
        return {"stride": self.stride}

    def arrays(self) -> dict[str, Tensor]:
        return {"kernel": self.kernel}


def _convolution_gain(kernel: Tensor, stride: int) -> float:
    """‖A‖² of a strided convolution with positive weights; no less than that for any others.

    A Aᵀ convolves with every stride-th value of the kernel's autocorrelation.
    """
    kernels = (kernel[None] if kernel.ndim == 2 else kernel).double()
    rows, columns = kernel.shape[-2] - 1, kernel.shape[-1] - 1
    own = F.conv2d(
        kernels[None], kernels[:, None], padding=(rows, columns), groups=len(kernels)
    ).abs()
    kept = own[..., rows % stride :: stride, columns % stride :: stride]
    return float(kept.sum(dim=(-2, -1)).max().clamp_min(1e-12))


def _spectrum(kernel: Tensor, stride: int, height: int, width: int) -> Tensor:
    """The eigenvalues of AAᵀ on a periodic grid (h, w): the transform of k ⋆ k at the strides."""
    k = kernel.double()
    rows, columns = k.shape
    products = F.conv2d(k[None, None], k[None, None], padding=(rows - 1, columns - 1))[0, 0]
    grid = torch.zeros(height, width, dtype=torch.float64)
    for i in range(-((rows - 1) // stride), (rows - 1) // stride + 1):
        for j in range(-((columns - 1) // stride), (columns - 1) // stride + 1):
            value = products[rows - 1 + i * stride, columns - 1 + j * stride]
            grid[i % height, j % width] += value
    spectrum: Tensor = torch.fft.fft2(grid).real
    return spectrum


class Fourier(LinearOperator):
    """A x = m ⊙ F x: single-coil MRI. Complex numbers are two channels, real and imaginary.

    F is the orthonormal, centred Fourier transform, m (H, W) the sampled part of k-space.
    """

    kind = "mri"
    crop_step = None  # a crop of k-space is not k-space of a crop
    turns = False

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    @property
    def fixed_size(self) -> tuple[int, int]:
        """That of the mask."""
        return self.mask.shape[0], self.mask.shape[1]

    def A(self, x: Tensor) -> Tensor:
        """m ⊙ F x."""
        return self.mask_noise(_fourier(x, inverse=False))

    def A_adjoint(self, y: Tensor) -> Tensor:
        """F⁻¹ (m ⊙ y)."""
        return _fourier(self.mask_noise(y), inverse=True)

    def mask_noise(self, noise: Tensor) -> Tensor:
        """m ⊙ noise."""
        return self.mask.to(noise) * noise

    def as_image(self, x: Tensor) -> Tensor:
        """A real picture has no imaginary part."""
        return torch.cat([x, torch.zeros_like(x)], dim=1) if x.shape[1] == 1 else x

    def fill(self, y: Tensor) -> Tensor:
        """The zero-filled image: constants pass if the centre of k-space is measured."""
        return self.A_adjoint(y)

    def to(self, device: torch.device | str) -> Fourier:
        return Fourier(self.mask.to(device))

    def arrays(self) -> dict[str, Tensor]:
        return {"mask": self.mask}


def _fourier(x: Tensor, inverse: bool) -> Tensor:
    """Orthonormal centred transform of (B, 2, H, W) as complex numbers."""
    z = torch.view_as_complex(x.movedim(1, -1).contiguous())
    z = torch.fft.ifftshift(z, dim=(-2, -1))
    z = (torch.fft.ifft2 if inverse else torch.fft.fft2)(z, norm="ortho")
    z = torch.fft.fftshift(z, dim=(-2, -1))
    return torch.view_as_real(z).movedim(-1, 1).contiguous()


class Physics(LinearOperator):
    """Any `deepinv.physics.LinearPhysics`, for images of one size.

    Only its `A` and `A_adjoint` are used; the noise is ours.
    """

    kind = "physics"
    crop_step = None
    turns = False

    def __init__(self, physics: Any, image_shape: tuple[int, int, int]) -> None:
        self.physics, self.image_shape = physics, image_shape
        with torch.no_grad():
            ones = torch.ones(1, *image_shape)
            measured = physics.A(ones)
            self.measured_shape: tuple[int, ...] = tuple(int(k) for k in measured.shape[1:])
            self._through = physics.A_adjoint(measured)
            self._reached = _reached(physics, ones)
            self.step = 1.0 / max(_largest_gain(physics, ones), 1e-12)
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


def _largest_gain(physics: Any, x: Tensor, rounds: int = 20) -> float:
    """‖A‖², by power iteration from a random image."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(x.shape, generator=generator)
    gain = 0.0
    for _ in range(rounds):
        x = physics.A_adjoint(physics.A(x / x.norm().clamp_min(1e-12)))
        gain = float(x.norm())
    return gain
