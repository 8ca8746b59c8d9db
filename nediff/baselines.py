"""The two baselines of the paper that learn from corrupted data: per image, shape (B,).

- Consistent Diffusion (`cd`): Daras, Dimakis, Daskalakis, "Consistent Diffusion Meets Tweedie"
  (2024). Given noisy images and σ_n. Above σ_n a denoiser can be learned from noisy targets
  (`ambient_tweedie`); below it, only its agreement with itself can be asked for (`consistency`).
- Ambient Diffusion (`ambient`): Daras et al., "Ambient Diffusion" (2023). Given measurements
  WITHOUT noise, by a mask; more is hidden from the network, to be predicted (`ambient`).

As in losses.py, all randomness comes in as tensors; what is drawn, and from which law, is the
recipe's business.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nediff import losses
from nediff.divergence import Map, expand
from nediff.operators import LinearOperator
from nediff.problem import Problem
from nediff.sampling import noise_levels, solve
from nediff.sampling.solvers import ancestral_step

GAMMA = 3.0
"""Of the levels between the ends of a run, as our sampler's."""


def ambient_tweedie(
    denoiser: Map, y: Tensor, sigma: Tensor, level: Tensor, noise: Tensor
) -> Tensor:
    """‖(1 − r) D(x_t, σ_t) + r x_t − y‖² / n, x_t = y + √(σ_t² − σ_n²) η, r = σ_n²/σ_t².

    For ``level`` σ_t above the noise ``sigma`` σ_n of y (B, C, H, W). By Tweedie's formula, used
    twice, E[y | x_t] = (1 − r) E[x | x_t] + r x_t: regression on the noisy y itself is least
    for D = E[x | x_t]. As σ_t comes down to σ_n the factor 1 − r goes to zero, and with it all
    that can be learned: what D is at σ_n must come from just above.
    """
    x_t = y + expand((level.square() - sigma.square()).clamp_min(0).sqrt()) * noise
    r = expand((sigma / level).square())
    residual = (1 - r) * denoiser(x_t, level) + r * x_t - y
    return residual.square().flatten(1).mean(1)


def descend(
    denoiser: Map,
    x: Tensor,
    high: Tensor,
    low: Tensor,
    noises: Sequence[Tensor],
    denoised: Tensor | None = None,
) -> Tensor:
    """x at noise level ``low`` given x (B, C, H, W) at ``high``, by the model's own sampler.

    As many ancestral steps as there are ``noises``, each like x. If D is the posterior mean,
    their conditional mean E[x_low | x_high] is right however long they are (that of an Euler step
    is not), only their spread is too narrow: where D is linear, they are no source of violations
    of `consistency`. (A multistep solver has the better spread, and taught no more: docs/results.)
    ``denoised`` is D(x, high) if it is known.
    """
    levels = noise_levels(high, low, len(noises) + 1, GAMMA).to(x.dtype)
    first = denoiser(x, high) if denoised is None else denoised
    z, _ = ancestral_step(x, lambda *_: first, levels[0], levels[1], noises[0], None)
    return solve(ancestral_step, z, denoiser, levels[1:], lambda i: noises[i + 1])


def consistency(
    denoiser: Map,
    x_t: Tensor,
    level: Tensor,
    lower: Tensor,
    first: Sequence[Tensor],
    second: Sequence[Tensor],
) -> Tensor:
    """(D(x''₁, σ'') − D(x_t, σ_t)) · (D(x''₂, σ'') − D(x_t, σ_t)) / n, σ'' = ``lower`` < σ_t.

    A posterior mean does not change on average on the way down, D(x_t, σ_t) = E[D(x'', σ'') | x_t].
    x''₁ and x''₂ are two runs of the sampler from x_t, independent if the noises ``first`` and
    ``second`` are, so this is an unbiased estimate of ‖E[D(x'', σ'')] − D(x_t, σ_t)‖² / n.

    x_t counts as given. The gradient flows through D(x_t), through D(x'') and through the runs
    that lead to x'', as in the authors' code for noisy data ("How much is a noisy image worth?",
    2024). Without the last part it is no descent: D = x + bσ violates by b σ''(1 − σ''/σ_t), and
    would be led to ever larger b. (Their first code, of 2023, leaves it out; it had clean images.)
    """
    here = denoiser(x_t, level)
    x_low = descend(
        denoiser,
        torch.cat([x_t, x_t]),
        torch.cat([level, level]),
        torch.cat([lower, lower]),
        [torch.cat(pair) for pair in zip(first, second, strict=True)],
        torch.cat([here, here]),
    )
    one, other = denoiser(x_low, torch.cat([lower, lower])).chunk(2)
    return ((one - here) * (other - here)).flatten(1).mean(1)


def ambient(
    denoiser: Map,
    x: Tensor,
    sigma: Tensor,
    noise: Tensor,
    problem: Problem,
    given: LinearOperator,
    weight: Tensor | None = None,
) -> Tensor:
    """‖A(D(Ã(A x + σ η), σ; Ã) − x)‖² / m: the further masked Ã = ``given``, judged on all of A.

    Only the NOISE-FREE measurement A x of the image x (B, C, H, W) is used, and noise is added
    afresh. ``given`` is the mask of ``problem`` without some of its pixels, and ``denoiser`` is
    told of it: it sees neither the hidden pixels nor which of the unseen ones count.
    """
    return losses.rehearsed(denoiser, problem.A(x), sigma, noise, problem, given, weight)
