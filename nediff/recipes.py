"""Recipes: which loss, at which noise levels, on which pooled measurements, with which weight.

A recipe turns a batch and its `Draws` into one weighted loss per image. The maths is in
losses.py; here is only what is drawn, and from which law.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nediff import losses
from nediff.config import RecipeConfig
from nediff.divergence import ESTIMATORS, Map
from nediff.errors import NediffError
from nediff.problem import Problem
from nediff.randomness import Draws

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
    )
}
"""The named recipes. `default` is the best we measured (docs/results); `paper` is the paper's
loss, NE-SURE, unweighted and not pooled; `supervised` (needs clean images) and `sure` are its
two baselines."""


@dataclass(frozen=True)
class Batch:
    """Crops of one size: y (B, C, h, w), the noise level of each (B,), and x where known."""

    y: Tensor
    sigma: Tensor
    clean: Tensor | None = None


def recipe_named(name: str | RecipeConfig) -> RecipeConfig:
    """The recipe of that name, or a sentence that lists them; a recipe itself is returned."""
    if isinstance(name, RecipeConfig):
        return name
    if name not in RECIPES:
        raise NediffError(f"There is no recipe '{name}'; there are: {', '.join(RECIPES)}.")
    return RECIPES[name]


def training_loss(
    recipe: RecipeConfig, denoiser: Map, batch: Batch, problem: Problem, draws: Draws
) -> Tensor:
    """One number per image, (B,), divided by the squared noise level where weighted."""
    values, level = _LOSSES[recipe.loss](recipe, denoiser, batch, problem, draws)
    return values / level.square() if recipe.weighted else values


def _supervised(
    recipe: RecipeConfig, denoiser: Map, batch: Batch, problem: Problem, draws: Draws
) -> tuple[Tensor, Tensor]:
    if batch.clean is None:
        raise NediffError(
            "The supervised loss needs clean images, and these are measurements only; "
            "use --simulate with clean images, or another recipe."
        )
    level = draws.uniform(recipe.alpha_min, 1.0).to(batch.y) * batch.sigma
    noise = draws.normal_like(batch.y)
    return losses.supervised(denoiser, batch.clean, level, noise, problem), level


def _sure(
    recipe: RecipeConfig, denoiser: Map, batch: Batch, problem: Problem, draws: Draws
) -> tuple[Tensor, Tensor]:
    divergence = ESTIMATORS[recipe.divergence]
    probe = draws.normal_like(batch.y)
    return losses.sure(denoiser, batch.y, batch.sigma, probe, problem, divergence), batch.sigma


def _ne_sure(
    recipe: RecipeConfig, denoiser: Map, batch: Batch, problem: Problem, draws: Draws
) -> tuple[Tensor, Tensor]:
    divergence = ESTIMATORS[recipe.divergence]
    alpha = draws.uniform(recipe.alpha_min, 1.0).to(batch.y)
    mu = draws.uniform().to(batch.y)
    probe = draws.normal_like(batch.y)
    value = losses.ne_sure(denoiser, batch.y, batch.sigma, alpha, mu, probe, problem, divergence)
    return value, alpha * batch.sigma


def _ne_r2r(
    recipe: RecipeConfig, denoiser: Map, batch: Batch, problem: Problem, draws: Draws
) -> tuple[Tensor, Tensor]:
    u = draws.uniform(recipe.alpha_min, 1.0).to(batch.y)
    mu = draws.uniform().to(batch.y)
    b = draws.normal_like(batch.y)
    if recipe.matched:
        alpha, tau = losses.matched_contrast(u * problem.sigma, batch.sigma, recipe.tau)
    else:
        alpha, tau = u, torch.full_like(u, recipe.tau)
    value = losses.ne_r2r(denoiser, batch.y, batch.sigma, alpha, mu, tau, b, problem)
    return value, losses.recorrupted_level(alpha * batch.sigma, tau)


_LOSSES = {"supervised": _supervised, "sure": _sure, "ne_sure": _ne_sure, "ne_r2r": _ne_r2r}
