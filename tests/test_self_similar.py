"""Blur and super-resolution learn from coarser copies of their own measurements."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from nediff.data import open_measurements
from nediff.errors import NediffError
from nediff.losses import ne_r2r
from nediff.operators import Convolution, Identity, Mask
from nediff.problem import Problem
from nediff.randomness import Draws
from nediff.recipes import RecipeConfig, recipe_named, training_loss
from nediff.training.batches import BatchSource
from nediff.training.fitting import Plan, plan_run

KERNEL = torch.tensor([[0.05, 0.1, 0.05], [0.1, 0.3, 0.15], [0.05, 0.1, 0.1]])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("stride", [1, 2])
def test_the_complement_makes_measured_noise_white(stride: int) -> None:
    operator = Convolution(KERNEL, stride)
    b = normal(400, 1, *operator.image_size(24, 24))
    y = operator.A(b) + operator.complement(normal(400, 1, 24, 24, seed=1))
    alone = operator.A(b)
    # 230 400 values: standard errors 0.3 % of the variance and 0.002 of a correlation
    assert y.var().item() == pytest.approx(1, abs=0.015)
    for shift in ((0, 1), (1, 0), (1, 1), (2, 0)):
        rows, columns = slice(shift[0], None), slice(shift[1], None)
        before = slice(None, 24 - shift[0]), slice(None, 24 - shift[1])
        product = y[..., rows, columns] * y[..., before[0], before[1]]
        assert product.mean().item() == pytest.approx(0, abs=0.011)
    assert alone.var().item() < 0.25  # what it starts from


def test_nothing_needs_to_be_added_to_the_noise_of_a_mask() -> None:
    mask = Mask((normal(1, 1, 8, 8) > 0).float())
    assert mask.complement(normal(2, 1, 8, 8)).abs().max() == 0


def test_the_loss_on_a_complete_image_is_unbiased() -> None:
    """E over the noise of z and b = E‖D(A x' + level η) − x'‖²/n at the recorrupted level."""
    operator, sigma, copies = Convolution(KERNEL), 0.2, 4000
    x = 0.5 + 0.3 * normal(1, 1, 10, 10, seed=3).expand(copies, 1, 10, 10)
    z = x + sigma * normal(copies, 1, 10, 10, seed=4)
    one = torch.ones(copies)
    alpha, mu, tau = 0.7 * one, 0.1 * one, 1.0 * one
    level = 0.7 * sigma * 2**0.5

    def denoiser(u: Tensor, s: Tensor) -> Tensor:
        return 0.6 * operator.fill(u) + 0.15

    extra = operator.complement(normal(copies, 1, 8, 8, seed=6))
    found = ne_r2r(
        denoiser,
        z,
        sigma * one,
        alpha,
        mu,
        tau,
        normal(copies, 1, 10, 10, seed=5),
        Problem(sigma, 1, Identity()),
        operator,
        None,
        extra,
    )
    scene = 0.7 * x + 0.1
    y = operator.A(scene) + level * normal(copies, 1, 8, 8, seed=7)
    error = (denoiser(y, one) - scene).square().flatten(1).mean(1)
    tolerance = 5 * ((found.var() + error.var()) / copies) ** 0.5
    assert abs(found.mean() - error.mean()) < tolerance
    assert tolerance < 0.05 * error.mean()


@pytest.mark.parametrize(("factor", "blocks"), [(2, 1), (4, 2)])
def test_a_coarse_measurement_is_a_coarser_image(factor: int, blocks: int) -> None:
    """Super-resolution by 2: the measurement itself is the image at half size."""
    data = normal(2, 96, 96).numpy()
    problem = Problem.super_resolution(2, 0.1)
    measured = open_measurements(data, axes="NHW", range=(0, 1))
    source = BatchSource(measured, problem, 24, 8, (factor,), (1.0,), seed=0)
    ((_, batch),) = source.groups(0)
    assert isinstance(batch.problem.operator, Identity)
    assert isinstance(batch.given, Convolution)
    assert batch.y.shape == (8, 1, 24, 24)
    assert batch.sigma.tolist() == pytest.approx([0.1 / blocks] * 8)
    if blocks == 1:
        values = {round(float(v), 5) for v in data.ravel()}
        assert all(round(float(v), 5) in values for v in batch.y.ravel())
    assert batch.given.A(batch.y).shape == (8, 1, 12, 12)


def test_measured_and_complete_crops_do_not_share_a_group() -> None:
    problem = Problem.blur(KERNEL, 0.1)
    measured = open_measurements(normal(3, 96, 96).numpy(), axes="NHW", range=(0, 1))
    source = BatchSource(measured, problem, 24, 16, (1, 2), (1.0, 1.0), seed=0)
    groups = source.groups(0)
    assert [batch.given is None for _, batch in groups] == [True, False]
    assert sorted(k for samples, _ in groups for k in samples) == list(range(16))

    def network(y: Tensor, sigma: Tensor, operator: object) -> Tensor:
        return operator.fill(y)  # type: ignore[attr-defined, no-any-return]

    for samples, batch in groups:
        loss = training_loss(
            recipe_named("default", "blur"), network, batch, Draws(0, "l", samples), 0.05
        )
        assert torch.isfinite(loss).all()


def test_factors_that_do_not_fit_the_stride() -> None:
    clean = open_measurements(
        np.clip(normal(4, 96, 96).numpy() * 0.1 + 0.5, 0, 1), axes="NHW", range=(0, 1)
    )
    problem = Problem.super_resolution(3, 0.1)
    noisy = clean.simulate(0.1, 0, problem)
    config = plan_run(noisy, problem, Plan(steps=2, size="tiny", crop=16), "")
    assert config.recipe.pool == (1, 3)
    mine = RecipeConfig(name="mine", loss="ne_r2r", pool=(1, 2), pool_weights=(1.0, 1.0))
    with pytest.raises(NediffError, match="multiples of 3"):
        plan_run(noisy, problem, Plan(steps=2, size="tiny", crop=16, recipe=mine), "")
