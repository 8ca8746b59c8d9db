"""UNSURE: the score of noisy images, and the noise as the multiplier of a constraint.

Tachella, Davies and Jacques (2024) look for min_f max_η E[‖f(y) − y‖² + 2η div f(y)]: the best
estimator that is insensitive to y on average, E div f = 0. With s = ∇ log p(y) the answer is

    f = y + η s,    η = m / E‖s‖² = σ² / (1 − MMSE/σ²)    (MMSE of each value)

so η is an upper bound of σ², and nothing better can be said of all images with the score alone:
if y is x + σ ε, then it is also (x + √(σ² − ω²) ε₁) + ω ε₂, for any ω < σ. (To put η right by
the MMSE that the score predicts, σ² (1 − σ²/η), gives back whatever σ is put in.)

Here f is written as y + η g with a network for g. Then the game falls apart: the best g is s
whatever η is, so g = (D − y)/σ₀² is trained by SURE at a first guess σ₀, which need not be right;
and η ascends by the divergence of f. Likewise for a multiplier of each channel, and for one of
each small lag l, f = y + r ∗ g with Σ_i ∂f_i/∂y_(i+l) = 0 for all l: r is then the
autocovariance of correlated noise.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

REACH = 1
"""Lags from −1 to 1 pixels in both directions have a multiplier."""
MOMENTUM = 0.9
RATE = 0.1
"""Of the ascent, as a share of the multiplier: the same at every scale of the data."""


def score_loss(
    value: Tensor, derivative: Tensor, y: Tensor, probe: Tensor, sigma: float, measured: Tensor
) -> Tensor:
    """(‖D(y) − y‖²/σ₀² + 2 b·J b)/m − 1, (B,): SURE in units of σ₀².

    ``value`` D(y) and ``derivative`` J b (B, C, H, W); b and D − y count where ``measured``. With
    D = y + σ₀² g this is σ₀² (‖g‖² + 2 div g)/m + 1: least for g = ∇ log p(y), whatever σ₀.
    """
    squares = (measured * (value - y)).square().flatten(1).sum(1) / sigma**2
    divergence = (probe * derivative).flatten(1).sum(1)
    return (squares + 2 * divergence) / measured.flatten(1).sum(1).clamp_min(1) - 1


def lagged_traces(derivative: Tensor, probe: Tensor, measured: Tensor, reach: int) -> Tensor:
    """Means over i of ∂f_i/∂y_(i+l) for lags |l| ≤ reach, (C, 2 reach + 1, 2 reach + 1).

    By E[(J b)_i b_(i+l)] with b white and zero where nothing is ``measured``; all (B, C, H, W).
    The lags l and −l are averaged.
    """
    channels, (height, width) = derivative.shape[1], derivative.shape[-2:]
    traces = derivative.new_zeros(channels, 2 * reach + 1, 2 * reach + 1)
    there = measured * derivative
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            rows, columns = _overlap(down, height), _overlap(right, width)
            other_rows, other_columns = _overlap(-down, height), _overlap(-right, width)
            product = there[..., rows, columns] * probe[..., other_rows, other_columns]
            pairs = measured[..., rows, columns] * measured[..., other_rows, other_columns]
            counted = pairs.sum((0, 2, 3)).clamp_min(1)
            traces[:, reach + down, reach + right] = product.sum((0, 2, 3)) / counted
    return (traces + traces.flip(1, 2)) / 2


def _overlap(lag: int, length: int) -> slice:
    """The i for which both i and i + lag are among 0 … length − 1."""
    return slice(max(0, -lag), length - max(0, lag))


class Multipliers:
    """η of each channel, and r of each channel and lag, with their momenta.

    ``white`` (C,) and ``lags`` (C, 3, 3), in the units of σ². v ← βv + (1 − β) d and
    r ← r + ρ r₀ v, where d is the divergence of f at the lag, between −1 and 1 or so.
    """

    def __init__(self, variance: float, channels: int) -> None:
        width = 2 * REACH + 1
        self.white = torch.full((channels,), variance)
        self.white_momentum = torch.zeros(channels)
        self.lags = torch.zeros(channels, width, width)
        self.lags[:, REACH, REACH] = variance
        self.lags_momentum = torch.zeros_like(self.lags)

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name, to be kept or filled."""
        names = ("white", "white_momentum", "lags", "lags_momentum")
        return {f"multipliers.{name}": getattr(self, name) for name in names}

    def ascend(self, traces: Tensor) -> None:
        """One step up. ``traces`` (C, 5, 5) are of J_g, at all differences of two lags."""
        centre = traces.shape[-1] // 2
        divergence = 1 + self.white * traces[:, centre, centre]
        self.white_momentum.lerp_(divergence, 1 - MOMENTUM)
        self.white += RATE * self.white * self.white_momentum
        self.lags_momentum.lerp_(lagged_divergence(self.lags, traces), 1 - MOMENTUM)
        scale = self.lags[:, REACH, REACH, None, None].clone()
        self.lags += RATE * scale * self.lags_momentum


def lagged_divergence(lags: Tensor, traces: Tensor) -> Tensor:
    """Σ_i ∂f_i/∂y_(i+l) / m of f = y + r ∗ g: δ_l + Σ_k r_k t_(l−k), (C, 3, 3).

    ``lags`` r (C, 3, 3), ``traces`` t of J_g (C, 5, 5).
    """
    channels = len(lags)
    found = F.conv2d(traces[None], lags.flip(1, 2)[:, None], groups=channels)[0]
    found[:, REACH, REACH] += 1
    return found
