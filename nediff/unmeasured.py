"""The spread of pixels that were never measured: what a restorer keeps of it, and how it is used.

The sampler draws A x; what A does not see gets its conditional mean, and error bars from such
samples would be falsely narrow there. A small network (learned in training/spread.py from
measurements alone) says how uncertain the unseen part of each pixel is.

A blur has no clear limit between what it sees and what it does not: the finer a detail, the more it
is weakened, and the better the network would have to be to find it in a nearly noise-free z. So
there the network says how uncertain each pixel is in all, and a spectrum which part of that, by
frequency, the samples do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nediff.config import RunConfig
from nediff.errors import NediffError
from nediff.keeping import read_tensors, write_tensors
from nediff.networks import build_spread
from nediff.networks.spread import SpreadNetwork
from nediff.operators import LinearOperator
from nediff.randomness import derive_key, normal_field
from nediff.runs import copy_checked

SPREAD_FILE = "spread.safetensors"


@dataclass(frozen=True)
class UnmeasuredSpread:
    """Var(x | y) of what is unseen, and the ``share`` of it that samples do not have yet.

    Or, with a ``spectrum`` (K,), that of the whole image, and the share by frequency: K rings from
    0 to half a cycle per pixel, of mean 1 over all frequencies if samples had nothing of it.
    """

    network: SpreadNetwork
    share: float
    spectrum: Tensor | None = None

    @torch.no_grad()
    def variance(
        self,
        y: Tensor,
        estimate: Tensor,
        sigma: Tensor,
        operator: LinearOperator,
        mean: Tensor | None = None,
    ) -> Tensor:
        """The variance v to add to the unseen part of samples, (B, C, H, W)."""
        total: Tensor = self.network(y, estimate, sigma, operator, mean)
        return self.share * total

    def noise(self, white: Tensor, variance: Tensor, operator: LinearOperator) -> Tensor:
        """White noise w → N(√v w), N the part that is unseen; or √v (g ∗ w), |ĝ|² the spectrum."""
        if self.spectrum is None:
            return operator.unseen(variance.sqrt() * white)
        return variance.sqrt() * filtered(white, self.spectrum)


def add_unseen(
    samples: Tensor,
    shaped: Callable[[Tensor], Tensor],
    seeds: Sequence[int],
    first: int = 0,
    corner: tuple[int, int] = (0, 0),
) -> Tensor:
    """Samples (n, B, C, H, W) plus noise: ``shaped`` of white noise (B, C, H, W).

    The noise of sample k of an image is a function of its seed and k alone. The samples are those
    from number ``first`` on, of a part of the image that begins at ``corner`` (row, column).
    """
    n, batch, *shape = samples.shape
    top, left = corner
    keys = [derive_key("unmeasured", seed, first + k) for k in range(n) for seed in seeds]
    noise = normal_field(keys, *shape, top=top, left=left, device=samples.device)
    noise = noise.view(n, batch, *shape)
    return samples + torch.stack([shaped(of_all) for of_all in noise])


def radial_power(images: Tensor, rings: int) -> Tensor:
    """The mean of |Fourier transform|² / HW of images (..., H, W) in each ring, (rings,), float64.

    White noise of variance 1 has 1 in every ring. What is beyond half a cycle per pixel, in the
    corners, belongs to the last.
    """
    height, width = images.shape[-2:]
    power = torch.fft.fft2(images.double()).abs().square() / (height * width)
    ring = (_frequencies(height, width) * 2 * rings).long().clamp_max(rings - 1).flatten()
    flat = power.reshape(-1, height * width).mean(0).cpu()
    total = torch.zeros(rings, dtype=torch.float64).index_add(0, ring, flat)
    return total / torch.bincount(ring, minlength=rings).clamp_min(1)


def filtered(white: Tensor, spectrum: Tensor) -> Tensor:
    """White noise (..., H, W) → noise with that power (K,): lines between the rings' middles."""
    height, width = white.shape[-2:]
    rings = len(spectrum)
    place = (_frequencies(height, width) * 2 * rings - 0.5).clamp(0, rings - 1)
    below = place.long().clamp_max(max(rings - 2, 0))
    above = (below + 1).clamp_max(rings - 1)
    known = spectrum.double().cpu()
    power = torch.lerp(known[below], known[above], place - below)
    gain = power.clamp_min(0).sqrt().to(white)
    out: Tensor = torch.fft.ifft2(torch.fft.fft2(white) * gain).real
    return out


def _frequencies(height: int, width: int) -> Tensor:
    """Of `torch.fft.fft2`, in cycles per pixel, (H, W)."""
    down, across = (torch.fft.fftfreq(n, dtype=torch.float64) for n in (height, width))
    return torch.hypot(down[:, None], across[None])


def save_spread(folder: Path, spread: UnmeasuredSpread) -> None:
    """Write spread.safetensors."""
    weights: dict[str, Tensor] = dict(spread.network.named_parameters())
    if spread.spectrum is not None:
        weights["spectrum"] = spread.spectrum
    write_tensors(folder / SPREAD_FILE, weights, {"share": repr(spread.share)})


def load_spread(
    folder: Path, config: RunConfig, device: torch.device | str
) -> UnmeasuredSpread | None:
    """Read spread.safetensors; None where a run has none."""
    path = folder / SPREAD_FILE
    if not path.exists():
        return None
    tensors, metadata = read_tensors(path)
    network = build_spread(config.network)
    try:
        share = float(metadata["share"])
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                copy_checked(parameter, tensors[name], name, path)
    except (KeyError, ValueError) as error:
        raise NediffError(f"{path} does not fit this run ({error}).") from error
    return UnmeasuredSpread(network.eval().to(device), share, tensors.get("spectrum"))
