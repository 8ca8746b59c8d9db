"""Measurements: lazy, in unit range, with noise that belongs to the image."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch

from nediff.data import list_files, open_measurements, scan, split
from nediff.data import scan as scan_module

torch.set_num_threads(1)
RNG = np.random.default_rng(4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of different sizes, four images."""
    stack = RNG.random((3, 40, 50)).astype(np.float32)
    options = {"compression": "zlib", "photometric": "minisblack", "metadata": {"axes": "ZYX"}}
    tifffile.imwrite(tmp_path / "a.tif", stack, **options)
    np.save(tmp_path / "b.npy", RNG.random((36, 61)).astype(np.float32))
    return tmp_path


def test_numbering_names_sizes(folder: Path) -> None:
    data = open_measurements(folder)
    assert len(data) == 4
    assert [data.name(i) for i in range(4)] == ["a.tif#0", "a.tif#1", "a.tif#2", "b.npy"]
    assert [data.size(i) for i in range(4)] == [(40, 50)] * 3 + [(36, 61)]
    assert (data.channels, data.min_size, data.clean, data.simulated) == (1, 36, None, None)
    assert data[3].shape == (1, 36, 61)
    assert len(list(data)) == 4


def test_values_are_those_of_the_file_in_unit_range(folder: Path) -> None:
    data = open_measurements(folder, range=(-1, 3))
    stored = tifffile.imread(folder / "a.tif").astype(np.float64)
    image = data.image(1)
    assert image.dtype == np.float32
    np.testing.assert_array_equal(image[0], ((stored[1] + 1) / 4).astype(np.float32))
    outside = open_measurements(folder, range=(0.4, 0.6))
    assert outside.image(0).min() < -1.5
    assert outside.image(0).max() > 2.5


@pytest.mark.parametrize("simulate", [None, 0.2])
def test_crop_is_a_slice_of_the_image(folder: Path, simulate: float | None) -> None:
    data = open_measurements(folder, simulate=simulate)
    for i in range(4):
        image = data.image(i)
        for top, left, h, w in [(0, 0, 8, 8), (3, 5, 17, 30), (20, 33, 16, 17), (7, 1, 1, 1)]:
            crop = data.crop(i, top, left, h, w)
            np.testing.assert_array_equal(crop, image[:, top : top + h, left : left + w])
    for beyond in [(30, 0, 11, 5), (-1, 0, 4, 4), (0, 45, 4, 6)]:
        with pytest.raises(IndexError, match="edge"):
            data.crop(0, *beyond)


def test_simulated_noise_is_drawn_once(folder: Path) -> None:
    first = open_measurements(folder, simulate=0.2, seed=5)
    again = open_measurements(folder, simulate=0.2, seed=5, cache_bytes=0)
    other = open_measurements(folder, simulate=0.2, seed=6)
    assert first.simulated == 0.2
    for i in range(4):
        np.testing.assert_array_equal(first[i], first[i])
        np.testing.assert_array_equal(first[i], again[i])
        assert (first[i] != other[i]).mean() > 0.99
    alone = open_measurements(folder / "b.npy", simulate=0.2, seed=5)
    np.testing.assert_array_equal(alone[0], first[3])


def test_simulated_noise_is_the_same_in_another_process(folder: Path) -> None:
    code = (
        "import sys, numpy as np\n"
        "from nediff.data import open_measurements\n"
        "data = open_measurements(sys.argv[1], simulate=0.2, seed=5)\n"
        "sys.stdout.buffer.write(data.crop(2, 3, 5, 9, 14).tobytes())\n"
    )
    out = subprocess.run([sys.executable, "-c", code, str(folder)], check=True, capture_output=True)
    here = open_measurements(folder, simulate=0.2, seed=5).crop(2, 3, 5, 9, 14)
    assert out.stdout == here.tobytes()


def test_simulated_noise_is_white_and_clean_is_exact(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", RNG.random((6, 3, 80, 90)).astype(np.float32))
    plain = open_measurements(tmp_path)
    data = open_measurements(tmp_path, simulate=0.3)
    clean = data.clean
    assert clean is not None
    assert clean.clean is None
    noise = []
    for i in range(6):
        np.testing.assert_array_equal(clean[i], plain[i])
        noise.append(data[i] - clean[i])
    stack = np.stack(noise)
    n = stack.size
    assert stack.std() == pytest.approx(0.3, abs=5 * 0.3 / np.sqrt(2 * n))
    assert abs(stack.mean()) < 5 * 0.3 / np.sqrt(n)
    flat = stack.reshape(18, -1) / 0.3  # images and channels: all independent
    correlation = flat @ flat.T / flat.shape[1] - np.eye(18)
    assert np.abs(correlation).max() < 6 * np.sqrt(2 / flat.shape[1])
    assert data.within_variance == pytest.approx(1 / 12 + 0.09, rel=0.02)
    assert clean.within_variance == pytest.approx(plain.within_variance)


def test_select_is_a_view_in_the_given_order(folder: Path) -> None:
    data = open_measurements(folder, simulate=0.1)
    some = data.select([3, 1])
    assert [some.name(0), some.name(1)] == ["b.npy", "a.tif#1"]
    np.testing.assert_array_equal(some[1], data[1])
    assert some.clean is not None
    np.testing.assert_array_equal(some.clean[0], data.clean[3])  # type: ignore[index]
    assert (some.range, some.range_chosen, some.simulated) == (data.range, data.range_chosen, 0.1)


def test_array_source() -> None:
    pixels = RNG.integers(0, 256, (5, 20, 21, 3)).astype(np.uint8)
    data = open_measurements(pixels)
    assert (len(data), data.channels, data.name(4)) == (5, 3, "array#4")
    np.testing.assert_allclose(data[2], np.moveaxis(pixels[2], 2, 0) / 255.0, rtol=1e-6)
    assert "uint8" in data.range_chosen


def test_scan_statistics_do_not_depend_on_blocks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = list_files(folder)
    steps: list[tuple[int, int]] = []
    whole = scan(files, lambda done, total: steps.append((done, total)))
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    images = [f.read(p)[0].astype(np.float64) for f in files for p in range(f.n_images)]
    assert whole.within_variance == pytest.approx(np.mean([i.var() for i in images]), rel=1e-9)
    assert (whole.minimum, whole.maximum) == (
        min(i.min() for i in images),
        max(i.max() for i in images),
    )
    monkeypatch.setattr(sys.modules[scan_module.__module__], "_BLOCK", 200)
    assert scan(files).within_variance == pytest.approx(whole.within_variance, rel=1e-9)


def test_variance_is_within_channel_and_image() -> None:
    """Differences between channels and between images are not variation that noise could be."""
    levels = np.arange(8.0).reshape(4, 2, 1, 1) * 10
    pixels = (levels + RNG.normal(0, 1, (4, 2, 60, 60))).astype(np.float32)
    assert scan(list_files(pixels)).within_variance == pytest.approx(1.0, rel=0.05)


def test_sample_is_bounded_and_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[scan_module.__module__], "_SAMPLE", 1000)
    files = list_files(RNG.random((10, 64, 64)))
    first, again = scan(files).sample, scan(files).sample
    assert len(first) == 1000
    np.testing.assert_array_equal(first, again)


def names(data: object) -> set[str]:
    return {data.name(i) for i in range(len(data))}  # type: ignore[attr-defined,arg-type]


def test_split_is_deterministic_disjoint_and_by_seed() -> None:
    data = open_measurements(RNG.random((50, 8, 8)))
    train, held = split(data, 1, crop=8)
    assert (len(train), len(held)) == (45, 5)
    assert names(train) | names(held) == names(data)
    assert not names(train) & names(held)
    assert names(split(data, 1, crop=8)[1]) == names(held)
    assert len({frozenset(names(split(data, s, crop=8)[1])) for s in range(5)}) > 1
    assert len(split(data, 1, 0.5, 3, crop=8)[1]) == 3


def test_split_of_two_and_three() -> None:
    for count in (2, 3):
        data = open_measurements(RNG.random((count, 8, 8)), axes="NHW")
        train, held = split(data, 0, crop=8)
        assert (len(train), len(held)) == (count - 1, 1)
        everything = split(data, 0, 1.0, crop=8)
        assert (len(everything[0]), len(everything[1])) == (1, count - 1)


@pytest.mark.parametrize("shape", [(100, 60), (60, 100)])
@pytest.mark.parametrize(("crop", "strip"), [(10, 15), (40, 40)])
def test_strip_of_a_single_image(shape: tuple[int, int], crop: int, strip: int) -> None:
    data = open_measurements(RNG.random(shape), simulate=0.1)
    train, held = split(data, 0, crop=crop)
    axis = 1 + int(np.argmax(shape))
    assert held[0].shape[axis] == strip
    assert train[0].shape[axis] == 100 - strip
    assert train.name(0) != held.name(0)
    np.testing.assert_array_equal(np.concatenate([train[0], held[0]], axis=axis), data[0])
    np.testing.assert_array_equal(held.crop(0, 2, 3, 4, 5), held[0][:, 2:6, 3:8])
    assert held.clean is not None
    assert held.clean[0].shape == held[0].shape
    with pytest.raises(IndexError):
        train.crop(0, 0, 0, shape[0], shape[1])


def test_image_too_small_to_split() -> None:
    data = open_measurements(RNG.random((30, 40)))
    train, held = split(data, 0, crop=25)
    assert names(train) == names(held) == {"array"}


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, nediff.data; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
