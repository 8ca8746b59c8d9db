"""`nediff restore --pretrained`: the network that comes along, for images in any range."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tifffile
from scipy.ndimage import gaussian_filter

from nediff.data import IntensityRange
from nediff.evaluation.calibrate import uncorrected
from nediff.pretrained import FOLDER, load_pretrained
from tests.command import nediff


def picture(sigma: float, seed: int = 0) -> np.ndarray:
    """A smooth picture of 96 × 96 in 0 to 1, with noise."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:96, :96]
    clean = 0.5 + 0.35 * np.sin(rows / 13) * np.cos(columns / 17)
    noisy: np.ndarray = clean + sigma * rng.standard_normal(clean.shape)
    return noisy


def test_units_and_offset_of_the_data_do_not_matter() -> None:
    """The same picture in other units is restored to the same in these units."""
    y = picture(0.1)
    results = []
    for low, high in ((0.0, 1.0), (-300.0, 4000.0)):
        r = IntensityRange(low, high)
        restorer = load_pretrained(1, r)
        assert (restorer.range.low, restorer.range.high) == (low, high)
        unit = restorer.range.to_unit(r.from_unit(y))
        results.append(restorer.range.from_unit(restorer.restore(unit, 0.1)))
    first, second = results
    np.testing.assert_allclose(second, first * 4300 - 300, atol=1e-3 * 4300)


@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.2])
def test_it_gains_at_every_level_up_to_its_own(sigma: float) -> None:
    """A picture this smooth is easy: less than half of the noise must be left."""
    restored = load_pretrained(1).restore(picture(sigma).astype(np.float32), sigma)
    assert np.sqrt(np.mean((restored - picture(0)) ** 2)) < 0.5 * sigma


def test_the_command_restores_and_samples_without_a_run(tmp_path: Path) -> None:
    counts = np.clip(1000 + 3000 * picture(0.08), 0, 65535).astype(np.uint16)
    tifffile.imwrite(tmp_path / "counts.tif", counts)
    out = tmp_path / "out"
    told = nediff("restore", "--pretrained", tmp_path / "counts.tif", "--out", out, "--samples", 2)
    assert told.code == 0, told.err
    assert "noise estimated" in told.err
    restored = tifffile.imread(out / "restored" / "counts.tif")
    assert restored.dtype == np.uint16
    clean = 1000 + 3000 * picture(0)
    assert np.sqrt(np.mean((restored - clean) ** 2)) < 0.5 * 240
    assert (out / "sd" / "counts.tif").is_file()


def test_images_in_another_range_are_not_added_to_a_folder(tmp_path: Path) -> None:
    """A brighter image changes the range of all: what is there was restored in another one."""
    (tmp_path / "data").mkdir()
    command = ("restore", "--pretrained", tmp_path / "data", "--out", tmp_path / "out")
    command = (*command, "--sigma", 240, "--units", "data")
    dark = np.clip(1000 + 3000 * picture(0.08), 0, 65535).astype(np.uint16)
    tifffile.imwrite(tmp_path / "data/dark.tif", dark)
    assert nediff(*command).code == 0
    assert "were restored" in nediff(*command).err
    tifffile.imwrite(tmp_path / "data/light.tif", 4 * dark)
    told = nediff(*command)
    assert told.code == 2
    assert "dark.tif exists already; choose another --out" in told.err
    assert not (tmp_path / "out/restored/light.tif").exists()


def test_correlated_noise_is_restored_with_a_warning(tmp_path: Path) -> None:
    """As of a developed photograph: no white noise is in it, which is no reason to refuse."""
    smoothed = gaussian_filter(np.random.default_rng(0).standard_normal((96, 96)), 1.0, mode="wrap")
    y = picture(0) + 0.08 * smoothed / smoothed.std()
    tifffile.imwrite(tmp_path / "y.tif", y.astype(np.float32))
    told = nediff("restore", "--pretrained", tmp_path / "y.tif", "--out", tmp_path / "out")
    assert told.code == 0, told.err
    assert "correlated between neighbours" in told.err
    restored = tifffile.imread(tmp_path / "out" / "restored" / "y.tif")
    # most of such noise stays, but none is added
    assert np.std(restored - picture(0)) < 0.08


@pytest.mark.parametrize("channels", [1, 2])
def test_its_samples_are_corrected_where_channels_are_grey_images(channels: int) -> None:
    restorer = load_pretrained(channels)
    y = np.repeat(picture(0.2)[None, :32, :32].astype(np.float32), channels, axis=0)
    shown, drawn = restorer.sample(y, 4), uncorrected(restorer).sample(y, 4)
    assert shown.std(axis=0).mean() > 1.02 * drawn.std(axis=0).mean()
    assert load_pretrained(3).correction is None


def test_its_error_bars_are_said_on_the_card_as_they_were_measured() -> None:
    """On photographs that it was neither trained nor calibrated on, at every level."""
    figures = json.loads((FOLDER / "figures.json").read_text())
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    for source, kind in (("bsd68_gray", "corrected"), ("camera_real/mean", "uncorrected")):
        rows = [r for r in figures[f"samples of {source}"]["levels"] if r["as"] == kind]
        assert [row["sigma"] for row in rows] == [0.05, 0.1, 0.2]
        for row in rows:
            assert f"{row['error2_over_variance']:.2f}, {row['held']:.0%}" in card
            assert 0.8 < row["error2_over_variance"] < 1.1


def test_arguments_that_do_not_fit_are_explained(tmp_path: Path) -> None:
    for arguments, words in (
        (("restore", "--pretrained", "runs/x", "images", "--out", tmp_path), "no run"),
        (("restore", "images", "--out", tmp_path), "--pretrained images"),
    ):
        told = nediff(*arguments)
        assert told.code == 2
        assert words in told.err


def test_the_card_says_what_it_is_not_good_for() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert "Not good for" in card
    assert "BSD68" in card
