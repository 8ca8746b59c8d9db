"""Training a linear denoiser on Gaussian data finds the Wiener filter of the law it trains on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nediff import losses
from nediff.divergence import exact, expand
from nediff.problem import Problem
from nediff.randomness import Draws

SIDE, SIGMA, N, TAU = 8, 0.1, 24_000, 0.5
PROBLEM = Problem.denoising(SIGMA)


class OneConvolution(nn.Module):
    """D(y) = k ⊛ y, circular, with a kernel as large as the image: any circulant matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(1, 1, SIDE, SIDE, dtype=torch.float64))

    def forward(self, y: Tensor, sigma: Tensor) -> Tensor:
        return F.conv2d(F.pad(y, (0, SIDE - 1, 0, SIDE - 1), mode="circular"), self.kernel)

    def transfer(self) -> Tensor:
        """H(f), real for the symmetric optimum."""
        return torch.fft.fft2(self.kernel.detach()[0, 0]).conj()


def spectrum() -> Tensor:
    """S(f), the power of each frequency of the prior (per pixel, so white noise has σ²)."""
    f = torch.fft.fftfreq(SIDE, dtype=torch.float64)
    return 0.004 / (0.02 + f[:, None] ** 2 + f[None, :] ** 2) / 10


@pytest.fixture(scope="module")
def data() -> Tensor:
    """Stationary Gaussian images with power S, plus noise: what was measured."""
    generator = torch.Generator().manual_seed(0)
    white = torch.randn(N, 1, SIDE, SIDE, generator=generator, dtype=torch.float64)
    x = torch.fft.ifft2(torch.fft.fft2(white) * spectrum().sqrt()).real
    return x + SIGMA * torch.randn(x.shape, generator=generator, dtype=torch.float64)


def wiener(alpha: Tensor, mu: Tensor, noise_gain: float) -> Tensor:
    """H = P/(P + N): P the power of αx + μ1, N that of the noise, both averaged over (α, μ)."""
    power = alpha.square().mean() * spectrum()
    power[0, 0] += mu.square().mean() * SIDE**2  # the constant μ1 is all in frequency 0
    return power / (power + alpha.square().mean() * SIGMA**2 * noise_gain)


def train(loss_of: object) -> OneConvolution:
    """Full-batch minimisation: the loss is quadratic in the kernel."""
    model = OneConvolution()
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=60, line_search_fn="strong_wolfe", tolerance_grad=1e-10
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = loss_of(model).mean()  # type: ignore[operator]
        loss.backward()
        return loss

    optimizer.step(closure)
    return model


@pytest.mark.parametrize("name", ["sure", "ne_sure", "ne_r2r"])
def test_training_finds_the_wiener_filter(name: str, data: Tensor) -> None:
    draws = Draws(0, "test", N)
    one, zero = torch.ones(N).double(), torch.zeros(N).double()
    alpha, mu = (
        (one, zero)
        if name == "sure"
        else (
            draws.uniform(0.01, 1).double(),
            draws.uniform().double(),
        )
    )
    sigma, b = SIGMA * one, draws.normal_like(data)

    def linear_divergence(f, y, s, probe):  # type: ignore[no-untyped-def]
        """The trace of a circulant matrix is its pixel count times k(0): exact and cheap."""
        return f(y, s), (SIDE**2 * models[-1].kernel[0, 0, 0, 0]).expand(len(y))

    models: list[OneConvolution] = []

    def loss_of(model: OneConvolution) -> Tensor:
        models.append(model)
        if name == "ne_r2r":
            return losses.ne_r2r(model, data, sigma, alpha, mu, TAU * one, b, PROBLEM)
        return losses.ne_sure(model, data, sigma, alpha, mu, b, PROBLEM, linear_divergence)

    found = train(loss_of).transfer()
    expected = wiener(alpha, mu, 1 + TAU**2 if name == "ne_r2r" else 1.0)
    # each |Y(f)|² is estimated from N images: relative error √(2/N); recorruption at τ adds
    # target noise of √(1+1/τ²) σ. Five standard errors:
    tolerance = 5 * math.sqrt(2 / N) * (2.5 if name == "ne_r2r" else 1.0)
    assert (found - expected).abs().max() < tolerance
    assert (expected - 1).abs().max() > 4 * tolerance  # doing nothing would fail
    if name == "ne_r2r":  # and so would the filter of the wrong noise level
        wrong = wiener(alpha, mu, 1.0)
        assert (found - wrong).abs().norm() > 2 * (found - expected).abs().norm()


def test_the_shortcut_for_the_trace_is_exact(data: Tensor) -> None:
    model = OneConvolution()
    nn.init.normal_(model.kernel)
    _, trace = exact(model, data[:2], torch.full((2,), SIGMA).double(), torch.ones_like(data[:2]))
    torch.testing.assert_close(trace, (SIDE**2 * model.kernel[0, 0, 0, 0]).expand(2))


def test_rescale_adds_the_measurement_of_ones(data: Tensor) -> None:
    y, alpha, mu = data[:3], torch.tensor([0.1, 0.5, 1.0]).double(), torch.tensor([0, 0.2, 1])
    out = losses.rescale(y, alpha, mu.double(), PROBLEM)
    torch.testing.assert_close(out, expand(alpha) * y + expand(mu.double()))
