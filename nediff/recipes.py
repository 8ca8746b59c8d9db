"""Recipes: which loss, at which noise levels, on which pooled measurements, with which weight.

A recipe turns a batch and its `Draws` into one weighted loss per image. The maths is in
losses.py; here is only what is drawn, and from which law.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nediff import baselines, losses
from nediff.config import RecipeConfig
from nediff.divergence import ESTIMATORS, Map
from nediff.errors import NediffError, did_you_mean
from nediff.groups import GROUPS
from nediff.networks.measured import expected_error
from nediff.operators import Coloured, Doubtful, Identity, LinearOperator, Mask
from nediff.problem import Problem
from nediff.randomness import Draws

Network = Callable[[Tensor, Tensor, LinearOperator], Tensor]
"""D(y, σ; A): the operator says what y measures."""

RECIPES: dict[str, RecipeConfig] = {
    recipe.name: recipe
    for recipe in (
        RecipeConfig(
            name="default",
            loss="ne_r2r",
            matched=True,
            tau=1.0,
            pool=(1, 2, 4),
            pool_weights=(0.45, 0.30, 0.25),
            rehearse=0.5,
        ),
        RecipeConfig(name="paper", loss="ne_sure", weighted=False),
        RecipeConfig(name="supervised", loss="supervised"),
        RecipeConfig(name="sure", loss="sure"),
        RecipeConfig(name="cd", loss="cd"),
    )
}
"""The named recipes. `default` is the best we measured (docs/results); `paper` is the paper's
loss, NE-SURE, unweighted and not pooled; `supervised` (needs clean images), `sure` and `cd`
(Consistent Diffusion, Daras et al.) are its baselines."""

_FOR_OPERATORS: dict[str, RecipeConfig] = {
    "paper": RecipeConfig(name="paper", loss="ne_sure", weighted=False, ei=0.02),
    "ei": RecipeConfig(name="ei", loss="sure", ei=1.0, ei_at_sigma=True),
    "default": RecipeConfig(name="default", loss="ne_r2r", matched=True, tau=1.0, ei=1.0),
    "ambient": RecipeConfig(name="ambient", loss="ambient", hide=0.1),
}
"""With an operator that does not see everything, the paper adds its equivariance term. It compares
with `ei`, SURE + EI at σ_n alone, and `ambient` (Ambient Diffusion, Daras et al.), which is given
measurements WITHOUT noise. The paper prints its term with weight one, but then it wins over
NE-SURE, which shrinks with α², and the images go flat (inpainting: the PSNR that SURE estimates
falls from 27 to 21 dB within 800 steps). With 0.1 it still falls, slowly (28.4 dB after 400 steps,
27.1 after 1800); hence 0.02."""

_ONLY_FOR: dict[str, tuple[str, ...]] = {
    "cd": ("denoising",),
    "ambient": ("inpainting", "demosaicing"),
}
"""Losses that make sense for some operators only."""

STEPS_TO, STEPS_ON = 3, 2
"""Sampler steps of `cd`: from y down to x_t, and from x_t down to each x''."""
NEAREST = 0.99
"""They go down to at most this share of the level they start from."""

_DEFAULTS: dict[str, dict[str, object]] = {
    "inpainting": {
        "pool": (1, 2, 4),
        "pool_weights": (0.3, 0.35, 0.35),
        "pool_until": 0.4,
        "hide": 0.2,
        "rehearse": 0.75,
        "rehearse_from": 0.25,
        "rehearse_rounds": 3,
        "ei": 0.0,
    },
    "mri": {
        "hide": 0.5,
        "rehearse": 0.75,
        "rehearse_from": 0.25,
        "rehearse_rounds": 3,
        "ei": 0.0,
    },
    "blur": {
        "pool": (1, 2, 4),
        "pool_weights": (0.3, 0.35, 0.35),
        "rehearse": 0.5,
        "rehearse_from": 0.25,
        "rehearse_rounds": 3,
        "ei": 0.0,
    },
    "super_resolution": {"pool": (1, 2, 4), "pool_weights": (0.3, 0.5, 0.2), "ei": 0.0},
    "demosaicing": {
        "pool": (1, 2, 4),
        "pool_weights": (0.25, 0.3, 0.45),
        "rehearse": 0.75,
        "rehearse_from": 0.25,
        "rehearse_rounds": 3,
        "ei": 0.0,
    },
}
"""What the default recipe changes for an operator."""


@dataclass(frozen=True)
class Batch:
    """Crops of one size: y (B, C, h, w), the noise level of each (B,), and x where known.

    ``problem`` is the instrument as it measured these crops. ``given`` is what to show the
    network of them, where that is less.
    """

    y: Tensor
    sigma: Tensor
    problem: Problem
    clean: Tensor | None = None
    given: LinearOperator | None = None

    def to(self, device: torch.device | str) -> Batch:
        """The same on another device."""
        return Batch(
            self.y.to(device),
            self.sigma.to(device),
            self.problem.with_operator(self.problem.operator.to(device)),
            None if self.clean is None else self.clean.to(device),
            None if self.given is None else self.given.to(device),
        )


def recipe_named(name: str | RecipeConfig, kind: str = "denoising") -> RecipeConfig:
    """The recipe of that name for an operator, or a sentence that lists them."""
    if isinstance(name, RecipeConfig):
        _refuse_misfit(name, kind)
        return name
    recipes = RECIPES if kind == "denoising" else RECIPES | _FOR_OPERATORS
    recipes = {key: recipe for key, recipe in recipes.items() if _fits(recipe, kind)}
    if name not in recipes:
        raise NediffError(
            f"There is no recipe '{name}' for {kind}; there are: {', '.join(recipes)}."
            + did_you_mean(name, recipes)
        )
    changes = _DEFAULTS.get(kind, {}) if name == "default" else {}
    return RecipeConfig.model_validate(recipes[name].model_dump() | changes)


def _fits(recipe: RecipeConfig, kind: str) -> bool:
    return kind in _ONLY_FOR.get(recipe.loss, (kind,))


def _refuse_misfit(recipe: RecipeConfig, kind: str) -> None:
    if not _fits(recipe, kind):
        fitting = " and ".join(_ONLY_FOR[recipe.loss])
        raise NediffError(f"The loss '{recipe.loss}' is for {fitting} only, not for {kind}.")


def training_loss(
    recipe: RecipeConfig, network: Network, batch: Batch, draws: Draws, fill_error: float = 0.0
) -> Tensor:
    """One number per image, (B,).

    Where weighted, squared errors are divided by those to be expected: the squared noise level
    of what is measured, and ``fill_error``² more for what is not.
    """
    value = _LOSSES[recipe.loss](recipe, network, batch, draws, fill_error)
    if recipe.ei > 0:
        value = value + recipe.ei * _equivariance(recipe, network, batch, draws, fill_error)
    return value


def _through(network: Network, operator: LinearOperator) -> Map:
    return lambda u, sigma: network(u, sigma, operator)


def _weight(
    recipe: RecipeConfig, known: Tensor, level: Tensor, fill_error: float | Tensor
) -> Tensor | None:
    return expected_error(known, level, fill_error) ** -2 if recipe.weighted else None


def _supervised(
    recipe: RecipeConfig, network: Network, batch: Batch, draws: Draws, fill_error: float
) -> Tensor:
    if batch.clean is None:
        raise NediffError(
            "The supervised loss needs clean images, and these are measurements only; "
            "use --simulate with clean images, or another recipe."
        )
    problem = _as_shown(batch).problem
    level = draws.uniform(recipe.alpha_min, 1.0).to(batch.y) * batch.sigma
    noise = draws.normal_like(batch.y)
    weight = _weight(recipe, problem.operator.known(batch.clean), level, fill_error)
    denoiser = _through(network, problem.operator)
    return losses.supervised(denoiser, batch.clean, level, noise, problem, weight)


def _sure(
    recipe: RecipeConfig, network: Network, batch: Batch, draws: Draws, fill_error: float
) -> Tensor:
    batch = _as_shown(batch)
    divergence = ESTIMATORS[recipe.divergence]
    probe = draws.normal_like(batch.y)
    denoiser = _through(network, batch.problem.operator)
    value = losses.sure(denoiser, batch.y, batch.sigma, probe, batch.problem, divergence)
    return value / batch.sigma.square() if recipe.weighted else value


def _ne_sure(
    recipe: RecipeConfig, network: Network, batch: Batch, draws: Draws, fill_error: float
) -> Tensor:
    batch = _as_shown(batch)
    divergence = ESTIMATORS[recipe.divergence]
    alpha = draws.uniform(recipe.alpha_min, 1.0).to(batch.y)
    mu = draws.uniform(0.0, recipe.mu_max).to(batch.y)
    probe = draws.normal_like(batch.y)
    denoiser = _through(network, batch.problem.operator)
    value = losses.ne_sure(
        denoiser, batch.y, batch.sigma, alpha, mu, probe, batch.problem, divergence
    )
    return value / (alpha * batch.sigma).square() if recipe.weighted else value


def _ne_r2r(
    recipe: RecipeConfig, network: Network, batch: Batch, draws: Draws, fill_error: float
) -> Tensor:
    problem = batch.problem
    u = draws.uniform(recipe.alpha_min, 1.0).to(batch.y)
    mu = draws.uniform(0.0, recipe.mu_max).to(batch.y)
    b = draws.normal_like(batch.y)
    if recipe.matched:
        alpha, tau = losses.matched_contrast(u * problem.sigma, batch.sigma, recipe.tau)
    else:
        alpha, tau = u, torch.full_like(u, recipe.tau)
    level = losses.recorrupted_level(alpha * batch.sigma, tau)
    given, known = _shown(recipe, batch, draws)
    weight = _weight(recipe, known, level, alpha * fill_error)  # less contrast, less error
    denoiser = _through(network, given)
    extra = None
    if batch.given is not None and not isinstance(given, Mask):
        extra = given.complement(draws.normal_like(given.A(batch.y)))
    shown = None if given is problem.operator else given
    return losses.ne_r2r(
        denoiser, batch.y, batch.sigma, alpha, mu, tau, b, problem, shown, weight, extra
    )


def _cd(
    recipe: RecipeConfig, network: Network, batch: Batch, draws: Draws, fill_error: float
) -> Tensor:
    """Consistent Diffusion, given what we are given: noisy images and σ_n, nothing else.

    Above σ_n, noisy targets at σ_t ~ U(σ_n, σ_max). The authors generate images from nothing and
    go up to where nothing is left of them; the largest level here is σ_max = ``sigma_max_ratio``
    σ_n: restoring starts the sampler at y and σ_n, so the levels above only have to teach the one
    at σ_n. Below, x_t at σ_t ~ U(0, σ_n) is the network's own sample from y, which has to agree
    with two samples from it at σ'' ~ U(0, σ_t). Each term is divided by its σ_t² if ``weighted``.
    """
    _refuse_misfit(recipe, batch.problem.kind)
    if isinstance(batch.problem.operator, Coloured):
        raise NediffError("The loss 'cd' is for white noise only, and this is correlated.")
    y, sigma = batch.y, batch.sigma
    denoiser = _through(network, batch.problem.operator)
    level = draws.uniform(1.0, recipe.sigma_max_ratio).to(y) * sigma
    value = baselines.ambient_tweedie(denoiser, y, sigma, level, draws.normal_like(y))
    if recipe.weighted:
        value = value / level.square()
    if recipe.consistency > 0:
        value = value + recipe.consistency * _violation(recipe, denoiser, y, sigma, draws)
    return value


def _violation(
    recipe: RecipeConfig, denoiser: Map, y: Tensor, sigma: Tensor, draws: Draws
) -> Tensor:
    """The consistency term of `cd` at random levels below σ_n, without bias for all images, (B,).

    It is computed for some of them, which count as many times more: each step costs as much as
    several of other losses, and in equal time more steps are worth more.
    """
    chosen = (draws.uniform() < recipe.consistency_share).nonzero().flatten().to(y.device)
    level = draws.uniform(recipe.alpha_min, NEAREST).to(y) * sigma
    lower = draws.uniform(recipe.alpha_min, NEAREST).to(y) * level
    way, one, other = (
        [draws.normal_like(y) for _ in range(steps)] for steps in (STEPS_TO, STEPS_ON, STEPS_ON)
    )
    of_all = y.new_zeros(len(y))
    if len(chosen) == 0:
        return of_all
    y, sigma, level, lower = (t[chosen] for t in (y, sigma, level, lower))
    way, one, other = ([noise[chosen] for noise in noises] for noises in (way, one, other))
    with torch.no_grad():
        x_t = baselines.descend(denoiser, y, sigma, level, way)
    value = baselines.consistency(denoiser, x_t, level, lower, one, other)
    value = value / level.square() if recipe.weighted else value
    return of_all.index_add(0, chosen, value / recipe.consistency_share)


def _ambient(
    recipe: RecipeConfig, network: Network, batch: Batch, draws: Draws, fill_error: float
) -> Tensor:
    """Ambient Diffusion, given NOISE-FREE measurements A x, which we are not.

    Each measured pixel is hidden with probability ``hide`` (the authors' δ). They have another
    random mask for each image, and so a guarantee: everything is seen sometimes. With one mask
    there is none: what it never sees is never judged. (Crops and turns show the network other
    parts of the mask, as in all our recipes.)

    To restore: the sampler as ever, σ from U(0, σ_n) being the levels it needs, with the mask A
    itself. The authors, who sample without a measurement, draw one Ã by the law of training and
    keep it; to hide measured pixels again would throw data away. (On a mosaic that costs little:
    the mean of twenty estimates, other pixels hidden in each, is 0.2 dB better. What is poor there
    are the values that the mosaic does not measure, which were never judged: table 2.)
    """
    _refuse_misfit(recipe, batch.problem.kind)
    if batch.clean is None:
        raise NediffError(
            "The ambient loss needs measurements without noise, and these have noise; use "
            "--simulate with clean images, or another recipe."
        )
    level = draws.uniform(recipe.alpha_min, 1.0).to(batch.y) * batch.sigma
    chance = torch.special.ndtr(draws.normal_like(batch.y[:, :1]))
    given = batch.problem.operator.without(chance, torch.full_like(level, recipe.hide))
    assert given is not None  # of a mask, pixels can be left out
    noise = draws.normal_like(batch.y)
    weight = _weight(recipe, given.known(batch.clean), level, fill_error)
    denoiser = _through(network, given)
    return baselines.ambient(denoiser, batch.clean, level, noise, batch.problem, given, weight)


def rehearsal_loss(
    recipe: RecipeConfig, network: Network, batch: Batch, draws: Draws, fill_error: float = 0.0
) -> Tensor:
    """The loss on samples of our own, whose y has no noise; one number per image, (B,)."""
    level = draws.uniform(recipe.alpha_min, 1.0).to(batch.y) * batch.sigma
    given, known = _shown(recipe, batch, draws)
    noise = draws.normal_like(losses.shown_part(batch.y, batch.problem, given))
    weight = _weight(recipe, known, level, fill_error)
    if recipe.doubt and isinstance(given, Coloured):
        given = Doubtful(given, noise, draws)
        weight = _weight(recipe, known, given.strength * level, fill_error)
    denoiser = _through(network, given)
    return losses.rehearsed(denoiser, batch.y, level, noise, batch.problem, given, weight)


def _as_shown(batch: Batch) -> Batch:
    """For losses that cannot use what is hidden: the shown part as all that was measured.

    Hidden values would otherwise be shown to the network, and it would learn nothing but to
    denoise complete measurements.
    """
    if batch.given is None:
        return batch
    problem = batch.problem.with_operator(batch.given)
    return replace(batch, y=batch.given.mask_noise(batch.y), problem=problem, given=None)


def _shown(recipe: RecipeConfig, batch: Batch, draws: Draws) -> tuple[LinearOperator, Tensor]:
    """What the network is shown of y, and which of its values it is shown as they are."""
    given = batch.given or batch.problem.operator
    if recipe.hide > 0:
        given = hide_values(given, batch.y, recipe.hide, draws)
    if isinstance(batch.problem.operator, Identity):  # y is the image itself
        return given, given.known(batch.y)
    return given, given.mask_noise(torch.ones_like(batch.y))


def hide_values(given: LinearOperator, y: Tensor, most: float, draws: Draws) -> LinearOperator:
    """Leave out a share of the measured values, U(0, ``most``) for each image."""
    share = draws.uniform(0.0, most).to(y)
    chance = torch.special.ndtr(draws.normal_like(y[:, :1]))
    less = given.without(chance, share)
    if less is None:
        raise NediffError(f"Measurements of {given.kind} have no values to hide; use hide=0.")
    return less


def _equivariance(
    recipe: RecipeConfig, network: Network, batch: Batch, draws: Draws, fill_error: float
) -> Tensor:
    batch = _as_shown(batch)
    problem, operator = batch.problem, batch.problem.operator
    transform = GROUPS[recipe.group or operator.group]
    level = batch.sigma
    if not recipe.ei_at_sigma:
        level = draws.uniform(recipe.alpha_min, 1.0).to(batch.y) * batch.sigma
    noise = draws.normal_like(batch.y)
    known = operator.known(operator.A_adjoint(batch.y))
    weight = _weight(recipe, known, level, fill_error)
    return losses.equivariance(
        _through(network, operator),
        batch.y,
        batch.sigma,
        level,
        noise,
        lambda x: transform(x, draws),
        problem,
        weight,
    )


_LOSSES = {
    "supervised": _supervised,
    "sure": _sure,
    "ne_sure": _ne_sure,
    "ne_r2r": _ne_r2r,
    "cd": _cd,
    "ambient": _ambient,
}
