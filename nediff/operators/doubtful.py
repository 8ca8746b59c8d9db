"""Correlated noise that is not quite what was estimated, so that a network learns to look."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from nediff.operators.coloured import Coloured

if TYPE_CHECKING:
    from nediff.randomness import Draws

WEAKER, STRONGER = 0.65, 1.95
"""Noise is so many times as strong as was told, at least and at most: on ten photographs whose
noise is known, estimates were 0.65 to 1 of the truth."""
FREQUENCIES = (0.0, 0.06, 0.12, 0.2, 0.3, 0.42, 0.71)
"""In cycles per pixel: where the spectrum is off by random factors, …"""
STEP, OFFSET = 0.2, 0.28
"""… whose logarithms walk from one to the next by so much, from a start as uncertain."""
RGB, COLOUR_STRONGER = 3, math.e
"""Of three channels two axes are colours. These may be so much stronger still: cameras remove most
of their noise, in most places."""
PLACES = 8
"""Pixels from one place to the next, between which the strength changes smoothly, …"""
UNEVEN, COLOUR_UNEVEN = 0.3, 0.8
"""… and the standard deviation of its logarithm, of brightness and of colours."""


class Doubtful(Coloured):
    """Noise about a colour: another strength, spectrum and evenness for each image of a batch.

    n = V e^{f} ∘ F⁻¹[e^{k} ∘ Vᵀ C^½ F η]: along the axes V of the colour (brightness and colours),
    the spectrum is off by a random walk k in the frequency and the strength by a smooth field f.
    """

    def __init__(self, known: Coloured, like: Tensor, draws: Draws) -> None:
        super().__init__(known.colour)
        self._root = known._root  # kept, since it takes longer than all the rest
        batch, channels, height, width = like.shape
        axes = np.linalg.eigh(self.colour.power.mean(axis=0))[1]
        self._axes = torch.from_numpy(axes).to(like)
        colours = channels - 1 if channels == RGB else 0  # the last axis has the most power
        is_colour = (torch.arange(channels) < colours).to(like)[None, :, None]
        self.strength = WEAKER * (STRONGER / WEAKER) ** draws.uniform().to(like)
        """(B,): how many times as strong as was estimated, before the rest."""
        steps = draws.normal_like(like.new_empty(batch, channels, len(FREQUENCIES) + 1, 1))[..., 0]
        more = draws.normal_like(like.new_empty(batch, channels, 1, 1))[..., 0]
        walk = OFFSET * steps[..., :1] + STEP * steps[..., 1:].cumsum(dim=2)
        walk = walk - walk.mean(dim=2, keepdim=True) / 2
        log_gain = walk + is_colour * math.log(COLOUR_STRONGER) * torch.special.ndtr(more)
        self._gain = torch.exp(_between(log_gain, height, width))
        places = (-(-height // PLACES), -(-width // PLACES))
        fields = draws.normal_like(like.new_empty(batch, channels, *places))
        uneven = UNEVEN + (COLOUR_UNEVEN - UNEVEN) * is_colour[..., None]
        smooth = interpolate(fields, (height, width), mode="bicubic", align_corners=True)
        self._field = torch.exp(uneven * smooth)

    def noise(self, white: Tensor) -> Tensor:
        """White noise (B, C, h, w) of the crops it was made for → noise of each."""
        size = white.shape[-2:]
        spectrum = torch.fft.rfft2(white)
        root = self._root(*size).to(spectrum)
        spectrum = torch.einsum("hwij,bjhw->bihw", root, spectrum)
        along = self._gain * _mixed(self._axes.T, spectrum)
        noise = _mixed(self._axes, self._field * torch.fft.irfft2(along, s=size))
        return self.strength[:, None, None, None] * noise


def _mixed(matrix: Tensor, x: Tensor) -> Tensor:
    """Matrix (C, C) times the channels of x (B, C, h, w); not as a product that autocast rounds."""
    return (matrix[None, :, :, None, None] * x[:, None]).sum(dim=2)


def _between(values: Tensor, height: int, width: int) -> Tensor:
    """(B, C, K) at `FREQUENCIES` → (B, C, height, width // 2 + 1), straight lines in between."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    at = np.interp(frequency, FREQUENCIES, range(len(FREQUENCIES)))
    left = np.minimum(at.astype(np.int64), len(FREQUENCIES) - 2)
    share = torch.from_numpy(at - left).to(values)
    lower = torch.from_numpy(left).to(values.device)
    return values[..., lower] * (1 - share) + values[..., lower + 1] * share
