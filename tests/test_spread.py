"""Error bars where nothing was measured: learned from hidden pixels, against closed forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import nediff
from nediff.config import RunConfig
from nediff.data import Measurements, open_measurements
from nediff.errors import NediffError
from nediff.evaluation import evaluate_with_truth
from nediff.networks import build_spread
from nediff.networks.denoiser import Denoiser
from nediff.operators import Identity, LinearOperator, Mask, Physics
from nediff.problem import Problem, cartesian_mask, random_mask
from nediff.randomness import Draws
from nediff.recipes import Batch
from nediff.restorer import Restorer
from nediff.training.fitting import Plan, plan_run, run_training, start_folder
from nediff.training.misses import hidden_pixels
from nediff.training.spread import likelihood, with_spread
from nediff.unmeasured import (
    SPREAD_FILE,
    UnmeasuredSpread,
    add_unseen,
    filtered,
    radial_power,
)

SIGMA, PRIOR, SIDE = 0.1, 0.15, 48
"""Clean pixels are independent, N(0.5, PRIOR²): an unmeasured one has exactly that posterior."""


class Exact(Denoiser):
    """E[x | y] of that prior: Wiener where measured, the mean elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))  # so that it has a device

    def forward(
        self,
        y: Tensor,
        sigma: Tensor,
        operator: LinearOperator | None = None,
        mean: Tensor | None = None,
    ) -> Tensor:
        known = (operator or Identity()).known(y)
        gain = PRIOR**2 / (PRIOR**2 + sigma**2)
        return 0.5 + known * gain[:, None, None, None] * (y - 0.5)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem.inpainting(random_mask(0.7, (SIDE, SIDE), 0), SIGMA, 1)


def scenes(count: int, seed: int) -> Measurements:
    rng = np.random.default_rng(seed)
    clean = rng.normal(0.5, PRIOR, size=(count, SIDE, SIDE)).astype(np.float32)
    return open_measurements(clean, axes="NHW", range=(0, 1))


@pytest.fixture(scope="module")
def plain(problem: Problem) -> Restorer:
    noisy = scenes(12, 0).simulate(SIGMA, 0, problem)
    config = plan_run(noisy, problem, Plan(steps=2000, size="tiny", crop=24, batch=8), "")
    return Restorer(problem, Exact(), config)


@pytest.fixture(scope="module")
def honest(plain: Restorer, problem: Problem) -> Restorer:
    noisy = scenes(12, 0).simulate(SIGMA, 0, problem)
    learned = with_spread(plain, noisy, scenes(4, 1).simulate(SIGMA, 1, problem))
    assert learned is not None
    return learned


def test_the_variance_of_hidden_pixels_is_learned_without_truth(
    honest: Restorer, problem: Problem
) -> None:
    assert honest.unmeasured is not None
    y, here = honest.measured(scenes(1, 5).simulate(SIGMA, 5, problem).image(0))
    sigma = torch.tensor([SIGMA])
    variance = honest.unmeasured.network(y, honest.denoiser(y, sigma), sigma, here.operator)
    missing = here.operator.known(y) == 0
    # 200 steps of some 250 hidden pixels: a standard error of 1 %; the rest is what is unlearned
    assert variance[missing].mean().item() == pytest.approx(PRIOR**2, rel=0.12)


def test_samples_are_too_narrow_without_it_and_right_with_it(
    plain: Restorer, honest: Restorer, problem: Problem
) -> None:
    clean = scenes(6, 9)
    noisy = clean.simulate(SIGMA, 9, problem)
    before = evaluate_with_truth(plain, noisy, clean, samples=8)
    after = evaluate_with_truth(honest, noisy, clean, samples=8)
    assert before.spread_unmeasured is not None
    assert after.spread_unmeasured is not None
    assert before.spread_unmeasured.error2_over_variance > 100
    # some 4100 unmeasured pixels: a standard error of 2 %, on top of what was learned
    assert after.spread_unmeasured.error2_over_variance == pytest.approx(1, abs=0.18)
    for promised, found in after.spread_unmeasured.coverage:
        assert found == pytest.approx(promised, abs=0.06)
    assert after.spread == before.spread  # measured pixels are as they were
    assert after.consistency == before.consistency


def test_the_psnr_of_unmeasured_pixels_is_that_of_the_prior(
    plain: Restorer, problem: Problem
) -> None:
    """Where nothing is measured the estimate is the mean, and errs by PRIOR² on average."""
    clean = scenes(6, 9)
    found = evaluate_with_truth(plain, clean.simulate(SIGMA, 9, problem), clean, samples=0)
    # some 4100 pixels: a standard error of 2 %, 0.1 dB
    expected = -10 * np.log10(PRIOR**2)
    assert found.levels[-1].psnr_unmeasured == pytest.approx(expected, abs=0.4)


def test_an_instrument_that_measures_no_pixel_as_such_has_no_such_psnr(plain: Restorer) -> None:
    problem = instruments()["blur"]
    clean = scenes(2, 9)

    class Flat(Exact):
        def forward(self, y: Tensor, sigma: Tensor, *rest: object, **more: object) -> Tensor:
            return 0.5 * torch.ones_like(problem.operator.A_adjoint(y))

    restorer = Restorer(problem, Flat(), plain.config)
    found = evaluate_with_truth(restorer, clean.simulate(SIGMA, 9, problem), clean, samples=0)
    assert found.levels[-1].psnr_unmeasured is None


def test_the_likelihood_is_least_at_the_true_variance(plain: Restorer, problem: Problem) -> None:
    """Two wrong variances cost more than the right one, in both directions."""
    noisy = scenes(4, 3).simulate(SIGMA, 3, problem)
    y = torch.cat([plain.measured(noisy.image(i))[0] for i in range(4)])
    sigma = torch.full((4,), SIGMA)
    hide = torch.rand(y.shape, generator=torch.Generator().manual_seed(0)) > 0.3
    given = Mask(problem.operator.known(y) * hide)
    task = hidden_pixels(Batch(y, sigma, problem, given=given), Draws(0, "task", 4))

    class Constant(torch.nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.value = value

        def forward(self, y: Tensor, *_: object) -> Tensor:
            return torch.full_like(y, self.value)

    costs = [
        likelihood(plain.denoiser, Constant(v * PRIOR**2), task)  # type: ignore[arg-type]
        for v in (0.6, 1.0, 1.6)
    ]
    assert costs[1] < costs[0]
    assert costs[1] < costs[2]


def test_added_noise_depends_on_seed_and_number_alone() -> None:
    samples = torch.zeros(3, 2, 1, 8, 8)
    variance = torch.full((2, 1, 8, 8), 0.04)
    variance[:, :, :4] = 0.0
    noisy = add_unseen(samples, lambda white: variance.sqrt() * white, [5, 6])
    assert noisy[..., :4, :].abs().max() == 0
    assert noisy[..., 4:, :].std().item() == pytest.approx(0.2, rel=0.3)  # 192 values, 6 s.e.
    alone = add_unseen(samples[:2, 1:], lambda white: variance[1:].sqrt() * white, [6])
    torch.testing.assert_close(alone, noisy[:2, 1:])
    assert not torch.equal(noisy[0], noisy[1])


def test_saved_and_loaded_it_samples_the_same(tmp_path: Path, problem: Problem) -> None:
    noisy = scenes(4, 0).simulate(SIGMA, 0, problem)
    run = tmp_path / "run"
    restorer = nediff.fit(noisy, problem, steps=4, size="tiny", crop=24, out=run)
    assert (run / SPREAD_FILE).is_file()
    again = nediff.load(run)
    y = noisy.image(0)
    np.testing.assert_allclose(again.sample(y, 2), restorer.sample(y, 2), atol=1e-6)
    lower = restorer.sample(y, 4, sigma=SIGMA / 2)  # learned at σ_n only: not added elsewhere
    missing = problem.operator.known(torch.zeros(1, 1, SIDE, SIDE))[0].numpy() == 0
    assert lower.std(axis=0)[missing].mean() < restorer.sample(y, 4).std(axis=0)[missing].mean()


def test_a_run_stopped_while_learning_it_goes_on_with_resume(
    tmp_path: Path, problem: Problem
) -> None:
    noisy = scenes(4, 0).simulate(SIGMA, 0, problem)
    config = plan_run(noisy, problem, Plan(steps=2, size="tiny", crop=24, batch=2), "")
    asked = iter(range(100))  # after each step of either part: the fifth is in the second

    def stop() -> bool:
        return next(asked) == 4

    for folder, when in ((tmp_path / "a", stop), (tmp_path / "b", lambda: False)):
        start_folder(folder, config, problem)
        _, finished = run_training(config, noisy, folder, stop=when)
        assert finished == (folder.name == "b")
    assert not (tmp_path / "a" / SPREAD_FILE).exists()
    _, finished = run_training(config, noisy, tmp_path / "a")
    assert finished
    one, other = ((tmp_path / name / SPREAD_FILE).read_bytes() for name in "ab")
    assert one == other


def test_a_spread_of_another_run_is_refused(tmp_path: Path, problem: Problem) -> None:
    noisy = scenes(4, 0).simulate(SIGMA, 0, problem)
    nediff.fit(noisy, problem, steps=2, size="tiny", crop=24, out=tmp_path)
    (tmp_path / SPREAD_FILE).write_bytes(b"nothing")
    with pytest.raises(NediffError, match=r"spread\.safetensors is corrupt"):
        nediff.load(tmp_path)


def test_denoising_has_nothing_unmeasured(tmp_path: Path) -> None:
    nediff.fit(scenes(3, 0), SIGMA, steps=2, size="tiny", crop=24, out=tmp_path)
    assert not (tmp_path / SPREAD_FILE).exists()
    assert nediff.load(tmp_path).unmeasured is None


def test_building_it_is_a_function_of_the_seed(plain: Restorer) -> None:
    config: RunConfig = plain.config
    one, same, other = (build_spread(config.network, seed) for seed in (0, 0, 1))
    first = next(iter(one.parameters()))
    assert torch.equal(first, next(iter(same.parameters())))
    assert not torch.equal(first, next(iter(other.parameters())))
    assert UnmeasuredSpread(one, 0.5).share == 0.5


def instruments() -> dict[str, Problem]:
    import deepinv

    bell = torch.exp(-0.5 * (torch.arange(-2.0, 3.0) / 1.0) ** 2)
    physics = deepinv.physics.Inpainting(
        img_size=(1, SIDE, SIDE), mask=random_mask(0.5, (SIDE, SIDE), 1)[None].float()
    )
    return {
        "blur": Problem.blur(bell[:, None] * bell, SIGMA, 1),
        "super_resolution": Problem.super_resolution(2, SIGMA, 1),
        "mri": Problem.mri(cartesian_mask((SIDE, SIDE), 3, 0), SIGMA),
        "physics": Problem.from_physics(physics, SIGMA, (1, SIDE, SIDE)),
    }


@pytest.mark.parametrize("name", list(instruments()))
def test_every_instrument_spreads_what_it_does_not_see_and_nothing_else(
    name: str, tmp_path: Path
) -> None:
    problem = instruments()[name]
    noisy = scenes(4, 0).simulate(SIGMA, 0, problem)
    honest = nediff.fit(noisy, problem, steps=3, size="tiny", crop=24, out=tmp_path)
    assert honest.unmeasured is not None
    whole = UnmeasuredSpread(honest.unmeasured.network, 1.0)  # whatever 3 steps have taught it
    loud = Restorer(problem, honest.denoiser, honest.config, whole)
    plain = Restorer(problem, honest.denoiser, honest.config)
    y = noisy.image(0)[None]
    difference = torch.from_numpy(loud.sample(y, 4) - plain.sample(y, 4))[:, 0]
    assert difference.std() > 0.01
    assert problem.operator.A(difference).std() < 0.05 * difference.std()
    assert (honest.unmeasured.spectrum is None) == (name != "blur")
    physics = problem.operator.physics if isinstance(problem.operator, Physics) else None
    again = nediff.load(tmp_path, physics=physics)
    np.testing.assert_allclose(again.sample(y, 2), honest.sample(y, 2), atol=1e-5)


def test_filtered_noise_has_its_spectrum() -> None:
    """White noise has 1 in every ring; filtered, what was asked for."""
    rings, asked = 6, torch.tensor([0.6, 0.7, 1.0, 1.3, 1.0, 0.8])
    white = torch.randn(64, 3, 48, 40, generator=torch.Generator().manual_seed(0))
    # the smallest ring has 25 or so frequencies of 192 fields, half of them independent: a
    # standard error of 2 %; lines between the middles of the rings differ a little from steps
    torch.testing.assert_close(
        radial_power(white, rings), torch.ones(rings).double(), rtol=0.08, atol=0
    )
    found = radial_power(filtered(white, asked), rings)
    torch.testing.assert_close(found, asked.double(), rtol=0.12, atol=0)


def test_a_spectrum_is_saved_and_loaded(tmp_path: Path) -> None:
    problem = instruments()["blur"]
    noisy = scenes(4, 0).simulate(SIGMA, 0, problem)
    run = nediff.fit(noisy, problem, steps=3, size="tiny", crop=24, out=tmp_path)
    again = nediff.load(tmp_path)
    assert run.unmeasured is not None
    assert again.unmeasured is not None
    assert run.unmeasured.spectrum is not None
    torch.testing.assert_close(again.unmeasured.spectrum, run.unmeasured.spectrum)
