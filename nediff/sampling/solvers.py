"""Solvers of the reverse diffusion, as pure functions of one step (METHOD.md §4).

Each step goes from noise level a down to b < a, both (B,): z, noise (B, C, H, W), and
``denoise(z, level)`` = A D(z, level). With d(z, a) = (z − A D(z, a))/a, the reverse SDE
dz = 2 d dσ + √(2σ) dω leads from y ~ p(· | σ_n) to a sample of p(Ax | y).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from nediff.divergence import expand

Denoise = Callable[[Tensor, Tensor], Tensor]
NoiseSource = Callable[[int], Tensor]
"""Step number → standard normal noise, masked like the measurement noise."""


class Memory(NamedTuple):
    """What a multistep solver remembers of the step before: D and h = ln(a/b)."""

    denoised: Tensor
    log_step: Tensor


Step = Callable[[Tensor, Denoise, Tensor, Tensor, Tensor, Memory | None], tuple[Tensor, Memory]]


def _direction(z: Tensor, denoised: Tensor, level: Tensor) -> Tensor:
    return (z - denoised) / expand(level)


def _remember(denoised: Tensor, a: Tensor, b: Tensor) -> Memory:
    return Memory(denoised, (a / b).log())


def paper_step(
    z: Tensor, denoise: Denoise, a: Tensor, b: Tensor, noise: Tensor, memory: Memory | None
) -> tuple[Tensor, Memory]:
    """Algorithm 1 as the paper prints it, kept to reproduce its tables. Not a posterior sampler.

    ẑ = z + 2(b−a)d + √(2(a−b)a) η; z ← z + ½(b−a)(d + d(ẑ, b)). The second line throws the
    noise away, so the samples have almost no spread (error²/variance in the thousands).
    """
    denoised = denoise(z, a)
    d = _direction(z, denoised, a)
    z_hat = z + expand(2 * (b - a)) * d + expand((2 * (a - b) * a).sqrt()) * noise
    d_hat = _direction(z_hat, denoise(z_hat, b), b)
    return z + expand(0.5 * (b - a)) * (d + d_hat), _remember(denoised, a, b)


def heun_step(
    z: Tensor, denoise: Denoise, a: Tensor, b: Tensor, noise: Tensor, memory: Memory | None
) -> tuple[Tensor, Memory]:
    """Stochastic Heun: n = √(a²−b²) η; ẑ = z + 2(b−a)d + n; z ← z + (b−a)(d + d(ẑ, b)) + n."""
    n = expand((a**2 - b**2).sqrt()) * noise
    denoised = denoise(z, a)
    d = _direction(z, denoised, a)
    z_hat = z + expand(2 * (b - a)) * d + n
    d_hat = _direction(z_hat, denoise(z_hat, b), b)
    return z + expand(b - a) * (d + d_hat) + n, _remember(denoised, a, b)


def dpm2m_step(
    z: Tensor, denoise: Denoise, a: Tensor, b: Tensor, noise: Tensor, memory: Memory | None
) -> tuple[Tensor, Memory]:
    """Second-order multistep (DPM-Solver++ 2M, SDE form): one network call per step.

    h = ln(a/b), e = e^{−2h}; D̄ = D + (D − D_prev)·h/(2 h_prev), at first D̄ = D;
    z ← (1−e) D̄ + e z + b√(1−e) η.
    """
    denoised = denoise(z, a)
    h = (a / b).log()
    e = (-2 * h).exp()
    extrapolated = denoised
    if memory is not None:
        extrapolated = denoised + expand(h / (2 * memory.log_step)) * (denoised - memory.denoised)
    z = expand(1 - e) * extrapolated + expand(e) * z + expand(b * (1 - e).sqrt()) * noise
    return z, Memory(denoised, h)


def euler_step(
    z: Tensor, denoise: Denoise, a: Tensor, b: Tensor, noise: Tensor, memory: Memory | None
) -> tuple[Tensor, Memory]:
    """Euler-Maruyama: z ← z + 2(b−a)d + √(a²−b²) η."""
    denoised = denoise(z, a)
    d = _direction(z, denoised, a)
    z = z + expand(2 * (b - a)) * d + expand((a**2 - b**2).sqrt()) * noise
    return z, _remember(denoised, a, b)


def ancestral_step(
    z: Tensor, denoise: Denoise, a: Tensor, b: Tensor, noise: Tensor, memory: Memory | None
) -> tuple[Tensor, Memory]:
    """DDPM-like: z ← D + (b²/a²)(z−D) + b√(1−b²/a²) η."""
    denoised = denoise(z, a)
    ratio = b**2 / a**2
    z = denoised + expand(ratio) * (z - denoised) + expand(b * (1 - ratio).sqrt()) * noise
    return z, _remember(denoised, a, b)


SOLVERS: dict[str, Step] = {
    "dpm2m": dpm2m_step,
    "heun": heun_step,
    "euler": euler_step,
    "ancestral": ancestral_step,
    "paper": paper_step,
}


def network_calls(solver: str, levels: int) -> int:
    """Network calls for ``levels`` noise levels, with the final D(z, σ_min)."""
    return 2 * levels - 1 if solver in ("heun", "paper") else levels


def solve(
    step: Step,
    y: Tensor,
    denoise: Denoise,
    levels: Tensor,
    noise: NoiseSource,
    callback: Callable[[int], None] | None = None,
) -> Tensor:
    """Walk from z = y at levels[0] down to levels[-1]; levels (K, B); returns z_end like y."""
    z, memory = y, None
    for i in range(len(levels) - 1):
        z, memory = step(z, denoise, levels[i], levels[i + 1], noise(i), memory)
        if callback is not None:
            callback(i + 1)
    return z
