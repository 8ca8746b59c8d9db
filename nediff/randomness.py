"""Counter-based randomness: every number is a pure function of where it is used.

Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) maps a
128-bit counter and a 64-bit key to four random 32-bit words. With the pixel position in the
counter and the seed in the key, the noise at a pixel does not depend on the batch, the tile,
the process or the order in which things are computed (METHOD.md §4).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK32 = 0xFFFFFFFF
_UNIT = 2.0**-32


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> Tensor:
    """Philox-4x32-10 on int64 tensors that hold 32-bit words; returns the words, (4, ...)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & _MASK32) ^ c1 ^ k0,
            product1 & _MASK32,
            ((product0 >> 32) & _MASK32) ^ c3 ^ k1,
            product0 & _MASK32,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK32, (k1 + _WEYL[1]) & _MASK32
    words: list[Tensor] = list(torch.broadcast_tensors(c0, c1, c2, c3))  # type: ignore[no-untyped-call]
    return torch.stack(words)


def derive_key(*parts: int | str) -> int:
    """A 64-bit key from any mixture of numbers and names, stable across machines."""
    text = "\x1f".join(f"{type(p).__name__}:{p}" for p in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _key_words(keys: Sequence[int], device: torch.device | str) -> tuple[Tensor, Tensor]:
    low = torch.tensor([k & _MASK32 for k in keys], dtype=torch.int64, device=device)
    high = torch.tensor([(k >> 32) & _MASK32 for k in keys], dtype=torch.int64, device=device)
    return low, high


def normal_field(
    keys: Sequence[int],
    channels: int,
    height: int,
    width: int,
    *,
    top: int = 0,
    left: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Standard normal noise on the window at (top, left) of an endless plane per key.

    Returns float32 (len(keys), channels, height, width). Two windows of the same key agree
    wherever they overlap: this is what makes noise independent of tiling and cropping.
    """
    first_block, last_block = left // 4, -(-(left + width) // 4)
    block = torch.arange(first_block, last_block, device=device)  # four columns share a counter
    row = torch.arange(top, top + height, device=device)[:, None]
    channel = torch.arange(channels, device=device)[:, None, None]
    k0, k1 = (k[:, None, None, None] for k in _key_words(keys, device))
    words = philox((block, row, channel, torch.zeros_like(block)), (k0, k1))
    normals = _box_muller(words)  # (4, B, C, H, blocks)
    plane = normals.permute(1, 2, 3, 4, 0).flatten(-2)
    skip = left - 4 * first_block
    return plane[..., skip : skip + width].contiguous()


def _box_muller(words: Tensor) -> Tensor:
    """Two pairs of 32-bit words → four standard normals, (4, ...) float32."""
    uniform = ((words.double() + 0.5) * _UNIT).float().clamp_(min=2.0**-33, max=1 - 2.0**-24)
    radius = (-2.0 * uniform[:2].log()).sqrt()
    angle = (2.0 * math.pi) * uniform[2:]
    return torch.cat([radius * angle.cos(), radius * angle.sin()])


class Draws:
    """All randomness of one batch, sample by sample.

    A draw is a function of (seed, stream, global sample index, number of the draw), never of
    the batch it is computed in: splitting a batch over processes or accumulation steps changes
    nothing. Successive calls, and different streams, give independent values.
    """

    def __init__(
        self,
        seed: int,
        stream: str,
        samples: Sequence[int] | int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.samples = range(samples) if isinstance(samples, int) else list(samples)
        self.device = device
        self._base = (seed, stream)
        self._count = 0

    def restart(self) -> None:
        """Begin again: what is drawn next is what was drawn first."""
        self._count = 0

    def _keys(self) -> list[int]:
        self._count += 1
        return [derive_key("draw", *self._base, i, self._count) for i in self.samples]

    def uniform(self, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Independent U(low, high), (B,) float32."""
        k0, k1 = _key_words(self._keys(), self.device)
        zero = torch.zeros_like(k0)
        word = philox((zero, zero, zero, zero + 1), (k0, k1))[0]
        unit = (word.double() + 0.5) * _UNIT
        return (low + (high - low) * unit).float()

    def normal_like(self, y: Tensor) -> Tensor:
        """Independent standard normals of the shape and type of y, (B, C, H, W)."""
        _, channels, height, width = y.shape
        return normal_field(self._keys(), channels, height, width, device=y.device).to(y.dtype)
