"""Denoisers for A ≠ I: D(y, σ) fills in what was never measured (METHOD.md §3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nediff.divergence import expand
from nediff.networks.denoiser import Denoiser, channel_means, pad_to_multiple, reach_of
from nediff.operators import Identity, LinearOperator


def expected_error(known: Tensor, sigma: Tensor, fill_error: float | Tensor) -> Tensor:
    """How far off the linear fill may be, pixel by pixel: σ where measured, more elsewhere.

    √(σ² + (1 − known) fill_error²), of the shape of ``known``; σ (B,), as ``fill_error`` may be.
    """
    missing = fill_error**2 if isinstance(fill_error, float) else expand(fill_error.square())
    return (expand(sigma).square() + (1 - known) * missing).sqrt()


class FilledDenoiser(Denoiser):
    """D = m + c_skip u + c_out F([c_in u, guide], σ), u = fill(y) − m.

    EDM's coefficients suit what is measured with noise σ: pixels of a mask, lines of k-space.
    In the open part (of an image that is blurred, all of it) the answer may be anywhere near the
    fill, so there c_skip = 1 and c_out is of the order of the fill's error. The fill commutes
    with y → αy + μA1.
    """

    def __init__(
        self, network: nn.Module, sigma_data: float, fill_error: float, multiple: int
    ) -> None:
        super().__init__()
        self.network, self.sigma_data, self.fill_error = network, sigma_data, fill_error
        self.multiple = multiple

    @property
    def reach(self) -> int | None:
        """That of the network, on top of the fill's."""
        return reach_of(self.network)

    def forward(
        self,
        y: Tensor,
        sigma: Tensor,
        operator: LinearOperator | None = None,
        mean: Tensor | None = None,
    ) -> Tensor:
        operator = operator or Identity()
        filled = operator.fill(y)
        mean = channel_means(filled) if mean is None else mean[:, :, None, None]
        u = filled - mean
        v = expand(sigma).square() + self.sigma_data**2
        out = apply_network(self.network, v.rsqrt() * u, operator.guide(u), sigma, self.multiple)
        error = self.sigma_data * v.rsqrt() * _expected(out, sigma, self.fill_error, operator)
        shrunk = (1 - self.sigma_data**2 / v) * (u - operator.open_part(u))
        return mean + u - shrunk + error


def _expected(out: Tensor, sigma: Tensor, fill_error: float, operator: LinearOperator) -> Tensor:
    """σ times what ``out`` says of the measured part, `expected_error` times the rest."""
    missing = operator.open_part(out)
    larger = (expand(sigma).square() + fill_error**2).sqrt()
    return expand(sigma) * (out - missing) + larger * missing


def apply_network(
    network: nn.Module, u: Tensor, guide: Tensor | None, sigma: Tensor, multiple: int
) -> Tensor:
    """F([u, guide], σ), padded to a size that the network takes and cropped again."""
    height, width = u.shape[-2:]
    inputs = u if guide is None else torch.cat([u, guide], dim=1)
    out: Tensor = network(pad_to_multiple(inputs, multiple), sigma)
    return out[..., :height, :width]


class UnrolledDenoiser(Denoiser):
    """A few steps of: agree with the measurement, then let a network correct.

    x₀ = fill(y); r = Aᵀ(y − A x); x ← x + t r + c F([x − m, r, guide], σ), with a step t and a
    network for each stage, and c as in `FilledDenoiser`. The residual r tells the network what
    the instrument says against x, which a first guess alone cannot show where A mixes distant
    pixels (blur, MRI).
    """

    def __init__(
        self, networks: list[nn.Module], sigma_data: float, fill_error: float, multiple: int
    ) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.steps = nn.Parameter(torch.ones(len(networks)))
        self.sigma_data, self.fill_error, self.multiple = sigma_data, fill_error, multiple

    @property
    def reach(self) -> int | None:
        """Those of all networks, where A looks at single pixels; on top of the fill's."""
        found = [reach_of(network) for network in self.networks]
        return sum(r for r in found if r is not None) if None not in found else None

    def forward(
        self,
        y: Tensor,
        sigma: Tensor,
        operator: LinearOperator | None = None,
        mean: Tensor | None = None,
    ) -> Tensor:
        operator = operator or Identity()
        x = operator.fill(y)
        mean = channel_means(x) if mean is None else mean[:, :, None, None]
        c_in = (expand(sigma).square() + self.sigma_data**2).rsqrt()
        guide = operator.guide(x)
        for step, network in zip(self.steps, self.networks, strict=True):
            residual = operator.A_adjoint(y - operator.A(x)) * operator.step
            inputs = torch.cat([c_in * (x - mean), residual / self.fill_error], dim=1)
            correction = apply_network(network, inputs, guide, sigma, self.multiple)
            x = x + step * residual + _expected(correction, sigma, self.fill_error, operator)
        return x
