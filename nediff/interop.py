"""At home in deepinv: our losses, networks and instruments as its classes.

`SureLoss`, `NESureLoss`, `NER2RLoss` and `EquivarianceLoss` are `deepinv.loss.Loss`: they train
any model of deepinv that reads the noise level off the physics, as its `ArtifactRemoval` does.
`RestorerReconstructor` and `RestorerDenoiser` (see `Restorer.as_reconstructor` and `as_denoiser`)
are its `Reconstructor` and `Denoiser`. `ProblemPhysics` is an instrument of ours for deepinv;
the way back is `Problem.from_physics`. Importing this takes as long as importing deepinv.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import deepinv
import torch
from torch import Tensor, nn

from nediff import losses
from nediff.divergence import Map, expand
from nediff.errors import NediffError
from nediff.operators import Physics
from nediff.problem import Problem

Levels = Callable[[int, Any], tuple[Tensor, Tensor]]
"""(number of images, σ) → (level, contrast α), both (B,): `Restorer.levels`."""


class RestorerDenoiser(deepinv.models.Denoiser):  # type: ignore[misc]
    """D(x, σ) as a deepinv `Denoiser`, for its plug-and-play methods and samplers.

    σ is a number or a tensor of one for each image. Above σ_n the contrast is reduced, as
    `Restorer.restore` does, up to twice σ_n; at σ = 0 the image is returned as it is.
    """

    def __init__(self, denoiser: nn.Module, levels: Levels) -> None:
        super().__init__(device=next(denoiser.parameters()).device)
        self.denoiser, self._levels = denoiser, levels

    def forward(self, x: Tensor, sigma: float | Tensor | None = None, **_: Any) -> Tensor:
        """x (B, C, H, W) in unit intensities → the same shape; gradients flow."""
        if sigma is None:
            return self._denoised(x, None)
        told = sigma_of(sigma, len(x)).cpu()
        if bool((told == 0).all()):
            return x
        noisy = told > 0
        level = torch.where(noisy, told, told.max())  # any other: not used
        return torch.where(expand(noisy).to(x.device), self._denoised(x, level), x)

    def _denoised(self, x: Tensor, sigma: Tensor | None) -> Tensor:
        level, alpha = self._levels(len(x), sigma)
        out: Tensor = self.denoiser(expand(alpha) * x, level) / expand(alpha)
        return out


class RestorerReconstructor(deepinv.models.Reconstructor):  # type: ignore[misc]
    """E[x | y] as a deepinv `Reconstructor`: model(y, physics).

    The noise level is that of the physics, if its noise model has a σ, else σ_n. The physics must
    measure what the run was trained on, which is checked. Its weights can be trained
    further in deepinv's `Trainer`.
    """

    def __init__(self, denoiser: nn.Module, levels: Levels, problem: Problem) -> None:
        super().__init__(device=next(denoiser.parameters()).device)
        self.denoiser, self._levels, self._problem = denoiser, levels, problem

    def forward(self, y: Tensor, physics: Any = None, **_: Any) -> Tensor:
        """y (B, C', h, w) → x̂ (B, C, H, W), both in unit intensities; gradients flow."""
        problem = self._problem
        problem.check_size(*y.shape[-2:])
        here = problem.with_operator(problem.operator.window(0, 0, *y.shape[-2:]))
        y = here.lift(y)
        if physics is not None:
            self._refuse_another(physics, here, y)
        sigma = None if physics is None else noise_level(physics, len(y))
        level, alpha = self._levels(len(y), None if sigma is None else sigma.detach().cpu())
        out: Tensor = self.denoiser(expand(alpha) * y, level, here.operator) / expand(alpha)
        return out

    @torch.no_grad()
    def _refuse_another(self, physics: Any, problem: Problem, y: Tensor) -> None:
        """The network undoes one operator, and would silently undo the wrong one."""
        like = problem.operator.A_adjoint(y[:1])
        x = torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like)
        try:
            theirs, ours = physics.A(x), problem.A(x)
            same = theirs.shape == ours.shape and torch.allclose(theirs, ours, atol=1e-4, rtol=1e-3)
        except (RuntimeError, ValueError):
            same = False
        if not same:
            raise NediffError(
                f"This restorer was trained for one instrument ({problem.kind}), and this physics "
                "measures something else; train a run for it."
            )


class ProblemPhysics(deepinv.physics.LinearPhysics):  # type: ignore[misc]
    """An instrument of ours as a deepinv `LinearPhysics`, with its noise."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(noise_model=deepinv.physics.GaussianNoise(sigma=problem.sigma))
        self.problem = problem

    def A(self, x: Tensor, **_: Any) -> Tensor:
        """A x."""
        return self._here(x).A(x)

    def A_adjoint(self, y: Tensor, **_: Any) -> Tensor:
        """Aᵀ y."""
        window = self.problem.operator.window(0, 0, *y.shape[-2:])
        return self.problem.with_operator(window).A_adjoint(y)

    def noise(self, x: Tensor, **settings: Any) -> Tensor:
        """Noise only where something is measured."""
        here = self._here(self.A_adjoint(x))
        return x + here.noise(self.noise_model(torch.zeros_like(x), **settings))

    def _here(self, x: Tensor) -> Problem:
        size = self.problem.operator.measured_size(*x.shape[-2:])
        return self.problem.with_operator(self.problem.operator.window(0, 0, *size))


# --- losses ---------------------------------------------------------------------------------------


class _Measuring(Physics):
    """What a loss needs of a physics, as it is in this very call (it may change from one on)."""

    def __init__(self, physics: Any, image: Tensor) -> None:
        self.physics = physics  # and none of what training asks of an instrument that stays
        with torch.no_grad():
            random = torch.randn(image.shape, generator=torch.Generator().manual_seed(1))
            self._reached = (physics.A(random.to(image)) != 0).to(image.dtype)


class _OurLoss(deepinv.loss.Loss):  # type: ignore[misc]
    """y and the physics → per-image losses (B,); what they share.

    ``sigma`` is the noise level, that of the physics unless told. With ``weighted`` the loss is
    divided by the squared level it is taken at. ``rng`` draws everything random.
    """

    def __init__(
        self,
        sigma: float | Tensor | None = None,
        weighted: bool = True,
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.sigma, self.weighted, self.rng = sigma, weighted, rng

    def forward(
        self,
        y: Tensor,
        physics: Any,
        model: nn.Module,
        x_net: Tensor | None = None,
        x: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """The loss of each image, (B,). The truth ``x`` is not looked at."""
        told = noise_level(physics, len(y)) if self.sigma is None else sigma_of(self.sigma, len(y))
        if told is None:
            raise NediffError(
                f"{type(self).__name__} needs the noise level: give sigma=..., or the physics a "
                "noise model with one (GaussianNoise)."
            )
        sigma = told.to(y)
        image = physics.A_adjoint(y) if x_net is None else x_net
        problem = Problem(float(sigma.max()), image.shape[1], _Measuring(physics, image.detach()))
        value, level = self.at(through(model, physics), y, sigma, problem)
        return value / level.square() if self.weighted else value

    def at(
        self, denoiser: Map, y: Tensor, sigma: Tensor, problem: Problem
    ) -> tuple[Tensor, Tensor]:
        """(loss, the noise level it is taken at), both (B,)."""
        raise NotImplementedError

    def _uniform(self, low: float, high: float, like: Tensor) -> Tensor:
        drawn = torch.rand(len(like), generator=self.rng, device=self._device(like)).to(like)
        return low + (high - low) * drawn

    def _normal(self, like: Tensor) -> Tensor:
        drawn = torch.randn(like.shape, generator=self.rng, device=self._device(like))
        return drawn.to(like)

    def _device(self, like: Tensor) -> torch.device:
        return like.device if self.rng is None else self.rng.device


class SureLoss(_OurLoss):
    """Stein's unbiased estimate of ‖A D(y, σ) − A x‖²/m, at the noise level of the data."""

    def at(
        self, denoiser: Map, y: Tensor, sigma: Tensor, problem: Problem
    ) -> tuple[Tensor, Tensor]:
        """See `losses.sure`."""
        probe = self._normal(y)
        return losses.sure(denoiser, y, sigma, probe, problem, in_two_passes), sigma


class NESureLoss(_OurLoss):
    """The paper's loss: SURE at (αy + μA1, ασ) for random contrast α and offset μ.

    It teaches every noise level from ``alpha_min`` σ to σ; α is even there, μ in (0, mu_max).
    """

    def __init__(
        self,
        sigma: float | Tensor | None = None,
        alpha_min: float = 0.01,
        mu_max: float = 1.0,
        weighted: bool = True,
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__(sigma, weighted, rng)
        self.alpha_min, self.mu_max = alpha_min, mu_max

    def at(
        self, denoiser: Map, y: Tensor, sigma: Tensor, problem: Problem
    ) -> tuple[Tensor, Tensor]:
        """See `losses.ne_sure`."""
        alpha, mu = self._uniform(self.alpha_min, 1.0, sigma), self._uniform(0, self.mu_max, sigma)
        probe = self._normal(y)
        value = losses.ne_sure(denoiser, y, sigma, alpha, mu, probe, problem, in_two_passes)
        return value, alpha * sigma


class NER2RLoss(NESureLoss):
    """The same from recorrupted pairs of strength ``tau``: one pass and no divergence.

    Its levels go from ``alpha_min`` σ√(1+τ²) to σ√(1+τ²).
    """

    def __init__(
        self,
        sigma: float | Tensor | None = None,
        tau: float = 0.5,
        alpha_min: float = 0.01,
        mu_max: float = 1.0,
        weighted: bool = True,
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__(sigma, alpha_min, mu_max, weighted, rng)
        self.tau = tau

    def at(
        self, denoiser: Map, y: Tensor, sigma: Tensor, problem: Problem
    ) -> tuple[Tensor, Tensor]:
        """See `losses.ne_r2r`."""
        alpha, mu = self._uniform(self.alpha_min, 1.0, sigma), self._uniform(0, self.mu_max, sigma)
        tau, noise = torch.full_like(alpha, self.tau), self._normal(y)
        value = losses.ne_r2r(denoiser, y, sigma, alpha, mu, tau, noise, problem)
        return value, losses.recorrupted_level(alpha * sigma, tau)


class EquivarianceLoss(_OurLoss):
    """‖T x̂ − D(A T x̂ + σ'η, σ')‖²/n for a ``transform`` T that leaves images plausible.

    T maps (B, C, H, W) to the same, such as one of `deepinv.transform`; the level σ' is even in
    (``alpha_min`` σ, σ). Add it to another loss to learn what the operator does not see.
    """

    def __init__(
        self,
        transform: Callable[[Tensor], Tensor],
        sigma: float | Tensor | None = None,
        alpha_min: float = 0.01,
        weighted: bool = True,
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__(sigma, weighted, rng)
        self.transform, self.alpha_min = transform, alpha_min

    def at(
        self, denoiser: Map, y: Tensor, sigma: Tensor, problem: Problem
    ) -> tuple[Tensor, Tensor]:
        """See `losses.equivariance`."""
        level, noise = self._uniform(self.alpha_min, 1.0, sigma) * sigma, self._normal(y)
        value = losses.equivariance(denoiser, y, sigma, level, noise, self.transform, problem)
        return value, sigma  # the error there is as large as at σ: it is of what was not seen


# --- noise levels of deepinv ----------------------------------------------------------------------


def sigma_of(sigma: float | Tensor, count: int) -> Tensor:
    """A number, or a tensor of one or ``count`` values of any shape → (count,)."""
    values = torch.as_tensor(sigma, dtype=torch.float32).flatten()
    if values.numel() not in (1, count):
        raise NediffError(f"{count} images need one noise level or as many, not {values.numel()}.")
    return values.expand(count)


def noise_level(physics: Any, count: int) -> Tensor | None:
    """σ (count,) of the noise model of a physics; None if it has none."""
    sigma = getattr(getattr(physics, "noise_model", None), "sigma", None)
    return None if sigma is None else sigma_of(sigma, count)


def at_level(physics: Any, sigma: Tensor) -> Any:
    """The same physics, but for its noise level σ (B,); the one given is not changed.

    deepinv's models read the level off the physics; its noise models overwrite their own σ when
    they are called with another, which the next batch would then find.
    """
    seen = copy.copy(physics)
    seen._modules = dict(physics._modules)
    seen.noise_model = deepinv.physics.GaussianNoise(sigma=sigma)
    return seen


def through(model: nn.Module, physics: Any) -> Map:
    """D(y, σ) of a deepinv model."""

    def denoiser(y: Tensor, sigma: Tensor) -> Tensor:
        out: Tensor = model(y, at_level(physics, sigma))
        return out

    return denoiser


def in_two_passes(f: Map, y: Tensor, sigma: Tensor, probe: Tensor) -> tuple[Tensor, Tensor]:
    """`divergence.monte_carlo` without joining batches: a physics may have a mask per image."""
    step = 0.01 * sigma
    value = f(y, sigma)
    moved = f(y + expand(step) * probe, sigma)
    return value, (probe * (moved - value)).flatten(1).sum(1) / step
