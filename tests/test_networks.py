"""Networks: any size, local, equivariant where they claim to be, built from seed alone."""

from __future__ import annotations

import pytest
import torch

from nediff.config import NetworkConfig
from nediff.networks import SIZES, build_denoiser, count_parameters
from nediff.networks.denoiser import Denoiser


def denoiser(
    size: str = "tiny", kind: str = "edm", channels: int = 1, wake: bool = True
) -> Denoiser:
    config = NetworkConfig.model_validate(
        {"size": size, "kind": kind, "channels": channels, "sigma_data": 0.2, "resolution": 16}
    )
    network = build_denoiser(config, seed=3)
    if wake:  # layers that start at zero would hide everything
        with torch.no_grad():
            for k, p in enumerate(network.parameters()):
                p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))
    return network.double().eval()


def image(channels: int = 1, height: int = 24, width: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, channels, height, width, generator=generator).double()


SIGMA = torch.tensor([0.1, 0.02]).double()


@pytest.mark.parametrize("kind", ["edm", "standardised", "homogeneous", "uncentred"])
@pytest.mark.parametrize(("height", "width"), [(24, 32), (17, 23), (1, 5), (3, 40)])
def test_any_size_in_same_size_out(kind: str, height: int, width: int) -> None:
    out = denoiser(kind=kind, channels=2)(image(2, height, width), SIGMA)
    assert out.shape == (2, 2, height, width)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("kind", ["edm", "standardised", "homogeneous"])
def test_images_of_a_batch_do_not_see_each_other(kind: str) -> None:
    network, y = denoiser(kind=kind), image()
    alone = torch.cat([network(y[i : i + 1], SIGMA[i : i + 1]) for i in range(2)])
    torch.testing.assert_close(network(y, SIGMA), alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["edm", "standardised", "homogeneous"])
def test_shifting_all_intensities_shifts_the_answer(kind: str) -> None:
    network, y = denoiser(kind=kind), image()
    torch.testing.assert_close(
        network(y + 0.37, SIGMA), network(y, SIGMA) + 0.37, rtol=1e-8, atol=1e-8
    )


def test_only_a_network_that_keeps_the_mean_sees_brightness() -> None:
    """Its weights are those of `edm`, and with images of mean ½ so is its answer."""
    kept, plain, y = denoiser(kind="uncentred"), denoiser(kind="edm"), image()
    kept.load_state_dict(plain.state_dict())
    centred = y - y.mean((2, 3), keepdim=True) + 0.5
    torch.testing.assert_close(kept(centred, SIGMA), plain(centred, SIGMA), rtol=1e-10, atol=1e-10)
    shifted = kept(centred + 0.37, SIGMA) - 0.37
    assert (shifted - kept(centred, SIGMA)).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["standardised", "homogeneous"])
def test_exact_equivariance_of_the_ablations(kind: str) -> None:
    """Law 6: D(αy + μ1, ασ) = αD(y, σ) + μ1."""
    network, y = denoiser(kind=kind), image()
    scaled = network(0.3 * y + 0.5, 0.3 * SIGMA)
    torch.testing.assert_close(scaled, 0.3 * network(y, SIGMA) + 0.5, rtol=1e-6, atol=1e-6)
    plain = denoiser("tiny", "edm")
    assert (plain(0.3 * y, 0.3 * SIGMA) - 0.3 * plain(y, SIGMA)).abs().max() > 1e-3


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_tiles_with_the_mean_of_the_whole_equal_the_whole(size: str) -> None:
    """Locality: a tile with a margin of the receptive field gives the same pixels."""
    network = denoiser(size)
    reach = network.network.reach  # type: ignore[union-attr,operator]
    margin = -(-reach // network.multiple) * network.multiple
    side = 2 * margin + 8 * network.multiple
    y = torch.rand(1, 1, side, side + 16, dtype=torch.float64)
    sigma, mean = torch.tensor([0.1]).double(), y.mean(dim=(2, 3))
    whole = network(y, sigma)
    tile = network(y[..., network.multiple :], sigma, mean=mean)
    torch.testing.assert_close(
        tile[..., margin:], whole[..., network.multiple + margin :], rtol=0, atol=1e-10
    )
    near = slice(0, network.multiple)  # without a margin the tile does differ
    assert (tile[..., near] - whole[..., network.multiple :][..., near]).abs().max() > 1e-6
    assert (
        network(y[..., network.multiple :], sigma) - tile
    ).abs().max() > 1e-6  # its own mean: no


def test_weights_come_from_the_seed_alone() -> None:
    config = NetworkConfig(size="tiny", channels=1, sigma_data=0.2)
    torch.manual_seed(1)
    first = build_denoiser(config, seed=5).state_dict()
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    second = build_denoiser(config, seed=5).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[k], second[k]) for k in first)
    other = build_denoiser(config, seed=6).state_dict()
    assert any(not torch.equal(first[k], other[k]) for k in first)


def test_sizes_grow() -> None:
    counts = [count_parameters(denoiser(size, wake=False)) for size in SIZES]
    assert counts == sorted(counts)
    assert counts[-1] > 3 * counts[0]


def test_paper_network_has_the_papers_size_and_runs() -> None:
    config = NetworkConfig(size="paper", channels=3, sigma_data=0.25, resolution=64)
    network = build_denoiser(config)
    assert count_parameters(network) == pytest.approx(55.7e6, rel=0.005)
    with torch.no_grad():
        out = network(torch.rand(1, 3, 14, 10), torch.tensor([0.05]))
    assert out.shape == (1, 3, 14, 10)
    assert torch.isfinite(out).all()
