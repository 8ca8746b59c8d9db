"""The Restorer as a user calls it: any array, any batch, any chunk give the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import nediff
from nediff.config import RecipeConfig
from nediff.data import Measurements, open_measurements
from nediff.networks import build_denoiser
from nediff.problem import Problem
from nediff.restorer import Restorer
from nediff.sampling import SamplerSettings, sample_posterior
from nediff.training.fitting import Plan, plan_run
from tests.command import SIGMA, noisy

FEW = SamplerSettings(steps=3)
Float = NDArray[np.float32]


def pictures(count: int, channels: int = 1) -> Float:
    """(N, C, 40, 44), all different."""
    planes = [noisy(k) for k in range(count * channels)]
    return np.stack(planes).reshape(count, channels, 40, 44).astype(np.float32)


def trained(channels: int) -> Restorer:
    """Three steps: enough for weights that are nobody's initial ones."""
    data = open_measurements(pictures(6, channels), axes="NCHW", range=(0, 1))
    return nediff.fit(data, SIGMA, steps=3, size="tiny")


@pytest.fixture(scope="module")
def grey() -> Restorer:
    return trained(1)


@pytest.fixture(scope="module")
def colour() -> Restorer:
    return trained(3)


# --- one by one, all at once, in any chunks -------------------------------------------------------


def test_restoring_a_batch_is_restoring_one_by_one(colour: Restorer) -> None:
    y = pictures(4, 3)
    single = np.stack([colour.restore(image) for image in y])
    np.testing.assert_allclose(colour.restore(y), single, rtol=0, atol=1e-5)
    assert np.abs(single[0] - single[1]).mean() > 0.01  # the images differ, so a mix-up shows


def test_sampling_a_batch_is_sampling_one_by_one(colour: Restorer) -> None:
    y = pictures(3, 3)
    together = colour.sample(y, 2, seed=[7, 8, 9], settings=FEW)
    assert together.shape == (2, *y.shape)
    for i, seed in enumerate((7, 8, 9)):
        alone = colour.sample(y[i], 2, seed=seed, settings=FEW)
        np.testing.assert_allclose(together[:, i], alone, rtol=0, atol=1e-5)
    assert np.abs(together[0] - together[1]).mean() > 0.001


def test_the_first_samples_do_not_depend_on_how_many_follow(grey: Restorer) -> None:
    y = pictures(1)[0, 0]
    more, fewer = (grey.sample(y, n, seed=1, settings=FEW) for n in (4, 2))
    np.testing.assert_allclose(more[:2], fewer, rtol=0, atol=1e-5)


@pytest.mark.parametrize("images_at_once", [1, 2, 4, 5])
def test_samples_do_not_depend_on_what_is_computed_together(
    grey: Restorer, images_at_once: int
) -> None:
    y = torch.from_numpy(pictures(3))
    levels = torch.full((3,), SIGMA)

    def draw(pixels: int) -> Tensor:
        with torch.no_grad():
            return sample_posterior(
                grey.denoiser, y, levels, grey.problem, 3, [4, 5, 6], FEW, pixels_at_once=pixels
            )

    expected, found = draw(2**20), draw(images_at_once * 40 * 44)
    assert found.shape == (3, 3, 1, 40, 44)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


# --- what goes in comes out -----------------------------------------------------------------------

SHAPES = [
    (1, (40, 44)),
    (1, (1, 40, 44)),
    (1, (2, 1, 40, 44)),
    (3, (3, 40, 44)),
    (3, (2, 3, 40, 44)),
]


@pytest.mark.parametrize(("channels", "shape"), SHAPES)
def test_shape_and_kind_are_kept(
    grey: Restorer, colour: Restorer, channels: int, shape: tuple[int, ...]
) -> None:
    restorer = grey if channels == 1 else colour
    y = np.resize(pictures(2, channels), shape)
    tensor = torch.from_numpy(y)
    results = [
        (restorer.restore(y), restorer.restore(tensor), shape),
        (
            restorer.sample(y, 2, settings=FEW),
            restorer.sample(tensor, 2, settings=FEW),
            (2, *shape),
        ),
    ]
    for array, same, expected in results:
        assert isinstance(array, np.ndarray)
        assert isinstance(same, Tensor)
        assert array.shape == tuple(same.shape) == expected
        assert array.dtype == np.float32
        assert same.dtype == torch.float32
        np.testing.assert_array_equal(array, same.numpy())


VIEWS: dict[str, Callable[[Float], NDArray[np.floating]]] = {
    "rows reversed": lambda image: image[::-1],
    "both reversed": lambda image: image[::-1, ::-1],
    "transposed": lambda image: image.T,
    "every other": lambda image: np.repeat(image, 2, axis=1)[:, ::2],
    "double": lambda image: image.astype(np.float64),
    "half": lambda image: image.astype(np.float16),
    "big endian": lambda image: image.astype(">f4"),
    "big endian double": lambda image: image.astype(">f8"),
}


@pytest.mark.parametrize("view", VIEWS)
def test_any_float_array_is_restored(grey: Restorer, view: str) -> None:
    """Those that torch itself refuses too: negative strides and foreign byte order."""
    y = VIEWS[view](pictures(1)[0, 0])
    before = y.copy()
    restored = grey.restore(y)
    plain = np.ascontiguousarray(y, dtype=np.float32)
    assert restored.shape == y.shape
    np.testing.assert_allclose(restored, grey.restore(plain), rtol=0, atol=1e-5)
    drawn, same = (grey.sample(image, 1, settings=FEW) for image in (y, plain))
    np.testing.assert_allclose(drawn, same, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(y, before)


def test_read_only_arrays_and_double_tensors(grey: Restorer) -> None:
    y = pictures(1)[0, 0]
    expected = grey.restore(y)
    y.flags.writeable = False
    np.testing.assert_array_equal(grey.restore(y), expected)
    tensor = torch.from_numpy(y.astype(np.float64))
    np.testing.assert_array_equal(grey.restore(tensor).numpy(), expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "bool"])
def test_integers_are_not_unit_intensities(grey: Restorer, dtype: str) -> None:
    y = (255 * pictures(1)[0, 0]).clip(0, 255).astype(dtype)
    for image in (y, torch.from_numpy(y.astype("uint8"))):
        for call in (grey.restore, grey.sample, grey.summarise):
            with pytest.raises(nediff.NediffError, match=r"range\.to_unit"):
                call(image)
    assert np.isfinite(grey.restore(grey.range.to_unit(y))).all()


@pytest.mark.parametrize("shape", [(3, 40, 44), (2, 3, 40, 44), (1, 1, 1, 40, 44), (44,)])
def test_other_channels_or_axes_are_refused(grey: Restorer, shape: tuple[int, ...]) -> None:
    with pytest.raises(nediff.NediffError, match="does not fit") as caught:
        grey.restore(np.zeros(shape, np.float32))
    assert str(shape) in str(caught.value)


def test_grey_images_do_not_fit_a_colour_restorer(colour: Restorer) -> None:
    for shape in ((40, 44), (1, 40, 44), (40, 44, 3)):
        with pytest.raises(nediff.NediffError, match=r"3 channel\(s\)"):
            colour.sample(np.zeros(shape, np.float32))


@pytest.mark.parametrize("sigma", [2.01 * SIGMA, 1.0, 0.0, -0.05, float("nan"), float("inf")])
def test_noise_that_was_not_learned_is_refused(grey: Restorer, sigma: float) -> None:
    y = pictures(1)[0, 0]
    for call in (grey.restore, grey.sample, grey.summarise):
        with pytest.raises(nediff.NediffError, match="outside what was learned"):
            call(y, sigma=sigma)
    assert np.isfinite(grey.restore(y, sigma=0.5 * SIGMA)).all()


# --- seeds and summaries --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8, np.uint64])
def test_numpy_seeds_are_plain_seeds(grey: Restorer, kind: type[np.integer]) -> None:
    y = pictures(2)
    plain = grey.sample(y, 1, seed=7, settings=FEW)
    np.testing.assert_array_equal(grey.sample(y, 1, seed=kind(7), settings=FEW), plain)
    np.testing.assert_array_equal(grey.sample(y, 1, seed=[kind(7)] * 2, settings=FEW), plain)


def test_an_array_of_seeds_is_a_list_of_seeds(grey: Restorer) -> None:
    """An array can be asked for an index, as a number can, but is one only if it holds one."""
    y = pictures(2)
    listed = grey.sample(y, 1, seed=[7, 8], settings=FEW)
    array = grey.sample(y, 1, seed=np.array([7, 8]), settings=FEW)  # type: ignore[arg-type]
    np.testing.assert_array_equal(array, listed)


def test_one_seed_for_each_image(grey: Restorer) -> None:
    y = np.repeat(pictures(1), 3, axis=0)
    same, other = (grey.sample(y, 1, seed=s, settings=FEW)[0] for s in (3, [3, 3, 4]))
    np.testing.assert_allclose(same[0], same[1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(other[:2], same[:2], rtol=0, atol=1e-5)
    assert np.abs(other[2] - same[2]).mean() > 0.001


@pytest.mark.parametrize("seeds", [[1], [1, 2, 3, 4], []])
def test_wrong_number_of_seeds(grey: Restorer, seeds: list[int]) -> None:
    with pytest.raises(nediff.NediffError, match=f"3 images need as many seeds, not {len(seeds)}"):
        grey.sample(pictures(3), 1, seed=seeds)


@pytest.mark.parametrize("n", [1, 0, -1])
def test_a_summary_needs_two_samples(grey: Restorer, n: int) -> None:
    with pytest.raises(nediff.NediffError, match=f"at least 2 samples, not {n}"):
        grey.summarise(pictures(1)[0], n)


# --- files and training ---------------------------------------------------------------------------


def test_saved_and_loaded_is_the_same(colour: Restorer, tmp_path: Path) -> None:
    colour.save(tmp_path / "run")
    again = nediff.load(tmp_path / "run")
    assert again.config == colour.config
    assert again.problem == colour.problem
    assert again.range == colour.range
    weights = dict(again.denoiser.named_parameters())
    for name, value in colour.denoiser.named_parameters():
        assert torch.equal(value, weights[name]), name
    y = pictures(1, 3)[0]
    np.testing.assert_array_equal(again.restore(y), colour.restore(y))
    drawn = [r.sample(y, 2, seed=5, settings=FEW) for r in (again, colour)]
    np.testing.assert_array_equal(*drawn)


@pytest.mark.parametrize("loss", ["ne_sure", "sure"])
def test_a_recipe_of_ones_own_with_exact_derivatives(loss: str) -> None:
    """Forward-mode derivatives go through every layer, and back-propagation through them."""
    recipe = RecipeConfig.model_validate({"name": "mine", "loss": loss, "divergence": "jvp"})
    data = open_measurements(pictures(4), axes="NCHW", range=(0, 1))
    restorer = nediff.fit(data, SIGMA, steps=2, size="tiny", crop=24, recipe=recipe)
    assert restorer.config.recipe == recipe
    assert restorer.config.training.crop == 24
    first = dict(build_denoiser(restorer.config.network).named_parameters())
    changed = 0
    for name, value in restorer.denoiser.named_parameters():
        assert torch.isfinite(value).all(), name
        changed += not torch.equal(value, first[name])
    assert changed > 0
    assert np.isfinite(restorer.restore(pictures(1)[0])).all()


@pytest.fixture(scope="module")
def large() -> Measurements:
    image = np.random.default_rng(0).normal(0.5, 0.2, (2, 128, 128)).astype(np.float32)
    return open_measurements(image, axes="NHW", range=(0, 1))


@pytest.mark.parametrize(("crop", "resolution"), [(40, 64), (64, 64), (128, 128)])
def test_the_papers_network_is_planned_for_the_crop(
    large: Measurements, crop: int, resolution: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attention layers sit at fixed resolutions, for images of 64 or 128; planning is cheap."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was built")

    monkeypatch.setattr("nediff.networks._build", refuse)
    plan = Plan(steps=1, size="paper", crop=crop)
    config = plan_run(large, Problem.denoising(SIGMA), plan, "test")
    assert (config.network.size, config.network.resolution) == ("paper", resolution)
    assert config.training.crop == crop
