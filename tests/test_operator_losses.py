"""Losses, networks, pooled batches through an operator (METHOD.md §2, §3; law 2 of §5)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from nediff import losses
from nediff.config import NetworkConfig, RecipeConfig
from nediff.data import Measurements, open_measurements
from nediff.divergence import exact, expand, monte_carlo
from nediff.groups import shifts
from nediff.networks import Denoiser, build_denoiser
from nediff.operators import Convolution, Fourier, LinearOperator, Mask
from nediff.pooling import gather, gathered_noise, masked_noise, pool, pool_masked
from nediff.problem import PATTERNS, Problem
from nediff.randomness import Draws
from nediff.recipes import Batch, hide_values, recipe_named, training_loss
from nediff.training.batches import BatchSource
from tests.gaussian import GaussianPrior
from tests.instruments import (
    Case,
    centred_mask,
    deepinv_cases,
    normals,
    own_cases,
    some_kernel,
    some_mask,
)
from tests.measured import MeasuredPrior
from tests.test_losses import assert_unbiased

SIGMA, N, Z = 0.1, 40_000, 5.0

INSTRUMENTS: dict[str, tuple[LinearOperator, tuple[int, int, int]]] = {
    "mask": (Mask(some_mask((1, 1, 3, 4))), (1, 3, 4)),
    "fourier": (Fourier(centred_mask(3, 3)), (2, 3, 3)),
    "blur": (Convolution(some_kernel(2, 2)), (1, 3, 4)),
    "stride": (Convolution(some_kernel(2, 2), 2), (1, 4, 4)),
}
each_instrument = pytest.mark.parametrize("name", list(INSTRUMENTS))


def instrument(name: str) -> tuple[Problem, Tensor, Tensor]:
    """An instrument, images x of a prior with full covariance, and their measurements y."""
    operator, shape = INSTRUMENTS[name]
    known = MeasuredPrior(GaussianPrior.random(shape, scale=0.2), operator)
    x = known.prior.sample(N, seed=1)
    return Problem(SIGMA, shape[0], operator), x, known.measure(x, SIGMA, seed=2)


def some_linear(shape: tuple[int, int, int]) -> Callable[[Tensor, Tensor], Tensor]:
    """A D that is not the best one: a full matrix from measurements to images, and σ matters."""

    def denoise(y: Tensor, sigma: Tensor) -> Tensor:
        values, pixels = y[0].numel(), math.prod(shape)
        matrix = 0.4 * normals((pixels, values), 11) / math.sqrt(values)
        matrix[:values, :values] += 0.6 * torch.eye(min(pixels, values)).double()
        return (y.flatten(1) @ matrix.T / (1 + sigma)[:, None]).view(len(y), *shape)

    return denoise


def per_value(problem: Problem, difference: Tensor) -> Tensor:
    """‖A difference‖² / m for each image."""
    through = problem.A(difference)
    return through.square().flatten(1).sum(1) / problem.measured(through)


# --- unbiased through A ---------------------------------------------------------------------------


@pytest.mark.parametrize("divergence", [monte_carlo, exact])
@each_instrument
def test_sure_through_an_operator_is_unbiased(name: str, divergence: losses.Divergence) -> None:
    """E[SURE] = E‖A D(y) − A x‖² / m."""
    problem, x, y = instrument(name)
    denoise, sigma = some_linear((x.shape[1], x.shape[2], x.shape[3])), torch.full((N,), SIGMA)
    estimate = losses.sure(denoise, y, sigma.double(), normals(tuple(y.shape)), problem, divergence)
    assert_unbiased(estimate, per_value(problem, denoise(y, sigma.double()) - x))


@each_instrument
def test_ne_sure_through_an_operator_is_unbiased_at_its_level(name: str) -> None:
    """For αx + μ1, which y' = αy + μA1 measures with noise ασ."""
    problem, x, y = instrument(name)
    denoise = some_linear((x.shape[1], x.shape[2], x.shape[3]))
    draws = Draws(0, "test", N)
    alpha, mu = draws.uniform(0.01, 1).double(), draws.uniform().double()
    sigma = torch.full((N,), SIGMA).double()
    estimate = losses.ne_sure(denoise, y, sigma, alpha, mu, normals(tuple(y.shape)), problem, exact)
    rescaled = expand(alpha) * x + expand(mu)
    measured = problem.A(rescaled) + expand(alpha) * (y - problem.A(x))
    assert_unbiased(estimate, per_value(problem, denoise(measured, alpha * SIGMA) - rescaled))


def test_sure_that_forgets_the_mask_is_biased() -> None:
    """As if every pixel were measured: the missing ones count as zeros without noise."""
    problem, x, y = instrument("mask")
    denoise, sigma = some_linear((1, 3, 4)), torch.full((N,), SIGMA).double()
    wrong = losses.sure(denoise, y, sigma, normals(tuple(y.shape)), Problem.denoising(SIGMA), exact)
    difference = wrong - per_value(problem, denoise(y, sigma) - x)
    assert abs(difference.mean()) > 10 * difference.std() / math.sqrt(N)


@pytest.mark.parametrize("tau", [0.5, 1.5])
@each_instrument
def test_r2r_through_an_operator_is_unbiased_at_its_level(name: str, tau: float) -> None:
    problem, x, y = instrument(name)
    denoise = some_linear((x.shape[1], x.shape[2], x.shape[3]))
    draws = Draws(0, "test", N)
    alpha, mu = draws.uniform(0.2, 1).double(), draws.uniform().double()
    sigma, taus = torch.full((N,), SIGMA).double(), torch.full((N,), tau).double()
    b = normals(tuple(y.shape))
    estimate = losses.ne_r2r(denoise, y, sigma, alpha, mu, taus, b, problem)
    noisier = losses.rescale(y + tau * SIGMA * problem.mask_noise(b), alpha, mu, problem)
    level = alpha * SIGMA * math.sqrt(1 + tau**2)
    truth = denoise(noisier, level) - (expand(alpha) * x + expand(mu))
    assert_unbiased(estimate, per_value(problem, truth))


def hidden_case() -> tuple[Problem, Tensor, Tensor, Mask, Tensor]:
    """Per image another part of the mask is shown; every pixel has its own weight."""
    problem, x, y = instrument("mask")
    chosen = (normals(tuple(y.shape), 21) > -0.3).double()
    given = Mask(problem.mask_noise(chosen))
    hidden = problem.measured(y) - given.known(y).flatten(1).sum(1)
    assert (hidden > 0).double().mean() > 0.5
    weight = 0.5 + normals((1, 1, 3, 4), 22).abs()
    return problem, x, y, given, weight


def test_r2r_with_hidden_pixels_is_unbiased_on_all_measured_ones() -> None:
    """The input is what is shown; shown and hidden pixels are both predicted without bias."""
    problem, x, y, given, weight = hidden_case()
    denoise, tau = some_linear((1, 3, 4)), 0.7
    draws = Draws(0, "test", N)
    alpha, mu = draws.uniform(0.2, 1).double(), draws.uniform().double()
    sigma, taus = torch.full((N,), SIGMA).double(), torch.full((N,), tau).double()
    b = normals(tuple(y.shape))
    seen: list[Tensor] = []

    def recorded(u: Tensor, s: Tensor) -> Tensor:
        seen.append(u)
        return denoise(u, s)

    estimate = losses.ne_r2r(recorded, y, sigma, alpha, mu, taus, b, problem, given, weight)
    (noisier,) = seen
    shown = given.known(y)
    torch.testing.assert_close(
        noisier, shown * (expand(alpha) * (y + tau * SIGMA * b) + expand(mu))
    )
    error = problem.A(denoise(noisier, alpha * SIGMA * math.sqrt(1 + tau**2))) - problem.A(
        expand(alpha) * x + expand(mu)
    )
    m = problem.measured(y)
    assert_unbiased(estimate, (weight * error.square()).flatten(1).sum(1) / m)
    for part in (shown, problem.mask_noise(1 - shown)):  # each part by itself too
        only = losses.ne_r2r(denoise, y, sigma, alpha, mu, taus, b, problem, given, part)
        assert_unbiased(only, (part * error.square()).flatten(1).sum(1) / m)


def test_r2r_that_shows_what_it_should_hide_is_biased() -> None:
    """A denoiser that peeks at hidden pixels copies their noise; the loss then says too little."""
    problem, x, y, given, _ = hidden_case()
    one, zero = torch.ones(N).double(), torch.zeros(N).double()
    b = normals(tuple(y.shape))

    def peeks(u: Tensor, s: Tensor) -> Tensor:
        return y

    estimate = losses.ne_r2r(peeks, y, SIGMA * one, one, zero, one, b, problem, given)
    truth = per_value(problem, y - x)
    difference = estimate - truth
    assert difference.mean() < -10 * difference.std() / math.sqrt(N)


def test_supervised_sees_the_measurement_and_answers_for_the_image() -> None:
    problem, x, _ = instrument("fourier")
    x, denoise, noise = x[:50], some_linear((2, 3, 3)), normals((50, 2, 3, 3), 5)
    sigma = torch.linspace(0.01, 0.1, 50).double()
    found = losses.supervised(denoise, x, sigma, noise, problem)
    y = problem.A(x) + expand(sigma) * problem.mask_noise(noise)
    torch.testing.assert_close(found, (denoise(y, sigma) - x).square().flatten(1).mean(1))


def test_a_crop_without_any_measured_pixel_costs_nothing() -> None:
    """Its loss and gradient are zero, not 0/0, whatever else is in the batch."""
    mask = torch.ones(2, 1, 4, 4)
    mask[1] = 0
    problem = Problem(SIGMA, 1, Mask(mask))
    gain = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    y, one = problem.A(normals((2, 1, 4, 4))), torch.ones(2).double()
    b = normals((2, 1, 4, 4), 1)

    def denoise(u: Tensor, s: Tensor) -> Tensor:
        return gain * u + gain

    for value in (
        losses.sure(denoise, y, SIGMA * one, b, problem),
        losses.ne_sure(denoise, y, SIGMA * one, one, one, b, problem),
        losses.ne_r2r(denoise, y, SIGMA * one, one, one, one, b, problem),
    ):
        assert value[1] == 0
        assert value[0] != 0
        (slope,) = torch.autograd.grad(value[1], gain, retain_graph=True)
        assert slope == 0
        (slope,) = torch.autograd.grad(value.sum(), gain)
        assert torch.isfinite(slope)


# --- the equivariance term ------------------------------------------------------------------------

SIDE = 6
SHIFT_MASK = Mask(some_mask((1, 1, SIDE, SIDE), 0.55))
SHIFT_PROBLEM = Problem(SIGMA, 1, SHIFT_MASK)


def band_limited_pseudo_inverse() -> Tensor:
    """From measurements by the mask to the one band-limited image that agrees: U (M U)⁺."""
    f = torch.fft.fftfreq(SIDE, dtype=torch.float64) * SIDE
    low = ((f.abs() <= 1)[:, None] & (f.abs() <= 1)[None, :]).double()
    basis = torch.eye(SIDE**2, dtype=torch.float64).view(-1, SIDE, SIDE)
    projector = torch.fft.ifft2(torch.fft.fft2(basis) * low).real.flatten(1)
    masked = SHIFT_MASK.mask.double().flatten()[:, None] * projector
    return projector @ torch.linalg.pinv(masked, rtol=1e-6)


def by_matrix(matrix: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda y, sigma: (y.flatten(1) @ matrix.T).view_as(y)


def ei_of(denoise: Callable[[Tensor, Tensor], Tensor], noise: Tensor, n: int = 50) -> Tensor:
    y = SHIFT_PROBLEM.A(normals((n, 1, SIDE, SIDE), 3))
    sigma = torch.full((n,), SIGMA).double()
    draws = Draws(0, "shifts", n)
    return losses.equivariance(
        denoise, y, sigma, 0.5 * sigma, noise, lambda x: shifts(x, draws), SHIFT_PROBLEM
    )


def test_equivariance_is_zero_for_a_consistent_denoiser_and_only_for_one() -> None:
    none = torch.zeros(50, 1, SIDE, SIDE).double()
    consistent = by_matrix(band_limited_pseudo_inverse())
    assert ei_of(consistent, none).max() < 1e-20
    for inconsistent in (
        by_matrix(torch.eye(SIDE**2).double()),  # fills in zeros
        by_matrix(0.9 * band_limited_pseudo_inverse()),  # shrinks
        lambda y, sigma: SHIFT_MASK.fill(y),
    ):
        assert ei_of(inconsistent, none).mean() > 1e-3


def test_equivariance_of_a_consistent_denoiser_is_the_noise_it_lets_through() -> None:
    """E = σ'² ‖D M‖²/n for a linear D that is consistent without noise."""
    n = 4000
    matrix = band_limited_pseudo_inverse()
    found = ei_of(by_matrix(matrix), normals((n, 1, SIDE, SIDE), 4), n)
    masked = matrix * SHIFT_MASK.mask.double().flatten()
    expected = (0.5 * SIGMA) ** 2 * masked.square().sum() / SIDE**2
    assert abs(found.mean() - expected) < Z * found.std() / math.sqrt(n)
    assert Z * found.std() / math.sqrt(n) < 0.2 * expected
    # with noise where nothing is measured there would be none of this: D does not look there
    torch.testing.assert_close(masked, matrix)


def test_the_gradient_of_equivariance_flows_through_the_estimate() -> None:
    """It is the derivative of the whole term, not of its second half."""
    noise = normals((50, 1, SIDE, SIDE), 4)
    base = 0.9 * band_limited_pseudo_inverse()
    direction = 0.1 * normals((SIDE**2, SIDE**2), 5)

    def value(t: Tensor) -> Tensor:
        return ei_of(by_matrix(base + t * direction), noise).mean()

    zero = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(value(zero), zero)
    h = torch.tensor(1e-5, dtype=torch.float64)
    torch.testing.assert_close(found, (value(h) - value(-h)) / (2 * h), rtol=1e-5, atol=0)

    def stopped(t: Tensor) -> Tensor:
        """With x̂ held fixed, as if it were data: another number, so the test can tell."""
        calls: list[Tensor] = []

        def denoise(y: Tensor, sigma: Tensor) -> Tensor:
            out = by_matrix(base + t * direction)(y, sigma)
            calls.append(out)
            return out.detach() if len(calls) == 1 else out

        return ei_of(denoise, noise).mean()

    (without,) = torch.autograd.grad(stopped(zero), zero)
    assert abs(without - found) > 0.05 * abs(found)


def test_equivariance_weighs_pixels() -> None:
    noise = torch.zeros(50, 1, SIDE, SIDE).double()
    y = SHIFT_PROBLEM.A(normals((50, 1, SIDE, SIDE), 3))
    sigma, weight = torch.full((50,), SIGMA).double(), 1 + SHIFT_MASK.known(y)

    def zero(u: Tensor, s: Tensor) -> Tensor:
        return torch.ones_like(u) if u is y else torch.zeros_like(u)

    found = losses.equivariance(zero, y, sigma, sigma, noise, lambda x: x, SHIFT_PROBLEM, weight)
    torch.testing.assert_close(found, weight.flatten(1).mean(1))


# --- networks for A ≠ I ---------------------------------------------------------------------------

NETWORK_CASES = own_cases() | deepinv_cases()


def network_for(case: Case, kind: str, seed: int = 1) -> Denoiser:
    config = NetworkConfig.model_validate(
        {
            "size": "tiny",
            "kind": kind,
            "channels": case.shape[0],
            "sigma_data": 0.2,
            "guides": case.operator.guides,
            "measured": True,
        }
    )
    network = build_denoiser(config, seed).to(case.dtype)
    with torch.no_grad():  # wake the layers that start at zero
        for k, parameter in enumerate(network.parameters()):
            noise = normals(tuple(parameter.shape), 100 + k, case.dtype)
            parameter.add_(0.1 * noise)
    return network


@pytest.mark.parametrize("kind", ["edm", "unrolled"])
@pytest.mark.parametrize("case", NETWORK_CASES.values(), ids=list(NETWORK_CASES))
def test_networks_are_exactly_equivariant_to_a_constant(case: Case, kind: str) -> None:
    """D(y + μA1, σ) = D(y, σ) + μ1, μ drawn per image; rounding only."""
    problem, network = Problem(SIGMA, case.shape[0], case.operator), network_for(case, kind)
    y = problem.mask_noise(0.5 + 0.2 * case.measurements(3))
    sigma = torch.tensor([0.1, 0.03, 0.01], dtype=case.dtype)
    mu = expand(torch.tensor([0.8, -0.5, 0.1], dtype=case.dtype))
    with torch.no_grad():
        before = network(y, sigma, case.operator)
        after = network(y + mu * problem.A1(y), sigma, case.operator)
    assert before.shape == (3, *case.shape)
    tolerance = 1e-9 if case.dtype == torch.float64 else 2e-4
    assert (after - before - mu).abs().max() < tolerance
    assert (before - case.operator.fill(y)).abs().max() > 10 * tolerance  # and it does something
    assert (network(y, 2 * sigma, case.operator) - before).abs().max() > 10 * tolerance


@pytest.mark.parametrize("kind", ["edm", "unrolled"])
@pytest.mark.parametrize("name", ["masks of each image", "kernels of each image"])
def test_networks_treat_the_images_of_a_batch_by_their_own_operators(name: str, kind: str) -> None:
    """Also twice over, as the Monte Carlo divergence asks."""
    case = NETWORK_CASES[name]
    network, y = network_for(case, kind), 0.2 * case.measurements(3)
    y = case.operator.mask_noise(y)
    sigma = torch.tensor([0.1, 0.03, 0.01], dtype=case.dtype)
    with torch.no_grad():
        once = network(y, sigma, case.operator)
        twice = network(torch.cat([y, 2 * y]), torch.cat([sigma, sigma]), case.operator)
        torch.testing.assert_close(twice[:3], once)
        for i in range(3):
            alone: LinearOperator = (
                Mask(case.operator.mask[i : i + 1])
                if isinstance(case.operator, Mask)
                else Convolution(case.operator.arrays()["kernel"][i])
            )
            found = network(y[i : i + 1], sigma[i : i + 1], alone)[0]
            torch.testing.assert_close(found, once[i], rtol=1e-5, atol=1e-6)


def test_what_was_not_measured_can_be_filled_in_at_any_noise_level() -> None:
    """EDM's c_out ≈ σ would forbid it: at σ → 0 the answer would be the fill."""
    case = NETWORK_CASES["mask per channel"]
    network = network_for(case, "edm")
    y = case.operator.mask_noise(0.2 * case.measurements(3))
    sigma = torch.full((3,), 1e-4, dtype=case.dtype)
    with torch.no_grad():
        change = (network(y, sigma, case.operator) - case.operator.fill(y)).abs()
    known = case.operator.known(y) > 0
    assert change[known].max() < 100 * 1e-4
    assert change[~known].mean() > 0.01


# --- pooled and gathered measurements -------------------------------------------------------------


def assert_white(values: np.ndarray, sd: float) -> None:
    """Standard deviation ``sd`` and no correlation of neighbours; (C, H, W), five errors each."""
    values = values.astype(np.float64)
    assert abs(values.std() / sd - 1) < Z / math.sqrt(2 * values.size)
    pairs = [(values[:, 1:], values[:, :-1]), (values[..., 1:], values[..., :-1])]
    if len(values) > 1:
        pairs.append((values[1:], values[:-1]))
    for a, b in pairs:
        assert abs((a * b).mean()) / sd**2 < Z / math.sqrt(a.size)


def noise_image(channels: int, side: int = 400, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(channels, side, side)).astype(np.float32)


@pytest.mark.parametrize("factor", [2, 3])
def test_blocks_that_are_measured_for_the_most_part_are_pooled(factor: int) -> None:
    """The mean of what is measured in them, and noise up to one level; the others are missing."""
    mask = some_mask((2, 40, 41), 0.6).numpy()
    y = noise_image(2, 41)[:, :40]
    rows, columns = 40 // factor, 41 // factor
    extra = noise_image(2, 20, 5)[:, :rows, :columns]
    pooled, measured = pool_masked(y, mask, factor, extra)
    assert pooled.shape == measured.shape == (2, rows, columns)
    level = masked_noise(factor) ** 2
    for c in range(2):
        for i in range(rows):
            for j in range(columns):
                block = np.s_[c, i * factor : (i + 1) * factor, j * factor : (j + 1) * factor]
                known = y[block][mask[block] > 0]
                enough = len(known) > factor**2 / 2
                assert measured[c, i, j] == enough
                if not enough:
                    assert pooled[c, i, j] == 0
                    continue
                lacking = max(level - 1 / len(known), 0.0)
                expected = known.mean() + math.sqrt(lacking) * extra[c, i, j]
                assert pooled[c, i, j] == pytest.approx(expected, abs=1e-5)
    assert 0.2 < float(measured.mean()) < 0.8  # both kinds occur


@pytest.mark.parametrize("factor", [2, 4])
def test_pooled_noise_is_white_and_of_the_level_it_says(factor: int) -> None:
    """Whatever the number of measured pixels in a block."""
    mask = np.ones((3, 400, 400), dtype=np.float32)
    mask[:, :, 200:] = some_mask((3, 400, 200), 0.75).numpy()
    half = 200 // factor
    extra = noise_image(3, 400 // factor, 1)
    pooled, measured = pool_masked(noise_image(3) * mask, mask, factor, extra)
    level = masked_noise(factor)
    assert_white(pooled[..., :half], level)  # complete blocks
    here = measured[..., half:] > 0
    assert not here.all()
    values = pooled[..., half:][here].astype(np.float64)
    assert abs(values.std() / level - 1) < Z / math.sqrt(2 * values.size)
    for axis in (1, 2):
        near = np.roll(pooled[..., half:], 1, axis)[here].astype(np.float64)
        assert abs((values * near).mean()) / level**2 < Z / math.sqrt(values.size)


@pytest.mark.parametrize("factor", [2, 4])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_gathered_mosaic_has_white_noise_of_the_level_it_says(pattern: str, factor: int) -> None:
    """In every colour alike; and the noise of the result is that of its own block alone."""
    operator = Problem.demosaicing(0.1, pattern).operator
    assert isinstance(operator, Mask)
    mask = operator.window(0, 0, 400, 400).mask[0].numpy()  # type: ignore[attr-defined]
    side = 400 // factor
    complete = gather(SIGMA * noise_image(3) * mask, mask, factor, SIGMA * noise_image(3, side, 1))
    assert complete.shape == (3, side, side)
    level = SIGMA * gathered_noise(mask, factor)
    for channel in complete:
        assert_white(channel[None], level)
    assert_white(complete, level)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_gathered_mosaic_is_a_picture_of_the_scene(pattern: str) -> None:
    """Each colour by itself: constants stay."""
    operator = Problem.demosaicing(0.1, pattern).operator
    mask = operator.window(0, 0, 16, 16).mask[0].numpy()  # type: ignore[attr-defined]
    scene = np.stack([np.full((16, 16), level) for level in (0.3, 0.5, 0.9)])
    none = np.zeros((3, 8, 8), dtype=np.float32)
    found = gather((scene * mask).astype(np.float32), mask, 2, none)
    np.testing.assert_allclose(found, scene[:, :8, :8], atol=1e-6)


@pytest.mark.parametrize("factor", [2, 4])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_gathered_mosaic_has_its_colours_in_place(pattern: str, factor: int) -> None:
    """A slow wave comes out where block means of the complete scene have it, in every colour.

    Means of a few values of a block instead of all weaken such a wave by under 1 %;
    without the shift it would be half a pixel off, by 3 % to 7 % of its height.
    """
    operator = Problem.demosaicing(0.1, pattern).operator
    mask = operator.window(0, 0, 128, 128).mask[0].numpy()  # type: ignore[attr-defined]
    row, column = np.meshgrid(np.arange(128.0), np.arange(128.0), indexing="ij")
    wave = np.sin(2 * np.pi * (row + 0.4 * column) / 64).astype(np.float32)
    scene = np.stack([wave] * 3)
    none = np.zeros((3, 128 // factor, 128 // factor), dtype=np.float32)
    found, wanted = gather(scene * mask, mask, factor, none), pool(scene, factor)
    edge = 24 // factor  # at the edges the mirrored wave has a kink
    inner = np.s_[:, edge:-edge, edge:-edge]
    assert np.abs(found - wanted)[inner].max() < 0.02
    plain = (
        pool(scene * mask, factor)
        * factor**2
        / mask[:, :factor, :factor].sum(axis=(1, 2), keepdims=True)
    )
    assert np.abs(plain - wanted)[inner].max() > 0.025


# --- batches of a training run --------------------------------------------------------------------

FLAT = 0.6


def training_problems() -> dict[str, tuple[Problem, tuple[int, ...]]]:
    """(instrument, pool factors); the masks are as large as the images below."""
    return {
        "inpainting": (Problem.inpainting(some_mask((72, 64), 0.9), SIGMA, 3), (1, 2)),
        "inpainting, sparse": (Problem.inpainting(some_mask((72, 64), 0.2), SIGMA, 3), (1, 2)),
        "demosaicing": (Problem.demosaicing(SIGMA, "GRBG"), (1, 2, 4)),
        "raw": (Problem.demosaicing(SIGMA, "BGGR", raw=True), (1, 2, 4)),
        "blur": (Problem.blur(some_kernel(3, 3), SIGMA, 3), (1,)),
        "oblong blur": (Problem.blur(some_kernel(2, 4), SIGMA, 3), (1,)),
        "super_resolution": (Problem.super_resolution(2, SIGMA, 3), (1,)),
        "mri": (Problem.mri(centred_mask(72, 64), SIGMA), (1,)),
    }


def flat_measurements(problem: Problem) -> Measurements:
    """Images of (almost) one value everywhere, measured with noise: what is left is the noise."""
    channels = 1 if problem.kind == "mri" else 3
    pictures = np.full((4, channels, 72, 64), FLAT, dtype=np.float32)
    pictures[0] += 1e-5  # data of only one value would be refused
    return open_measurements(pictures, axes="NCHW", range=(0, 1)).simulate(SIGMA, 0, problem)


def source_of(name: str, batch: int = 24, seed: int = 3) -> BatchSource:
    problem, factors = training_problems()[name]
    weights = (1.0,) * len(factors)
    return BatchSource(flat_measurements(problem), problem, 16, batch, factors, weights, seed)


def noise_levels_of(name: str) -> set[float]:
    """Those that the crops should have, in units of σ_n."""
    if name == "inpainting":
        return {1.0, round(masked_noise(2), 6)}
    if name in ("demosaicing", "raw"):
        mosaic = training_problems()[name][0].operator.window(0, 0, 4, 4)
        mask = mosaic.arrays()["mask"][0].numpy()
        return {1.0, round(gathered_noise(mask, 4), 6)}
    return {1.0}  # a sparse mask has 3 % of blocks with enough pixels: too few to pool


@pytest.mark.parametrize("name", list(training_problems()))
def test_batches_say_what_their_crops_measure_and_with_which_noise(name: str) -> None:
    """y − A x is noise of the level each crop says, where its operator says, zero elsewhere.

    A crop, operator or level that does not belong to the other two would show.
    """
    levels = set()
    for step in range(4):
        for _, batch in source_of(name).groups(step):
            here = batch.problem
            x = torch.full_like(here.A_adjoint(batch.y), FLAT)
            if here.kind == "mri":
                x[:, 1] = 0
            noise = batch.y - here.A(x)
            measured = here.mask_noise(torch.ones_like(batch.y)) > 0
            assert (batch.y[~measured] == 0).all()
            if batch.given is not None:  # only part of what is measured
                shown = batch.given.mask_noise(torch.ones_like(batch.y)) > 0
                assert (measured | ~shown).all()
                assert (measured & ~shown).any()
            for row, where, sigma in zip(noise, measured, batch.sigma.tolist(), strict=True):
                values = row[where].double() / sigma
                k = len(values)  # all independent: √(2/k) is the error of their mean square
                assert abs(values.square().mean() - 1) < 6 * math.sqrt(2 / k)
                assert abs(values.mean()) < 6 / math.sqrt(k)
                levels.add(round(sigma / SIGMA, 6))
    assert levels == noise_levels_of(name)


@pytest.mark.parametrize("name", list(training_problems()))
def test_batches_do_not_depend_on_the_order_they_are_asked_in(name: str) -> None:
    one, other = source_of(name), source_of(name)
    later = {step: one.groups(step) for step in (2, 0, 1)}
    for step in (0, 1, 2):
        pairs = list(zip(other.groups(step), later[step], strict=True))
        for (samples, batch), (same_samples, same) in pairs:
            assert samples == same_samples
            assert torch.equal(batch.y, same.y)
            assert torch.equal(batch.sigma, same.sigma)
            assert batch.problem == same.problem
            assert batch.given == same.given
    different = source_of(name, seed=4).groups(0)[0][1]
    assert not torch.equal(different.y[:1], later[0][0][1].y[:1])


def test_what_is_gathered_is_shown_as_a_mosaic() -> None:
    """A complete coarse image, of which the network sees one colour per pixel."""
    seen = 0
    for _, batch in source_of("demosaicing").groups(0):
        if batch.given is None:
            continue
        complete = batch.problem.measured(batch.y) == batch.y[0].numel()
        shown = batch.given.known(batch.y)
        assert (shown.sum(1) == 1).all()
        seen += int(complete.sum())
        # crops of the mosaic itself are shown as they are
        alone = batch.problem.operator.known(batch.y)
        assert torch.equal(shown[~complete], alone[~complete])
    assert seen > 0


def test_pooled_crops_are_shown_through_the_part_of_the_mask_they_come_from() -> None:
    """Not always its first corner, which here has no holes."""
    mask = some_mask((72, 64), 0.9)
    mask[:16, :16] = 1
    problem = Problem.inpainting(mask, SIGMA, 3)
    source = BatchSource(flat_measurements(problem), problem, 16, 64, (2,), (1.0,), 3)
    ((_, batch),) = source.groups(0)
    assert batch.given is not None
    known = batch.problem.operator.known(batch.y)
    hidden = (known - batch.given.known(batch.y))[:, 0]
    assert (hidden >= 0).all()
    # a tenth of the pixels, but in the 16 rows and columns that have no holes
    assert ((hidden.flatten(1).mean(1) > 0.05).double().mean()) > 0.8
    different = {tuple(row.flatten().tolist()) for row in hidden}
    assert len(different) > 56  # 64 crops in 41 × 33 places and 8 turns


def gathered_batch() -> Batch:
    """Complete coarse images, to be shown as mosaics."""
    problem = Problem.demosaicing(SIGMA)
    source = BatchSource(flat_measurements(problem), problem, 16, 6, (2,), (1.0,), 3, True)
    ((_, batch),) = source.groups(0)
    assert batch.given is not None
    assert (batch.problem.operator.known(batch.y) == 1).all()
    return batch


@pytest.mark.parametrize("name", ["sure", "paper", "ei", "supervised"])
def test_losses_that_cannot_use_hidden_values_never_see_them(name: str) -> None:
    """The loss is that of the shown part as a measurement, whatever is hidden."""
    recipe = recipe_named(name, "demosaicing")
    batch = gathered_batch()
    given = batch.given
    assert given is not None
    seen: list[LinearOperator] = []

    def network(y: Tensor, sigma: Tensor, operator: LinearOperator) -> Tensor:
        seen.append(operator)
        assert (y[given.known(batch.y).repeat(len(y) // 6, 1, 1, 1) == 0] == 0).all()
        return operator.fill(y) * 0.9

    def loss(b: Batch) -> Tensor:
        return training_loss(recipe, network, b, Draws(0, "loss", 6), 0.05)

    value = loss(batch)
    assert seen
    assert all(operator == given for operator in seen)
    other = batch.y + 7 * (1 - given.known(batch.y))
    assert torch.equal(loss(Batch(other, batch.sigma, batch.problem, batch.clean, given)), value)
    alone = batch.problem.with_operator(given)
    plain = Batch(given.mask_noise(batch.y), batch.sigma, alone, batch.clean)
    assert torch.equal(loss(plain), value)


def recipes_for(kind: str) -> list[RecipeConfig]:
    names = ["default", "paper", "ei", "sure"]
    return [recipe_named(name, kind) for name in names]


@pytest.mark.parametrize("name", list(training_problems()))
def test_every_recipe_gives_finite_losses_and_gradients(name: str) -> None:
    source = source_of(name, batch=6)
    operator = source.problem.operator
    case = Case(operator, (source.problem.channels, 16, 16), torch.float32)
    network = network_for(case, "edm")
    for recipe in recipes_for(operator.kind):
        for samples, batch in source.groups(0):
            value = training_loss(recipe, network, batch, Draws(0, "loss", samples), 0.05)
            assert value.shape == (len(samples),)
            assert torch.isfinite(value).all()
            network.zero_grad()
            value.sum().backward()
            gradients = [p.grad for p in network.parameters() if p.grad is not None]
            assert gradients
            assert all(torch.isfinite(g).all() for g in gradients)
            assert any(g.abs().max() > 0 for g in gradients)


def test_the_loss_of_an_image_does_not_depend_on_its_batch() -> None:
    """Per image, to rounding: with its own operator, hidden pixels, group element and noise."""
    source = source_of("inpainting", batch=8)
    case = Case(source.problem.operator, (3, 16, 16), torch.float32)
    network = network_for(case, "edm")
    recipe = RecipeConfig(name="all", loss="ne_r2r", hide=0.5, ei=1.0)
    for samples, batch in source.groups(0):
        together = training_loss(recipe, network, batch, Draws(0, "loss", samples), 0.05)
        assert batch.given is not None
        masks, given = (o.arrays()["mask"] for o in (batch.problem.operator, batch.given))
        for i, sample in enumerate(samples):
            alone = Batch(
                batch.y[i : i + 1],
                batch.sigma[i : i + 1],
                batch.problem.with_operator(Mask(masks[i : i + 1])),
                None,
                Mask(given[i : i + 1]),
            )
            value = training_loss(recipe, network, alone, Draws(0, "loss", [sample]), 0.05)
            torch.testing.assert_close(value[0], together[i], rtol=1e-3, atol=1e-3)


def test_hidden_pixels_are_a_share_of_the_measured_ones() -> None:
    n = 400
    given = Mask(some_mask((1, 3, 16, 16), 0.7))
    y = torch.zeros(n, 3, 16, 16)
    kept = hide_values(given, y, 0.5, Draws(0, "hide", n)).known(y)
    known = given.known(y)
    assert (kept <= known).all()
    share = 1 - kept.flatten(1).sum(1) / known.flatten(1).sum(1)
    # U(0, 0.5): mean 0.25, sd 0.5/√12, and some binomial spread of 16·16 pixels
    assert abs(share.mean().item() - 0.25) < Z * math.sqrt(0.25 / 12 + 0.25 / 256) / math.sqrt(n)
    assert share.max() < 0.5 + Z * math.sqrt(0.25 / 256) * 1.5
    assert share.std() > 0.1  # a share for each image
    hidden = known - kept
    assert torch.equal(hidden[:, 0] * known[:, 1], hidden[:, 1] * known[:, 0])  # all channels
