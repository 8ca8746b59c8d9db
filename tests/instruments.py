"""One of each linear operator, small, to test the laws that all of them obey."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nediff.operators import Convolution, Fourier, Identity, LinearOperator, Mask, Physics
from nediff.problem import PATTERNS, Problem


@dataclass(frozen=True)
class Case:
    """An operator and the images (C, H, W) it is tried on."""

    operator: LinearOperator
    shape: tuple[int, int, int]
    dtype: torch.dtype = torch.float64
    """Ours take any; deepinv's have parameters in float32."""

    @property
    def tolerance(self) -> float:
        """Relative rounding error allowed: far above that of the type, far below a mistake."""
        return 1e-11 if self.dtype == torch.float64 else 1e-5

    def images(self, n: int, seed: int = 0) -> Tensor:
        return normals((n, *self.shape), seed, self.dtype)

    def measurements(self, n: int, seed: int = 1) -> Tensor:
        """Any values of the right shape, not only those that A can give."""
        like = self.operator.A(self.images(n))
        return normals((n, *like.shape[1:]), seed, self.dtype)


def normals(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def some_mask(shape: tuple[int, ...], share: float = 0.6, seed: int = 7) -> Tensor:
    """Zeros and ones, float32 as the package keeps them."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator) < share).float()


def some_kernel(rows: int, columns: int, seed: int = 3) -> Tensor:
    """Positive, without any symmetry, summing to one, with no rounding when kept as float32."""
    generator = torch.Generator().manual_seed(seed)
    kernel = torch.rand(rows, columns, generator=generator)
    return kernel / kernel.sum()


def centred_mask(height: int, width: int) -> Tensor:
    """A part of k-space with its centre."""
    mask = some_mask((height, width), 0.4)
    mask[height // 2, width // 2] = 1
    return mask


def own_cases() -> dict[str, Case]:
    """Every operator of the package, with all that makes a difference between them."""
    cases = {
        "identity": Case(Identity(), (3, 6, 7)),
        "mask shared by channels": Case(Mask(some_mask((1, 1, 6, 8))), (3, 6, 8)),
        "mask per channel": Case(Mask(some_mask((1, 3, 7, 6))), (3, 7, 6)),
        "blur": Case(Convolution(some_kernel(3, 3)), (2, 7, 8)),
        "blur, oblong kernel": Case(Convolution(some_kernel(4, 3)), (1, 8, 9)),
        "stride 2": Case(Convolution(some_kernel(4, 4), 2, "super_resolution"), (2, 10, 12)),
        "stride 3": Case(Convolution(some_kernel(3, 3), 3, "super_resolution"), (1, 9, 12)),
        "stride 3, kernel 4": Case(
            Convolution(some_kernel(4, 4), 3, "super_resolution"), (1, 10, 13)
        ),
        "stride 2, single pixels": Case(
            Convolution(torch.ones(1, 1), 2, "super_resolution"), (1, 7, 9)
        ),
        "kernels of each image": Case(
            Convolution(some_kernel(3, 3)).stack(
                [Convolution(some_kernel(3, 3, seed)) for seed in (4, 5)]
            ),
            (2, 7, 8),
        ),
        "masks of each image": Case(
            Mask(some_mask((1, 2, 6, 5))).stack(
                [Mask(some_mask((1, 2, 6, 5), seed=seed)) for seed in (8, 9)]
            ),
            (2, 6, 5),
        ),
        "fourier": Case(Fourier(centred_mask(6, 8)), (2, 6, 8)),
        "fourier, odd sizes": Case(Fourier(centred_mask(7, 5)), (2, 7, 5)),
    }
    for pattern in PATTERNS:
        bayer = Problem.demosaicing(0.1, pattern).operator
        cases[pattern] = Case(bayer, (3, 6, 8))
        cases[f"{pattern}, odd sizes"] = Case(bayer, (3, 7, 5))
        cases[f"{pattern}, a window"] = Case(bayer.window(2, 4, 6, 8), (3, 6, 8))
    return cases


def deepinv_cases() -> dict[str, Case]:
    """Two of deepinv's physics: one with fewer values than pixels, one with holes."""
    from deepinv.physics import Downsampling, Inpainting

    down = Downsampling(img_size=(2, 12, 16), filter="gaussian", factor=2, padding="circular")
    holes = Inpainting(img_size=(2, 9, 8), mask=some_mask((2, 9, 8)))
    return {
        "deepinv downsampling": Case(Physics(down, (2, 12, 16)), (2, 12, 16), torch.float32),
        "deepinv inpainting": Case(Physics(holes, (2, 9, 8)), (2, 9, 8), torch.float32),
    }
