"""Laws 2, 3 and 6 of METHOD.md §5: the losses are unbiased, the divergences agree."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from nediff import losses
from nediff.config import NetworkConfig, RecipeConfig
from nediff.divergence import directional, exact, expand, monte_carlo
from nediff.errors import NediffError
from nediff.networks import build_denoiser
from nediff.pooling import pool
from nediff.problem import Problem
from nediff.randomness import Draws
from nediff.recipes import RECIPES, Batch, recipe_named, training_loss
from tests.gaussian import GaussianPrior

SIGMA, N, Z = 0.1, 40_000, 5.0
PROBLEM = Problem.denoising(SIGMA)


@pytest.fixture(scope="module")
def prior() -> GaussianPrior:
    return GaussianPrior.random((1, 2, 3), scale=0.2)


@pytest.fixture(scope="module")
def pairs(prior: GaussianPrior) -> tuple[Tensor, Tensor]:
    x = prior.sample(N, seed=1)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return x, x + SIGMA * noise


def some_linear(y: Tensor, sigma: Tensor) -> Tensor:
    """A denoiser that is not the best one: a fixed full matrix that depends on σ."""
    d = y[0].numel()
    matrix = torch.eye(d, dtype=y.dtype) * 0.7 + 0.05 * torch.arange(d * d).view(d, d).to(y) / d
    return (y.flatten(1) @ matrix.T / expand(1 + sigma)[:, 0, 0]).view_as(y)


def probe_like(y: Tensor, seed: int = 3) -> Tensor:
    return torch.randn(y.shape, generator=torch.Generator().manual_seed(seed), dtype=y.dtype)


def level(y: Tensor, value: float) -> Tensor:
    return torch.full((len(y),), value, dtype=y.dtype)


def assert_unbiased(estimates: Tensor, truths: Tensor) -> None:
    """The mean of the differences is zero within Z of its own standard errors."""
    difference = estimates - truths
    error = difference.std() / math.sqrt(len(difference))
    assert abs(difference.mean()) < Z * error
    assert Z * error < 0.2 * truths.mean()  # and the test would see a bias of a fifth


@pytest.mark.parametrize("divergence", [monte_carlo, directional, exact])
def test_sure_is_unbiased_for_any_denoiser(divergence, pairs) -> None:  # type: ignore[no-untyped-def]
    x, y = pairs
    sigma = level(y, SIGMA)
    estimate = losses.sure(some_linear, y, sigma, probe_like(y), PROBLEM, divergence)
    truth = (some_linear(y, sigma) - x).square().flatten(1).mean(1)
    assert_unbiased(estimate, truth)


def test_sure_with_a_wrong_noise_level_is_not_unbiased(pairs) -> None:  # type: ignore[no-untyped-def]
    x, y = pairs
    wrong = losses.sure(some_linear, y, level(y, 1.3 * SIGMA), probe_like(y), PROBLEM, exact)
    truth = (some_linear(y, level(y, 1.3 * SIGMA)) - x).square().flatten(1).mean(1)
    difference = wrong - truth
    assert abs(difference.mean()) > 10 * difference.std() / math.sqrt(N)


def test_ne_sure_is_unbiased_at_its_level(pairs) -> None:  # type: ignore[no-untyped-def]
    x, y = pairs
    draws = Draws(0, "test", N)
    alpha, mu = draws.uniform(0.01, 1).double(), draws.uniform().double()
    sigma = level(y, SIGMA)
    estimate = losses.ne_sure(some_linear, y, sigma, alpha, mu, probe_like(y), PROBLEM, exact)
    rescaled = expand(alpha) * y + expand(mu)
    truth = some_linear(rescaled, alpha * SIGMA) - (expand(alpha) * x + expand(mu))
    assert_unbiased(estimate, truth.square().flatten(1).mean(1))


@pytest.mark.parametrize("tau", [0.3, 0.5, 2.0])
def test_ne_r2r_is_unbiased_at_the_recorrupted_level(tau: float, pairs) -> None:  # type: ignore[no-untyped-def]
    x, y = pairs
    draws = Draws(0, "test", N)
    alpha, mu = draws.uniform(0.2, 1).double(), draws.uniform().double()
    taus, b = level(y, tau), probe_like(y)
    args = (alpha, mu, taus, b, PROBLEM)
    estimate = losses.ne_r2r(some_linear, y, level(y, SIGMA), *args)
    at = losses.recorrupted_level(alpha * SIGMA, taus)
    torch.testing.assert_close(at, alpha * SIGMA * math.sqrt(1 + tau**2))
    noisier = expand(alpha) * (y + tau * SIGMA * b) + expand(mu)
    truth = some_linear(noisier, at) - (expand(alpha) * x + expand(mu))
    assert_unbiased(estimate, truth.square().flatten(1).mean(1))


def test_law_3_posterior_variance_without_truth(prior: GaussianPrior, pairs) -> None:  # type: ignore[no-untyped-def]
    """E‖x − D‖² = σ² E[div D] for the MMSE denoiser, and not for another one."""
    x, y = pairs
    sigma = level(y, SIGMA)
    value, div = exact(prior.denoise, y, sigma, torch.ones_like(y))
    error = (x - value).square().flatten(1).sum(1)
    assert abs(error.mean() - SIGMA**2 * div.mean()) < Z * error.std() / math.sqrt(N)
    value, div = exact(some_linear, y, sigma, torch.ones_like(y))
    error = (x - value).square().flatten(1).sum(1)
    assert abs(error.mean() - SIGMA**2 * div.mean()) > 10 * error.std() / math.sqrt(N)


def test_matched_contrast_reaches_its_level_with_most_contrast() -> None:
    sigma = torch.tensor([0.1, 0.1, 0.025, 0.025])
    wanted = torch.tensor([0.1, 0.02, 0.1, 0.002])
    alpha, tau = losses.matched_contrast(wanted, sigma, 0.5)
    torch.testing.assert_close(losses.recorrupted_level(alpha * sigma, tau), wanted)
    assert (tau >= 0.5 - 1e-6).all()
    assert (alpha <= 1).all()
    assert alpha[2] == 1.0  # a pooled measurement keeps its full contrast
    assert tau[2] == pytest.approx(math.sqrt(15), rel=1e-5)
    assert alpha[0] == pytest.approx(1 / math.sqrt(1.25), rel=1e-6)


def test_supervised_is_the_error_itself(pairs) -> None:  # type: ignore[no-untyped-def]
    x, _ = pairs
    noise, sigma = probe_like(x), level(x, 0.03)
    value = losses.supervised(some_linear, x, sigma, noise, PROBLEM)
    direct = (some_linear(x + 0.03 * noise, sigma) - x).square().flatten(1).mean(1)
    torch.testing.assert_close(value, direct)


def tiny_network(kind: str = "edm") -> torch.nn.Module:
    config = NetworkConfig.model_validate(
        {"size": "tiny", "kind": kind, "channels": 1, "sigma_data": 0.2}
    )
    network = build_denoiser(config, seed=1).double()
    with torch.no_grad():  # wake the layers that start at zero
        for k, parameter in enumerate(network.parameters()):
            generator = torch.Generator().manual_seed(k)
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).double())
    return network


def test_the_three_divergences_agree() -> None:
    network = tiny_network()
    y = 0.5 + 0.2 * probe_like(torch.zeros(2, 1, 4, 4, dtype=torch.float64), 9)
    sigma = torch.tensor([0.1, 0.03], dtype=torch.float64)
    value, trace = exact(network, y, sigma, torch.ones_like(y))
    estimates = []
    for seed in range(600):
        probe = probe_like(y, seed)
        v1, finite = monte_carlo(network, y, sigma, probe)
        v2, derivative = directional(network, y, sigma, probe)
        torch.testing.assert_close(v1, value)
        torch.testing.assert_close(v2, value)
        torch.testing.assert_close(finite, derivative, rtol=1e-2, atol=1e-2)
        estimates.append(derivative.detach())
    found = torch.stack(estimates)
    error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - trace).abs() < Z * error).all()


def test_exact_trace_of_a_matrix() -> None:
    y = torch.randn(3, 1, 2, 2, dtype=torch.float64)
    matrix = torch.randn(4, 4, dtype=torch.float64)

    def linear(u: Tensor, sigma: Tensor) -> Tensor:
        return (u.flatten(1) @ matrix.T).view_as(u)

    _, trace = exact(linear, y, torch.ones(3).double(), torch.ones_like(y))
    torch.testing.assert_close(trace, matrix.trace().expand(3))


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_gives_one_finite_differentiable_number_per_image(name: str) -> None:
    network = tiny_network().float()
    x = torch.rand(3, 1, 8, 8)
    batch = Batch(x + 0.1 * torch.randn_like(x), torch.tensor([0.1, 0.05, 0.025]), PROBLEM, x)
    value = training_loss(recipe_named(name), network, batch, Draws(0, "l", 3))
    assert value.shape == (3,)
    value.sum().backward()
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    assert gradients
    assert all(torch.isfinite(g).all() for g in gradients)


def test_weighting_divides_by_the_squared_level() -> None:
    network = tiny_network().float()
    x = torch.rand(2, 1, 8, 8)
    batch = Batch(x, torch.tensor([0.1, 0.1]), PROBLEM)
    plain = RecipeConfig(name="a", loss="sure", weighted=False)
    weighted = RecipeConfig(name="b", loss="sure")
    values = [training_loss(r, network, batch, Draws(0, "l", 2)) for r in (plain, weighted)]
    torch.testing.assert_close(values[0] / 0.01, values[1])


def test_supervised_without_clean_images_is_refused() -> None:
    batch = Batch(torch.rand(1, 1, 8, 8), torch.tensor([0.1]), PROBLEM)
    with pytest.raises(NediffError, match="clean"):
        training_loss(recipe_named("supervised"), tiny_network(), batch, Draws(0, "l", 1))
    with pytest.raises(NediffError, match="no recipe 'nope'"):
        recipe_named("nope")


@pytest.mark.parametrize("factor", [2, 4])
def test_pooling_divides_the_noise_and_keeps_it_white(factor: int) -> None:
    noise = np.random.default_rng(0).normal(size=(2, 403, 402)).astype(np.float32)
    pooled = pool(noise, factor).astype(np.float64)
    assert pooled.shape == (2, 403 // factor, 402 // factor)
    n = pooled.size
    assert abs(pooled.std() * factor - 1) < Z / math.sqrt(2 * n)
    for a, b in ((pooled[:, 1:], pooled[:, :-1]), (pooled[..., 1:], pooled[..., :-1])):
        assert abs((a * b).mean()) * factor**2 < Z / math.sqrt(a.size)
    ramp = np.arange(16, dtype=np.float32).reshape(1, 4, 4)
    assert pool(ramp, 2).tolist() == [[[2.5, 4.5], [10.5, 12.5]]]


def test_problem_of_denoising_is_the_identity() -> None:
    x = torch.randn(2, 3, 4, 5)
    problem = Problem.denoising(0.1, 3)
    y = torch.randn_like(x)
    assert torch.equal(problem.A(x), x)
    assert torch.equal(problem.A1(y), torch.ones_like(y))
    assert problem.measured(y).tolist() == [60.0, 60.0]
    left, right = (problem.A(x) * y).sum(), (x * problem.A_adjoint(y)).sum()
    torch.testing.assert_close(left, right)
