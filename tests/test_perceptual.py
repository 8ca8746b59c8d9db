"""LPIPS and FID-768 against closed forms, other libraries' networks and known values."""

from __future__ import annotations

import json
import os
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from nediff.errors import NediffError
from nediff.evaluation.library import LibraryMetrics
from nediff.evaluation.perceptual import (
    ALEXNET,
    HEADS,
    INCEPTION,
    VARIABLE,
    Perceptual,
    frechet,
    statistics,
)

# --- The Fréchet distance ---


def covariance(size: int, seed: int, rank: int | None = None) -> np.ndarray:
    root = np.random.default_rng(seed).normal(size=(size, rank or 2 * size))
    return root @ root.T


@pytest.mark.parametrize("rank", [None, 5])
def test_equal_gaussians_are_at_distance_zero_even_if_singular(rank: int | None) -> None:
    mean, cov = np.arange(20.0), covariance(20, 0, rank)
    assert frechet(mean, cov, mean, cov) == pytest.approx(0, abs=1e-11 * np.trace(cov))


def test_a_shift_of_the_mean_counts_by_its_square() -> None:
    mean, shift, cov = np.zeros(12), np.linspace(-1, 2, 12), covariance(12, 1)
    found = frechet(mean, cov, mean + shift, cov)
    assert found == pytest.approx(np.square(shift).sum(), abs=1e-10)


def test_diagonal_gaussians_have_a_closed_form() -> None:
    a, b = np.array([4.0, 1.0, 0.0, 9.0]), np.array([1.0, 1.0, 2.0, 0.0])
    expected = np.square(np.sqrt(a) - np.sqrt(b)).sum()
    zero = np.zeros(4)
    assert frechet(zero, np.diag(a), zero, np.diag(b)) == pytest.approx(expected)
    turn = np.linalg.qr(covariance(4, 2))[0]
    turned = [turn @ np.diag(c) @ turn.T for c in (a, b)]
    assert frechet(zero, turned[0], zero, turned[1]) == pytest.approx(expected)


def test_two_dimensions_have_a_closed_form_without_commuting() -> None:
    """tr √M = √(tr M + 2 √det M) for M = C₁ C₂ of size 2."""
    c1, c2, zero = covariance(2, 3), covariance(2, 4), np.zeros(2)
    product = c1 @ c2
    root = np.sqrt(np.trace(product) + 2 * np.sqrt(np.linalg.det(product)))
    expected = np.trace(c1) + np.trace(c2) - 2 * root
    assert frechet(zero, c1, zero, c2) == pytest.approx(expected)
    assert frechet(zero, c2, zero, c1) == pytest.approx(expected)


def test_a_set_of_equal_pictures_has_no_spread() -> None:
    cov, zero = covariance(3, 5), np.zeros((3, 3))
    assert frechet(np.zeros(3), zero, np.ones(3), cov) == pytest.approx(3 + np.trace(cov))
    assert frechet(np.zeros(3), zero, np.ones(3), zero) == pytest.approx(3)


def test_statistics_are_the_mean_and_the_unbiased_covariance() -> None:
    features = np.random.default_rng(6).normal(1e4, 1, size=(50, 7))
    mean, cov = statistics(features)
    np.testing.assert_allclose(mean, features.mean(0))
    np.testing.assert_allclose(cov, np.cov(features, rowvar=False), atol=1e-9)


def test_the_distance_of_sets_agrees_with_torchmetrics() -> None:
    fid = pytest.importorskip("torchmetrics.image.fid")

    class Halves(nn.Module):
        num_features = 8

        def forward(self, x: Tensor) -> Tensor:
            return x.float().flatten(1)[:, :8] / 255

    rng = np.random.default_rng(7)
    sets = [rng.integers(0, high, size=(40, 3, 4, 4), dtype=np.uint8) for high in (256, 180)]
    metric = fid.FrechetInceptionDistance(feature=Halves())
    for real, images in zip((True, False), sets, strict=True):
        metric.update(torch.from_numpy(images), real=real)
    ours = [statistics(images.reshape(40, -1)[:, :8] / 255) for images in sets]
    assert frechet(*ours[0], *ours[1]) == pytest.approx(metric.compute().item(), rel=1e-4)


# --- The networks, with random weights, against those of other libraries ---


def test_lpips_agrees_with_torchmetrics(tmp_path: Path) -> None:
    library = pytest.importorskip("torchmetrics.functional.image.lpips")
    torch.manual_seed(0)
    theirs = library._LPIPS(net="alex", pretrained=False, pnet_rand=True)
    state = theirs.state_dict()
    heads = {k: state[k].abs() for k in state if k.startswith("lin") and "lins" not in k}
    theirs.load_state_dict(heads, strict=False)
    save_file(heads, tmp_path / HEADS)
    features = {k.split(".", 2)[2]: v for k, v in state.items() if k.startswith("net.")}
    save_file({f"features.{k}": v for k, v in features.items()}, tmp_path / ALEXNET)
    a, b = torch.rand(2, 3, 3, 40, 52)
    expected = theirs(a, b, normalize=True).flatten().numpy()
    np.testing.assert_allclose(Perceptual(tmp_path).lpips(a.numpy(), b.numpy()), expected, 1e-4)


def write_archive(path: Path, weights: dict[str, Tensor], pickled: bool = False) -> None:
    """Weights as `torch.export` lays them out."""
    table = {}
    with zipfile.ZipFile(path, "w") as archive:
        for i, (name, value) in enumerate(weights.items()):
            archive.writestr(f"net/data/weights/weight_{i}", value.numpy().tobytes())
            sizes = [{"as_int": n} for n in value.shape]
            meta = {"dtype": 7, "sizes": sizes}
            table[name] = {
                "path_name": f"weight_{i}",
                "use_pickle": pickled,
                "tensor_meta": meta,
            }
        text = json.dumps({"config": table})
        archive.writestr("net/data/weights/model_weights_config.json", text)


@torch.no_grad()
def folded(network: nn.Module) -> dict[str, Tensor]:
    """Convolutions and biases of a torchvision Inception, batch normalisation folded in."""
    out = {}
    for name, module in network.named_modules():
        if hasattr(module, "bn"):
            bn = module.bn
            bn.running_mean.uniform_(-0.1, 0.1)
            gain = bn.weight / (bn.running_var + bn.eps).sqrt()
            out[f"net.{name}.w"] = module.conv.weight * gain[:, None, None, None]
            out[f"net.{name}.b"] = bn.bias - bn.running_mean * gain
    return out


@torch.no_grad()
def test_inception_is_that_of_torchvision_but_for_its_pooling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    theirs = models.inception_v3(weights=None, aux_logits=False, init_weights=False).eval()
    write_archive(tmp_path / INCEPTION, folded(theirs))
    kept: list[Tensor] = []
    theirs.Mixed_6e.register_forward_hook(lambda _, __, out: kept.append(out))
    images = torch.rand(1, 3, 299, 299)
    pool = partial(nn.functional.avg_pool2d, count_include_pad=False)
    with monkeypatch.context() as patch:
        patch.setattr(nn.functional, "avg_pool2d", pool)
        theirs(2 * images - 1)
    expected = kept[0].mean((2, 3)).numpy()
    found = Perceptual(tmp_path).features(images.numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5 * expected.max())


# --- Refusals ---


def test_without_weights_a_sentence_says_where_to_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(NediffError, match=VARIABLE):
        Perceptual()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(NediffError, match=r"no folder .*nowhere"):
        Perceptual()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    images = np.zeros((2, 1, 32, 32))
    with pytest.raises(NediffError, match=f"has no {ALEXNET}"):
        Perceptual().lpips(images, images)
    with pytest.raises(NediffError, match=f"has no {INCEPTION}"):
        Perceptual().features(images)


def test_files_that_are_something_else_are_refused(tmp_path: Path) -> None:
    images = np.zeros((2, 1, 32, 32))
    for name in (ALEXNET, HEADS, INCEPTION):
        (tmp_path / name).write_bytes(b"not weights at all")
    with pytest.raises(NediffError, match="not a whole safetensors file"):
        Perceptual(tmp_path).lpips(images, images)
    with pytest.raises(NediffError, match=r"not a whole torch\.export archive"):
        Perceptual(tmp_path).features(images)
    save_file({"a": torch.zeros(1)}, tmp_path / ALEXNET)
    with pytest.raises(NediffError, match=r"has no features\.0\.weight"):
        Perceptual(tmp_path).lpips(images, images)
    write_archive(tmp_path / INCEPTION, {"a": torch.zeros(1)})
    with pytest.raises(NediffError, match=r"has no net\.Conv2d_1a_3x3\.w"):
        Perceptual(tmp_path).features(images)
    write_archive(tmp_path / INCEPTION, {"a": torch.zeros(1)}, pickled=True)
    with pytest.raises(NediffError, match="archive of plain weights"):
        Perceptual(tmp_path).features(images)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.zeros((3, 32, 32)), "as (N, C, H, W)"),
        (np.zeros((1, 2, 32, 32)), "give the magnitude"),
        (np.zeros((0, 3, 32, 32)), "as (N, C, H, W)"),
        (np.zeros((1, 1, 32, 32), dtype=np.uint8), "are uint8 from 0 to 0"),
        (np.full((1, 1, 32, 32), 255.0), "from 255 to 255"),
        (np.full((1, 1, 32, 32), np.nan), "are float64 from nan"),
        (np.zeros((1, 1, 30, 64)), "but these have 30 × 64"),
    ],
)
def test_pictures_that_do_not_fit_are_refused(
    tmp_path: Path, images: np.ndarray, words: str
) -> None:
    with pytest.raises(NediffError) as refusal:
        Perceptual(tmp_path).lpips(images, images)
    assert words in str(refusal.value)


def test_sets_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NediffError, match="same shape"):
        Perceptual(tmp_path).lpips(np.zeros((2, 1, 32, 32)), np.zeros((2, 3, 32, 32)))
    with pytest.raises(NediffError, match="at least 2 pictures"):
        statistics(np.zeros((1, 4)))
    with pytest.raises(NediffError, match="of one size"):
        frechet(np.zeros(2), np.eye(2), np.zeros(3), np.eye(3))


# --- The real weights, where there are any ---

LPIPS_OF_RAMPS = 0.526906
FEATURES_OF_WAVES = [0.0378489, 0.0322909, 0.0287236, 0.00401978, 0.0381917, 0.00148500]
SUM_OF_FEATURES = 36.17488


@pytest.fixture(scope="module")
def metrics() -> Perceptual:
    beside = Path(__file__).resolve().parents[2] / "shared" / "weights"
    folder = Path(os.environ.get(VARIABLE, beside))
    if not folder.is_dir():
        pytest.skip(f"no weights: neither {VARIABLE} nor ../shared/weights names a folder")
    return Perceptual(folder, batch=4)


@pytest.fixture(scope="module")
def photographs() -> np.ndarray:
    """Ten parts of a photograph, (10, 3, 48, 64)."""
    from skimage.data import astronaut

    parts = [astronaut()[50 * i : 50 * i + 48, 180:244] for i in range(10)]
    return np.stack(parts).transpose(0, 3, 1, 2).astype(np.float32) / 255


def blurred(images: np.ndarray, sigma: float) -> np.ndarray:
    from skimage.filters import gaussian

    return gaussian(images, (0, 0, sigma, sigma))


def ramps() -> np.ndarray:
    """Two pictures that anyone can make again: slopes, and slopes with waves, (2, 3, 64, 64)."""
    y, x = np.mgrid[:64, :64] / 63
    slopes = np.stack([x, y, (x + y) / 2])
    return np.stack([slopes, (slopes + np.sin(20 * x * y) ** 2) / 2])


def test_lpips_is_zero_for_equal_pictures_and_grows_with_distortion(
    metrics: Perceptual, photographs: np.ndarray
) -> None:
    assert metrics.lpips(photographs, photographs).tolist() == [0] * 10
    noise = np.random.default_rng(0).normal(size=photographs.shape)
    noisy = [metrics.lpips(photographs + s * noise, photographs) for s in (0.05, 0.1, 0.2)]
    assert noisy[0].mean() < noisy[1].mean() < noisy[2].mean()
    blurs = [metrics.lpips(blurred(photographs, s), photographs) for s in (0.5, 1, 2)]
    assert np.all(blurs[0] < blurs[1])
    assert np.all(blurs[1] < blurs[2])


def test_grey_is_repeated_and_values_beyond_the_range_are_clipped(
    metrics: Perceptual, photographs: np.ndarray
) -> None:
    grey = photographs[:2, :1]
    other = blurred(grey, 1)
    colour, colours = np.repeat(grey, 3, 1), np.repeat(other, 3, 1)
    np.testing.assert_allclose(
        metrics.lpips(other, grey), metrics.lpips(colours, colour), rtol=1e-5
    )
    over = np.where(grey > 0.9, 1.2, grey)
    np.testing.assert_array_equal(metrics.lpips(over, grey), metrics.lpips(over.clip(0, 1), grey))


def test_batches_do_not_matter_and_threads_are_given_back(
    metrics: Perceptual, photographs: np.ndarray
) -> None:
    one = Perceptual(metrics.folder, batch=1, threads=2)
    np.testing.assert_allclose(
        one.lpips(photographs[:5], photographs[5:]),
        metrics.lpips(photographs[:5], photographs[5:]),
        rtol=1e-4,
    )
    assert torch.get_num_threads() == 1


def test_lpips_and_features_have_their_known_values(metrics: Perceptual) -> None:
    """LPIPS by torchmetrics; the features by the exported program itself."""
    slopes, waves = ramps()[:1], ramps()[1:]
    assert metrics.lpips(waves, slopes)[0] == pytest.approx(LPIPS_OF_RAMPS, rel=1e-4)
    found = metrics.features(waves)
    assert found.shape == (1, 768)
    np.testing.assert_allclose(found[0, ::128], FEATURES_OF_WAVES, rtol=1e-3, atol=1e-5)
    assert found.sum() == pytest.approx(SUM_OF_FEATURES, rel=1e-4)


def test_fid_is_zero_for_one_set_and_grows_with_blur(
    metrics: Perceptual, photographs: np.ndarray
) -> None:
    reference = statistics(metrics.features(photographs))
    assert frechet(*reference, *reference) == pytest.approx(0, abs=1e-9)
    little, much = (statistics(metrics.features(blurred(photographs, s))) for s in (0.5, 2))
    assert 0.001 < frechet(*little, *reference) < frechet(*much, *reference)
    assert metrics.fid768(photographs[:2], photographs[1::-1]) == pytest.approx(0, abs=1e-6)


# --- torchmetrics' own networks, where they may be downloaded ---


def test_the_library_is_asked_for_pictures_as_it_takes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LPIPS: three channels in [0, 1]; FID: the same in 8 bits. Batches do not matter."""
    lpips = pytest.importorskip("torchmetrics.functional.image.lpips")
    torch.manual_seed(0)
    network = lpips._LPIPS(net="alex", pretrained=False, pnet_rand=True).eval()
    metrics = LibraryMetrics()
    monkeypatch.setitem(metrics.__dict__, "_alexnet", network)
    a, b = torch.rand(2, 5, 1, 40, 40) * 1.4 - 0.2
    wide = [x.clip(0, 1).expand(-1, 3, -1, -1) for x in (a, b)]
    expected = network(*wide, normalize=True).detach().flatten().numpy()
    metrics.batch = 2
    np.testing.assert_allclose(metrics.lpips(a.numpy(), b.numpy()), expected, rtol=1e-4)

    def inception(x: Tensor) -> Tensor:
        assert x.dtype == torch.uint8
        return x.float().mean((2, 3))

    monkeypatch.setitem(metrics.__dict__, "_inception", inception)
    found = metrics.features(np.full((3, 1, 8, 8), 0.5, np.float32))
    np.testing.assert_array_equal(found, np.full((3, 3), 128.0))


@pytest.mark.parametrize(
    ("error", "words"),
    [(ModuleNotFoundError("torch_fidelity"), r"nediff\[eval\]"), (OSError("no route"), "no route")],
)
def test_a_network_that_cannot_be_had_is_a_sentence(error: Exception, words: str) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(NediffError, match=words):
        LibraryMetrics._obtained(fail)
