"""Our losses, networks and instruments inside deepinv's own classes."""

from __future__ import annotations

import copy
import math

import deepinv
import pytest
import torch
from torch import Tensor, nn

from nediff import interop
from nediff.config import NetworkConfig
from nediff.errors import NediffError
from nediff.networks import build_denoiser
from nediff.problem import Problem
from nediff.restorer import Restorer
from nediff.training.fitting import Plan, plan_run
from tests.command import noisy

SIGMA = 0.1


def restorer_of(problem: Problem) -> Restorer:
    """Untrained, but with weights that are not zero where training starts from zero."""
    from nediff.data import open_measurements

    channels = problem.measured_channels(problem.channels)
    images = torch.stack([torch.as_tensor(noisy(k, 32, 32)) for k in range(3)]).float()
    stack = images[:, None].expand(-1, channels, -1, -1).numpy()
    data = open_measurements(stack, axes="NCHW", range=(0, 1))
    config = plan_run(data, problem, Plan(steps=2, size="tiny", crop=24), "test")
    network = build_denoiser(config.network, 3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return Restorer(problem, network, config)


@pytest.fixture(scope="module")
def denoising() -> Restorer:
    return restorer_of(Problem.denoising(SIGMA, 1))


def batch(count: int = 4, channels: int = 1, side: int = 32) -> Tensor:
    images = [torch.as_tensor(noisy(k, side, side)).float() for k in range(count)]
    return torch.stack(images)[:, None].expand(-1, channels, -1, -1).clone()


class Linear(nn.Module):
    """D(y, σ) = y/(1 + σ²/v), whose risk is known in closed form; reads σ off the physics."""

    v = 0.04

    def forward(self, y: Tensor, physics: object, **_: object) -> Tensor:
        sigma = interop.noise_level(physics, len(y))
        assert sigma is not None
        out: Tensor = y / (1 + sigma[:, None, None, None] ** 2 / self.v)
        return out


# --- losses -------------------------------------------------------------------------------------


def risk(sigma: Tensor, x: Tensor) -> Tensor:
    """E‖c(x + ση) − x‖²/n = (1−c)²‖x‖²/n + c²σ² with c = 1/(1 + σ²/v)."""
    c = 1 / (1 + sigma**2 / Linear.v)
    return (1 - c) ** 2 * x.square().flatten(1).mean(1) + c**2 * sigma**2


def test_sure_is_unbiased_through_deepinv_classes() -> None:
    """4,000 images of 64 values: the mean of the loss is the risk, to four standard errors."""
    generator = torch.Generator().manual_seed(0)
    x = 0.2 * torch.randn(1, 1, 8, 8, generator=generator).expand(4000, -1, -1, -1)
    y = x + SIGMA * torch.randn(x.shape, generator=generator)
    physics = deepinv.physics.Denoising(deepinv.physics.GaussianNoise(SIGMA))
    loss = interop.SureLoss(weighted=False, rng=generator)
    values = loss(x_net=y, x=x, y=y, physics=physics, model=Linear())
    expected = float(risk(torch.tensor([SIGMA]), x[:1]))
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - expected) < 4 * error
    # the check notices a model that is told another level than the loss assumes
    wrong = interop.SureLoss(sigma=1.2 * SIGMA, weighted=False, rng=generator)
    off = wrong(x_net=y, x=x, y=y, physics=physics, model=Linear()).mean()
    assert abs(float(off) - expected) > 4 * error


@pytest.mark.parametrize("kind", ["ne_sure", "ne_r2r"])
def test_ne_losses_are_unbiased_at_every_level(kind: str) -> None:
    """Against the risk of D on αx + μ1 with noise of the level the model was told."""
    generator = torch.Generator().manual_seed(1)
    x = 0.2 * torch.randn(1, 1, 8, 8, generator=generator).expand(6000, -1, -1, -1)
    y = x + SIGMA * torch.randn(x.shape, generator=generator)
    physics = deepinv.physics.Denoising(deepinv.physics.GaussianNoise(SIGMA))
    make = interop.NESureLoss if kind == "ne_sure" else interop.NER2RLoss
    drawn: list[Tensor] = []

    class Recording(make):  # type: ignore[misc, valid-type]
        def _uniform(self, low: float, high: float, like: Tensor) -> Tensor:
            drawn.append(super()._uniform(low, high, like))
            return drawn[-1]

    values = Recording(weighted=False, rng=generator, alpha_min=0.2)(
        y=y, physics=physics, model=Linear()
    )
    alpha, mu = drawn
    level = alpha * SIGMA * (math.sqrt(1.25) if kind == "ne_r2r" else 1.0)
    image = alpha[:, None, None, None] * x + mu[:, None, None, None]
    difference = values - risk(level, image)
    assert abs(float(difference.mean())) < 4 * float(difference.std()) / math.sqrt(len(y))


def test_losses_leave_the_physics_as_it_was() -> None:
    y = batch()
    physics = deepinv.physics.Denoising(deepinv.physics.GaussianNoise(SIGMA))
    before = copy.deepcopy(physics.state_dict())
    for loss in (
        interop.SureLoss(),
        interop.NESureLoss(),
        interop.NER2RLoss(),
        interop.EquivarianceLoss(deepinv.transform.Shift()),
    ):
        values = loss(x_net=y, x=y, y=y, physics=physics, model=Linear())
        assert values.shape == (4,)
        assert bool(torch.isfinite(values).all())
    assert {k: v.tolist() for k, v in physics.state_dict().items()} == {
        k: v.tolist() for k, v in before.items()
    }


def test_a_mask_of_its_own_for_each_image() -> None:
    """What is not measured does not count: its value in y changes nothing."""
    generator = torch.Generator().manual_seed(2)
    mask = (torch.rand(4, 1, 32, 32, generator=generator) < 0.6).float()
    physics = deepinv.physics.Inpainting(
        (1, 32, 32), mask=mask, noise_model=deepinv.physics.GaussianNoise(SIGMA)
    )
    y = mask * batch()
    for make in (interop.SureLoss, interop.NESureLoss, interop.NER2RLoss):
        values = make(rng=torch.Generator().manual_seed(3))(y=y, physics=physics, model=Linear())
        assert bool(torch.isfinite(values).all())
    zero = 0 * mask
    physics.update(mask=zero)
    loss = interop.SureLoss(weighted=False)
    assert loss(y=zero, physics=physics, model=Linear()).tolist() == [0.0] * 4


def test_a_loss_without_a_level_says_so() -> None:
    physics = deepinv.physics.Denoising(deepinv.physics.PoissonNoise(0.1))
    with pytest.raises(NediffError, match="needs the noise level"):
        interop.SureLoss()(y=batch(), physics=physics, model=Linear())


def test_deepinv_trainer_trains_with_our_loss(tmp_path: object) -> None:
    """From noisy images alone, the true error of a deepinv model of two numbers goes down."""

    class Shrink(nn.Module):
        """y ↦ m + (y − m) s(σ), s = sigmoid(a + b log σ): what is best is known to be < 1."""

        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.tensor(6.0))
            self.b = nn.Parameter(torch.tensor(0.0))

        def forward(self, y: Tensor, physics: object, **_: object) -> Tensor:
            sigma = interop.noise_level(physics, len(y))
            assert sigma is not None
            share = torch.sigmoid(self.a + self.b * sigma.log())[:, None, None, None]
            mean = y.mean(dim=(2, 3), keepdim=True)
            out: Tensor = mean + (y - mean) * share
            return out

    generator = torch.Generator().manual_seed(5)
    x = 0.5 + 0.05 * torch.randn(64, 1, 16, 16, generator=generator)
    physics = deepinv.physics.Denoising(deepinv.physics.GaussianNoise(SIGMA))
    y = x + SIGMA * torch.randn(x.shape, generator=generator)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
    model = Shrink()
    before = float((model(y, physics) - x).square().mean().detach())
    trainer = deepinv.Trainer(
        model=model,
        physics=physics,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.3),
        train_dataloader=loader,
        losses=[interop.NESureLoss(rng=generator, alpha_min=0.3)],
        epochs=20,
        save_path=None,
        show_progress_bar=False,
        verbose=False,
        online_measurements=False,
        metrics=[],
    )
    trainer.train()
    after = float((model(y, physics) - x).square().mean().detach())
    # of white images of variance v the least risk is vσ²/(v + σ²) = 0.002, from σ² = 0.01
    assert before > 0.009
    assert after < 0.0025


# --- models -------------------------------------------------------------------------------------


def test_denoiser_is_the_restorer(denoising: Restorer) -> None:
    y, denoiser = batch(), denoising.as_denoiser()
    assert isinstance(denoiser, deepinv.models.Denoiser)
    expected = denoising.restore(y)
    for sigma in (None, SIGMA, torch.tensor(SIGMA), torch.full((4,), SIGMA)):
        assert torch.equal(denoiser(y, sigma), expected)
    assert torch.equal(denoiser(y, torch.full((4, 1, 1, 1), SIGMA)), expected)
    mixed = torch.tensor([0.0, 0.05, SIGMA, 0.15])
    out = denoiser(y, mixed)
    assert torch.equal(out[0], y[0])
    for k in (1, 2, 3):
        alone = denoising.restore(y[k : k + 1], float(mixed[k]))
        torch.testing.assert_close(out[k : k + 1], alone, atol=1e-5, rtol=1e-5)
    with pytest.raises(NediffError, match="outside what was learned"):
        denoiser(y, 1.0)
    with pytest.raises(NediffError, match="one noise level or as many"):
        denoiser(y, torch.ones(3))


def test_denoiser_in_plug_and_play(denoising: Restorer) -> None:
    """deepinv's own proximal gradient with our prior: a fixed point x = D(x − γ∇f(x), σ)."""
    y = batch(1)
    mask = (torch.rand(1, 32, 32, generator=torch.Generator().manual_seed(6)) < 0.7).float()
    physics = deepinv.physics.Inpainting((1, 32, 32), mask=mask)
    y = physics.A(y)
    denoiser, fidelity = denoising.as_denoiser(), deepinv.optim.data_fidelity.L2()
    method = deepinv.optim.optim_builder(
        iteration="PGD",
        prior=deepinv.optim.prior.PnP(denoiser=denoiser),
        data_fidelity=fidelity,
        max_iter=3,
        params_algo={"stepsize": 1.0, "g_param": 0.05},
    )
    with torch.no_grad():
        found = method(y, physics)
        x = physics.A_adjoint(y)
        for _ in range(3):
            x = denoiser(x - fidelity.grad(x, y, physics), 0.05)
    torch.testing.assert_close(found, x, atol=1e-5, rtol=1e-4)


def test_denoiser_in_a_sampler_of_deepinv(denoising: Restorer) -> None:
    """Langevin sampling with our score: finite, and about the measurement's own noise away."""
    y = batch(1)
    physics = deepinv.physics.Denoising(deepinv.physics.GaussianNoise(SIGMA))
    prior = deepinv.optim.ScorePrior(denoiser=denoising.as_denoiser())
    sampler = deepinv.sampling.ULA(
        prior=prior,
        data_fidelity=deepinv.optim.data_fidelity.L2(sigma=SIGMA),
        sigma=0.05,
        step_size=0.0005,
        max_iter=60,
        burnin_ratio=0.5,
        thinning=5,
        verbose=False,
    )
    with torch.no_grad():
        mean, variance = sampler(y, physics, seed=1)
    assert mean.shape == y.shape
    assert bool((variance > 0).all())
    assert float((mean - y).square().mean().sqrt()) < 3 * SIGMA


def test_reconstructor_is_the_restorer() -> None:
    mask = (torch.rand(32, 32, generator=torch.Generator().manual_seed(7)) < 0.7).float()
    restorer = restorer_of(Problem.inpainting(mask, SIGMA))
    y = mask * batch()
    model = restorer.as_reconstructor()
    assert isinstance(model, deepinv.models.Reconstructor)
    noise = deepinv.physics.GaussianNoise(SIGMA)
    physics = deepinv.physics.Inpainting((1, 32, 32), mask=mask[None], noise_model=noise)
    assert torch.allclose(model(y, physics), restorer.restore(y), atol=1e-6)
    assert torch.equal(model(y), restorer.restore(y))
    quieter = deepinv.physics.GaussianNoise(torch.tensor([0.03]))
    physics = deepinv.physics.Inpainting((1, 32, 32), mask=mask[None], noise_model=quieter)
    torch.testing.assert_close(model(y, physics), restorer.restore(y, 0.03))
    other = deepinv.physics.Inpainting((1, 32, 32), mask=1 - mask[None], noise_model=noise)
    with pytest.raises(NediffError, match="measures something else"):
        model(y, other)
    with pytest.raises(NediffError, match="no plain denoiser"):
        restorer.as_denoiser()


def test_reconstructor_learns_in_the_trainer(denoising: Restorer) -> None:
    """Gradients reach our network through deepinv's loop."""
    y = batch()
    model = copy.deepcopy(denoising).as_reconstructor()
    physics = deepinv.physics.Denoising(deepinv.physics.GaussianNoise(SIGMA))
    before = [p.clone() for p in model.parameters()]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(y, y), batch_size=4)
    trainer = deepinv.Trainer(
        model=model,
        physics=physics,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        train_dataloader=loader,
        losses=interop.NER2RLoss(),
        epochs=1,
        save_path=None,
        show_progress_bar=False,
        verbose=False,
        online_measurements=False,
        metrics=[],
    )
    trainer.train()
    changed = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert all(changed)


@pytest.mark.parametrize(
    "problem",
    [
        Problem.denoising(SIGMA, 1),
        Problem.inpainting(torch.eye(16) + torch.ones(16, 16).tril(), SIGMA),
        Problem.blur(torch.ones(3, 3), SIGMA),
        Problem.mri(torch.ones(16), SIGMA),
        Problem.super_resolution(2, SIGMA),
    ],
    ids=lambda problem: problem.kind,
)
def test_our_instruments_are_linear_physics(problem: Problem) -> None:
    """⟨Ax, y⟩ = ⟨x, Aᵀy⟩ by deepinv's own test, and there and back is the same operator."""
    physics = interop.ProblemPhysics(problem)
    x = torch.randn(2, problem.channels, 16, 16, generator=torch.Generator().manual_seed(8))
    assert abs(float(physics.adjointness_test(x))) < 1e-3 * x.numel()
    assert torch.equal(physics.A(x), problem.operator.A(x))
    back = Problem.from_physics(physics, SIGMA, (problem.channels, 16, 16))
    assert torch.equal(back.A(x), problem.A(x))
    measured = physics(x)
    assert measured.shape == physics.A(x).shape
    silent = problem.mask_noise(torch.ones_like(measured)) == 0
    assert bool((measured[silent] == 0).all())


def test_a_network_of_ours_from_nothing_is_a_deepinv_model() -> None:
    """The classes need no run: any problem and network will do."""
    network = build_denoiser(NetworkConfig(size="tiny", channels=1, sigma_data=0.2))
    told = lambda count, sigma: (  # noqa: E731
        torch.full((count,), SIGMA if sigma is None else float(sigma[0])),
        torch.ones(count),
    )
    model = interop.RestorerReconstructor(network, told, Problem.denoising(SIGMA, 1))
    assert model(batch(2)).shape == (2, 1, 32, 32)
