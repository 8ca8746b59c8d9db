"""The scale-equivariance theorem on priors whose MMSE denoiser is known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import hyp1f1

from nediff.experiments import theorem
from nediff.experiments.bounds import (
    PRINTED,
    Case,
    closest_exponent,
    fisher,
    fisher_bound,
    holds,
    log_concavity,
    rescaling_error,
    stein_bound,
    stein_constant,
    stein_distance,
    stein_kernel,
)
from nediff.experiments.priors import (
    ACCURACY,
    Grid,
    PowerLaw,
    Prior,
    ScaleMixture,
    TwoModes,
    alignment,
    denoise,
    nodes,
    posterior,
)

LEVELS = (0.01, 0.1, 1.0, 3.0)
SNRS = (0.0, 0.1, 1.0, 5.0, 30.0)
GAUSSIAN = ScaleMixture(1, (1.0,))


@pytest.fixture(scope="module")
def tiny() -> dict[str, Any]:
    return theorem.run("tiny")


# Quadrature


@pytest.mark.parametrize("dimension", [1, 2, 3, 8, 64])
def test_denoiser_of_gaussians_and_mixtures_is_the_closed_form(dimension: int) -> None:
    priors = (
        ScaleMixture(dimension, (1.0,)),
        ScaleMixture(dimension, (1e-4,)),
        ScaleMixture(dimension, (1e-4, 0.01, 1.0), (0.3, 0.4, 0.3)),
    )
    for prior in priors:
        for sigma in LEVELS:
            for t in SNRS:
                y = t * sigma
                error = denoise(prior, y, sigma) - prior.closed_form(y, sigma)
                assert abs(error) < ACCURACY * max(y, sigma)


def test_denoiser_of_two_modes_is_the_closed_form() -> None:
    prior = TwoModes(1, 1.0, 0.01)
    for sigma in LEVELS:
        for t in SNRS:
            y = t * sigma
            error = denoise(prior, y, sigma) - prior.closed_form(y, sigma)
            assert abs(error) < ACCURACY * max(y, sigma)


def on_the_line(prior: PowerLaw, y: float, sigma: float) -> float:
    """∫ x p(x) p(y | x) dx / ∫ p(x) p(y | x) dx over the line, by adaptive quadrature."""

    def integrand(x: float, power: int) -> float:
        law = (prior.core**2 + x * x) ** (-prior.exponent / 2)
        return x**power * law * math.exp(-(((x - y) / sigma) ** 2) / 2)

    ends, breaks = (y - 12 * sigma, y + 12 * sigma), [-prior.core, 0.0, prior.core, y]
    exactly: dict[str, Any] = {"points": breaks, "limit": 500, "epsabs": 0, "epsrel": 1e-11}
    above, below = (quad(integrand, *ends, args=(power,), **exactly)[0] for power in (1, 0))
    return float(above / below)


@pytest.mark.parametrize(("exponent", "core"), [(0.5, 0.01), (1.5, 0.1), (6.0, 0.1)])
def test_denoiser_of_power_laws_is_the_plain_integral(exponent: float, core: float) -> None:
    prior = PowerLaw(1, exponent, core)
    for sigma in (0.05, 0.5):
        for y in (0.3 * sigma, 4 * sigma):
            error = denoise(prior, y, sigma) - on_the_line(prior, y, sigma)
            assert abs(error) < ACCURACY * max(y, sigma)


@pytest.mark.parametrize(("dimension", "beta"), [(1, 0.5), (1, 0.9), (2, -1.0), (3, 2.9), (8, 4.0)])
def test_exact_power_law_is_scale_equivariant(dimension: int, beta: float) -> None:
    """D = y (a/b) 1F1(a+1; b+1; z)/1F1(a; b; z), a = (d−β)/2, b = d/2, z = y²/2σ²: and therefore
    D(αy, ασ) = αD(y, σ), for the quadrature too."""
    prior = PowerLaw(dimension, beta)
    a, b = (dimension - beta) / 2, dimension / 2
    for y in (0.03, 0.3, 2.0):
        z = (y / 0.1) ** 2 / 2
        exact = y * a / b * hyp1f1(a + 1, b + 1, z) / hyp1f1(a, b, z)
        assert denoise(prior, y, 0.1) == pytest.approx(exact, rel=ACCURACY)
        case = Case(prior, y, sigma=0.7, sigma_prime=0.1)
        assert rescaling_error(case) < ACCURACY * y
        assert stein_bound(case, beta) < ACCURACY * y  # the bound knows it
        assert fisher_bound(case, beta=beta) < ACCURACY * y


def test_a_power_law_with_too_strong_a_pole_has_no_posterior() -> None:
    with pytest.raises(ValueError, match="no posterior"):
        denoise(PowerLaw(1, 1.0), 0.1, 0.1)
    assert stein_constant(1, 1.0, 2.0) == math.inf


@pytest.mark.parametrize(
    "prior",
    [
        PowerLaw(3, 5.0, 0.2),
        PowerLaw(3, 1.0, 0.2, 2.0),
        PowerLaw(2, 1.0),
        ScaleMixture(3, (0.01, 1.0), (0.4, 0.6)),
        TwoModes(1, 0.7, 0.02),
    ],
)
def test_scores_are_derivatives_of_log_densities(prior: Prior) -> None:
    r, h = np.linspace(0.05, 2.0, 40), 1e-6
    slope = (prior.log_density(r + h) - prior.log_density(r - h)) / (2 * h)
    np.testing.assert_allclose(prior.score(r), slope, rtol=1e-6, atol=1e-6)


# Fisher divergence, log-concavity and the Stein kernel


def test_fisher_divergence_of_a_gaussian_is_its_second_moment() -> None:
    """κ = E‖x‖²/v² for the constant reference."""
    for d, v, sigma, t in ((1, 1.0, 0.3, 1.0), (8, 0.25, 0.5, 4.0)):
        gain = v / (v + sigma**2)
        second = (gain * t * sigma) ** 2 + d * gain * sigma**2
        kappa = fisher(ScaleMixture(d, (v,)), t, sigma) / sigma**2
        assert kappa == pytest.approx(second / v**2, rel=ACCURACY)


def test_closest_power_law_minimises_the_fisher_divergence() -> None:
    prior, t, sigma = PowerLaw(8, 12.0, 0.1), 4.0, 0.1
    best = closest_exponent(prior, t, sigma)
    at_best = fisher(prior, t, sigma, best)
    assert 0 < best < 12
    assert all(fisher(prior, t, sigma, best + step) > at_best for step in (-0.1, 0.1))
    line = PowerLaw(1, 3.0, 0.1)  # on the line any β ≠ 0 is infinitely far
    assert closest_exponent(line, t, sigma) == 0
    assert fisher(line, t, sigma, 0.01) == math.inf


def test_only_the_constant_reference_is_log_concave() -> None:
    assert log_concavity(0.0, 0.1) == pytest.approx(100.0)
    assert log_concavity(0.5, 0.1) is None
    assert stein_constant(8, 0.0, 3.0) == 1.0
    assert stein_constant(8, 6.0, 3.0) > 1.0


@pytest.mark.parametrize("dimension", [1, 3, 8, 64])
def test_stein_kernel_of_a_gaussian_is_the_alignment(dimension: int) -> None:
    for t in (0.1, 2.0, 20.0):
        grid = Grid.of(ScaleMixture(dimension, (1.0,)), t, 1.0)
        u, _ = nodes(grid)
        inside = u < grid.end - 3
        gap = stein_kernel(dimension, 0.0, t, grid) - alignment(u * t, dimension)
        assert np.abs(gap[inside]).max() < ACCURACY


@pytest.mark.parametrize(
    "prior",
    [GAUSSIAN, TwoModes(1, 1.0, 0.04), PowerLaw(1, 3.0, 0.1), PowerLaw(8, 12.0, 0.1)],
)
def test_stein_identity_is_exact(prior: Prior) -> None:
    """‖D‖ − ‖D̃‖ = E[τΔ], and √E[τ²Δ²] bounds it."""
    d = prior.dimension
    for beta in (-0.5 * d, 0.3 * d, 0.9 * d):
        for t, sigma in ((0.2, 0.5), (2.0, 0.05), (10.0, 0.5)):
            grid = Grid.of(prior, t, sigma, beta)
            delta = sigma * prior.score(sigma * nodes(grid)[0]) + beta / nodes(grid)[0]
            tau = stein_kernel(d, beta, t, grid)
            moved = float((posterior(prior, t, sigma, grid) * tau * delta).sum())
            difference = denoise(prior, t * sigma, sigma) / sigma - denoise(
                PowerLaw(d, beta), t, 1.0
            )
            assert moved == pytest.approx(difference, abs=ACCURACY * max(t, 1))
            assert abs(difference) <= stein_distance(prior, t, sigma, beta) + ACCURACY
            assert tau.min() >= 0


# The theorem


def test_rescaling_error_is_the_one_of_the_paper() -> None:
    prior, y, sigma, low = ScaleMixture(8, (0.01, 1.0), (0.5, 0.5)), 0.9, 0.5, 0.1
    direct = prior.closed_form(y, low) - low / sigma * prior.closed_form(sigma / low * y, sigma)
    assert rescaling_error(Case(prior, y, sigma, low)) == pytest.approx(abs(direct), rel=1e-7)


def test_the_counterexample_of_the_method() -> None:
    case = Case(GAUSSIAN, y=0.1, sigma=0.3, sigma_prime=0.1)
    error, corrected = rescaling_error(case), fisher_bound(case)
    printed = fisher_bound(case, **PRINTED)
    assert error == pytest.approx(0.0073, abs=5e-5)
    assert printed == pytest.approx(0.0027, abs=5e-5)
    assert corrected == pytest.approx(0.01334, abs=5e-5)
    assert not holds(case, error, printed)
    assert holds(case, error, corrected)


def test_the_printed_bound_has_no_unit() -> None:
    """Error and corrected bound scale with the unit of x; the printed bound does not."""
    here = theorem.measure(theorem.COUNTEREXAMPLE)
    there = theorem.measure(theorem.rescaled(theorem.COUNTEREXAMPLE, 100.0))
    for name in ("corrected", "stein"):
        assert there["bounds"][name] == pytest.approx(100 * here["bounds"][name], rel=1e-7)
    assert there["error"] == pytest.approx(100 * here["error"], rel=1e-7)
    assert there["bounds"]["printed"] == pytest.approx(here["bounds"]["printed"], rel=1e-7)


def test_the_corrected_bounds_hold_and_the_printed_one_is_caught(tiny: dict[str, Any]) -> None:
    failing = {name for row in tiny["rows"] for name in row["fails"]}
    assert failing.isdisjoint({"corrected", "closest", "stein"})
    assert failing >= {"printed", "no_root", "no_sum", "no_shift"}  # each correction is needed
    gaussian = [row for row in tiny["rows"] if row["prior"].startswith("Gaussian")]
    assert max(row["error"] / row["bounds"]["corrected"] for row in gaussian) > 0.9  # and is tight


def test_holds_detects_a_small_violation() -> None:
    case = theorem.COUNTEREXAMPLE
    assert holds(case, 0.01, 0.01)
    assert not holds(case, 0.01, 0.01 * (1 - 1e-5))


def test_only_the_stein_bound_follows_a_power_law_to_homogeneity(tiny: dict[str, Any]) -> None:
    rows = [row for row in tiny["core"] if row["dimension"] == 1]
    first, last = rows[0], rows[-1]
    assert last["error"] < first["error"] / 50
    assert last["bounds"]["stein"] < first["bounds"]["stein"] / 3
    assert last["bounds"]["corrected"] > 100 * first["bounds"]["corrected"]


def test_misprints_outside_the_bound(tiny: dict[str, Any]) -> None:
    assert tiny["misprints"]["mmse_factor"] == pytest.approx(0.25, rel=1e-7)
    near, far = tiny["misprints"]["remainder"]
    assert far["kappa"] < 1e-6 * near["kappa"]
    assert far["printed"] > 0.99


def test_result_is_plain_and_its_table_and_figure_are_written(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    again = json.loads(json.dumps(tiny, allow_nan=False))
    text = theorem.table(again)
    assert "corrected fails" in text
    assert "error 0.0073, printed 0.0027, corrected 0.0133" in text
    theorem.figure(again, tmp_path / "theorem.svg")
    theorem.figure(again, tmp_path / "theorem.png")
    assert (tmp_path / "theorem.svg").read_text(encoding="utf-8").count("<svg") == 1


def test_unknown_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="tiny, cpu or paper"):
        theorem.run("huge")
