"""Part of Fourier space: MRI."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nediff.operators.base import LinearOperator, for_batch, turn


class Fourier(LinearOperator):
    """A x = m ⊙ F x: single-coil MRI. Complex numbers are two channels, real and imaginary.

    F is the orthonormal, centred Fourier transform, m (H, W) the sampled part of k-space; or
    (B, 1, H, W), one for each image of a batch.
    """

    kind = "mri"
    crop_step = None  # a crop of k-space is not k-space of a crop
    turns = False

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    @property
    def fixed_size(self) -> tuple[int, int]:
        """That of the mask."""
        return self.mask.shape[-2], self.mask.shape[-1]

    def A(self, x: Tensor) -> Tensor:
        """m ⊙ F x."""
        return self.mask_noise(_fourier(x, inverse=False))

    def A_adjoint(self, y: Tensor) -> Tensor:
        """F⁻¹ (m ⊙ y)."""
        return _fourier(self.mask_noise(y), inverse=True)

    def mask_noise(self, noise: Tensor) -> Tensor:
        """m ⊙ noise."""
        mask = self.mask if self.mask.ndim == 2 else for_batch(self.mask, len(noise))
        return mask.to(noise) * noise

    def unseen(self, x: Tensor) -> Tensor:
        """F⁻¹ ((1 − m) ⊙ F x)."""
        return x - self.A_adjoint(self.A(x))

    def open_part(self, x: Tensor) -> Tensor:
        """What is not measured; the rest is, with noise σ."""
        return self.unseen(x)

    def unseen_share(self, x: Tensor) -> Tensor:
        """The share of k-space that is not sampled."""
        sampled = self.mask.to(x).mean(dim=(-2, -1)).view(-1, 1, 1, 1)
        return 1 - for_batch(sampled, len(x))

    def without(self, chance: Tensor, share: Tensor) -> Fourier:
        """The mask without random lines, if it is made of lines, or values; never the centre.

        A scanner reads line by line: a value whose neighbours in its line are known would be
        too easy to guess, and nothing like what is missing.
        """
        mask = self.mask.to(chance).expand_as(chance)
        height, width = self.fixed_size
        if torch.equal(self.mask, self.mask[..., :1, :].expand_as(self.mask)):  # columns
            chance = chance[..., :1, :]
        elif torch.equal(self.mask, self.mask[..., :, :1].expand_as(self.mask)):  # rows
            chance = chance[..., :, :1]
        kept = (chance > share[:, None, None, None]).to(chance.dtype).expand_as(mask).clone()
        middle = (slice(height // 2 - 1, height // 2 + 2), slice(width // 2 - 1, width // 2 + 2))
        kept[..., middle[0], middle[1]] = 1
        if chance.shape[-2] == 1:
            kept[..., middle[1]] = 1
        elif chance.shape[-1] == 1:
            kept[..., middle[0], :] = 1
        return Fourier(kept * mask)

    def as_image(self, x: Tensor) -> Tensor:
        """A real picture has no imaginary part."""
        return torch.cat([x, torch.zeros_like(x)], dim=1) if x.shape[1] == 1 else x

    def fill(self, y: Tensor) -> Tensor:
        """The zero-filled image: constants pass if the centre of k-space is measured."""
        return self.A_adjoint(y)

    def moved(self, k: int) -> Fourier:
        """What is known of the k-space of an image turned by turn number k: the mask turned too.

        The lines may be others then: A sees lines of the turned image that are known of it.
        """
        if self.mask.ndim != 2:
            raise ValueError("only the mask of one instrument can be moved")
        generator = torch.Generator().manual_seed(0)
        white = torch.randn((1, 2, *self.mask.shape), generator=generator).to(self.mask)
        whole = Fourier(torch.ones_like(self.mask))
        seen = whole.A(turn(whole.A_adjoint(self.mask_noise(white)), k))
        return Fourier((seen.abs().amax(dim=(0, 1)) > 1e-4).float())

    def stack(self, others: Sequence[LinearOperator]) -> Fourier:
        """One mask per image, if they differ."""
        masks = [self.mask, *(o.mask for o in others if isinstance(o, Fourier))]
        if all(torch.equal(masks[0], m) for m in masks):
            return self
        return Fourier(torch.stack(masks)[:, None])

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
