"""What `nediff diagnose` says of images whose noise and flaws are known."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import convolve

from nediff.cli.diagnose import lines_of
from nediff.data import open_measurements
from nediff.diagnosis import diagnose
from nediff.diagnosis.contrast import contrast_of
from nediff.diagnosis.expectation import expectation_of
from nediff.diagnosis.flaws import (
    blockiness_of,
    blocky,
    clipping_of,
    copies_of,
    equal_channels,
    rounding_of,
)
from nediff.diagnosis.scales import compare, spectrum_of
from nediff.noise import Blocks, gather_blocks
from nediff.noise.blocks import cosine_energies
from tests.command import float_folder, nediff, succeeded
from tests.pictures import clean, measured, noisy

SIGMA = 0.05
SEEDS = range(2)


def with_noise(pictures: NDArray[Any], sigma: Any, seed: int) -> NDArray[np.float32]:
    noise = np.random.default_rng([seed, 7]).normal(size=pictures.shape)
    return (pictures + sigma * noise).astype(np.float32)


def codes(values: NDArray[Any], **options: Any) -> set[str]:
    return {w.code for w in diagnose(measured(values, **options)).warnings}


@pytest.fixture(scope="module")
def pictures() -> NDArray[np.float64]:
    """As images are: a spectrum 1/f², and all contrasts."""
    return clean("power", count=24)


# --- warnings fire when they should, and only then ---


def test_good_data_give_no_warning() -> None:
    """Four sets of 300 images, as many squares of 64 × 64 pixels, which is enough."""
    for seed in range(4):
        found = diagnose(noisy(clean("power", count=300, seed=seed), SIGMA, seed))
        assert [w.code for w in found.warnings] == []
        assert found.noise.sigma.value == pytest.approx(SIGMA, rel=0.03)
        assert found.contrast.plausible
        assert all(scale.safe for scale in found.scales)


def test_each_kind_of_bad_noise_has_its_warning(pictures: NDArray[np.float64]) -> None:
    """Two seeds each; 24 images are few, which is said too."""
    kernel = np.outer([1, 2, 1], [1, 2, 1]) / 6.0
    bright = 0.5 + 3 * (clean("smooth", count=24) - 0.5) * 0.8
    slanted = SIGMA * np.sqrt(np.clip(0.2 + 1.6 * bright, 0.05, None))
    by_place = SIGMA * np.linspace(0.5, 1.5, 64)[:, None]
    colours = np.repeat(pictures, 3, axis=1)
    by_channel = SIGMA * np.array([1, 1.5, 1])[:, None, None]
    for seed in SEEDS:
        white = np.random.default_rng(seed).normal(size=pictures.shape)
        blurred = convolve(white, kernel[None, None], mode="wrap")
        assert "correlated" in codes((pictures + SIGMA * blurred).astype(np.float32))
        assert "signal_dependent" in codes(with_noise(bright, slanted, seed))
        assert "positions" in codes(with_noise(pictures, by_place, seed))
        assert "channels" in codes(with_noise(colours, by_channel, seed))
        assert "little_noise" in codes(with_noise(pictures, 0.001, seed))
        plain = codes(with_noise(pictures, SIGMA, seed))
        assert plain == {"few_images"}


def test_images_of_two_noise_levels_are_told_from_images_of_one(tmp_path: Path) -> None:
    """A quarter of the images with 1.5 or 2 times the noise, or half of it; taking turns or not.

    The single σ is then that of the least noisy, within a tenth: what the warning says of it.
    """
    for name, count in (("power", 24), ("smooth", 100), ("edges", 100)):
        pictures = clean(name, count=count)
        for seed, factor in ((0, 1.5), (1, 2.0), (2, 0.5)):
            few = np.arange(count) < count // 4 if seed else np.arange(count) % 4 == 0
            sigma = SIGMA * np.where(few, factor, 1.0)[:, None, None, None]
            found = diagnose(measured(with_noise(pictures, sigma, seed)))
            assert "images" in {w.code for w in found.warnings}, (name, factor)
            assert found.noise.sigma.value == pytest.approx(SIGMA * min(factor, 1), rel=0.1)
            assert "images" not in codes(with_noise(pictures, SIGMA, seed)), name
    stray = np.where(np.arange(24) == 5, 2.0, 1.0)[:, None, None, None]  # one of 24 does no harm
    assert "images" not in codes(with_noise(clean("power", count=24), SIGMA * stray, 0))
    two = with_noise(
        clean("smooth", count=2, side=128), SIGMA * np.array([1, 2])[:, None, None, None], 0
    )
    for i, image in enumerate(two):
        tifffile.imwrite(tmp_path / f"{i}.tif", image[0])
    out = tmp_path.parent / f"{tmp_path.name}-run"
    said = nediff("train", tmp_path, "--sigma", "auto", "--range", 0, 1, "--steps", 1, "--out", out)
    assert "The images differ in their noise" in " ".join(said.err.split())


def test_the_command_tells_train_what_noise_it_is(pictures: NDArray[np.float64]) -> None:
    """var = 0.05² (0.2 + 1.6 x) is a gain of 0.004; what is left without light is read noise."""
    white = np.random.default_rng(0).normal(size=pictures.shape)
    blurred = convolve(white, np.outer([1, 2, 1], [1, 2, 1])[None, None] / 6.0, mode="wrap")
    correlated = diagnose(measured((pictures + SIGMA * blurred).astype(np.float32)))
    assert " --sigma correlated " in correlated.command
    # with the noise of flat places one would promise far too much
    assert correlated.expectation is None
    assert any("not foretold" in line for line in lines_of(correlated))
    assert correlated.scales == ()
    assert any(line.startswith("coarser images: not compared") for line in lines_of(correlated))
    bright = 0.5 + 3 * (clean("smooth", count=24) - 0.5) * 0.8
    slanted = SIGMA * np.sqrt(np.clip(0.2 + 1.6 * bright, 0.05, None))
    found = diagnose(measured(with_noise(bright, slanted, 0)))
    words = found.command.split()
    gain, read = (float(words[words.index(name) + 1]) for name in ("--gain", "--read-noise"))
    assert gain == pytest.approx(0.004, rel=0.2)
    assert read**2 == pytest.approx(found.noise.signal.constant, rel=0.02)
    assert "--sigma" not in words


def test_bad_images_have_their_warnings(pictures: NDArray[np.float64]) -> None:
    stripes = clean("stripes", count=24)
    stripes[..., :32] = stripes[..., 32:]
    found = codes(with_noise(stripes, SIGMA, 0))
    assert {"one_contrast", "one_scale"} <= found
    nothing = diagnose(measured(with_noise(np.full((24, 1, 64, 64), 0.5), SIGMA, 0)))
    assert "only_noise" in {advice.code for advice in nothing.warnings}
    assert nothing.expectation is None  # it would want a million images
    colours = np.repeat(with_noise(pictures, SIGMA, 0), 3, axis=1)
    assert "equal_channels" in codes(colours)
    copied = with_noise(pictures, SIGMA, 0)
    copied[3], copied[5] = copied[4], 0.25
    assert {"duplicates", "constant"} <= codes(copied)


def test_the_files_have_their_warnings(tmp_path: Path, pictures: NDArray[np.float64]) -> None:
    values = np.clip(with_noise(pictures[:6], SIGMA, 0), 0, 1)
    for i, value in enumerate(values):
        image = Image.fromarray(np.round(value[0] * 255).astype(np.uint8))
        image.save(tmp_path / f"{i}.jpg", quality=90)
    jpeg = diagnose(open_measurements(tmp_path))
    assert "jpeg" in {w.code for w in jpeg.warnings}
    coarse = np.round(values * 12).astype(np.uint8)
    assert "quantised" in codes(coarse, range=None)
    over = np.clip(with_noise(pictures + 0.42, SIGMA, 0), 0, 1)
    assert "clipped" in codes(over)


def test_detectors_over_many_seeds(pictures: NDArray[np.float64]) -> None:
    """20 seeds each: every fault is found in all, and none is found where there is none.

    No false alarm in 20 seeds bounds their rate at 14 % (95 % confidence); the tests' own
    accounts are 1e-5 and less.
    """
    for seed in range(20):
        values = with_noise(0.25 + pictures[:8] / 2, 0.03, seed)
        eight = np.round(np.clip(values, 0, 1) * 255).astype(np.uint8)
        good, bytes_ = list(values), [(e / 255).astype(np.float32) for e in eight]
        assert not blocky(*blockiness_of(good))
        assert not blocky(*blockiness_of(bytes_))
        assert blocky(*blockiness_of([_jpeg(e[0]) for e in eight]))
        assert blocky(*blockiness_of([_jpeg(e[0])[:, 3:, 5:] for e in eight]))
        assert rounding_of(good, seed).step is None
        assert rounding_of(bytes_, seed).step == pytest.approx(1 / 255, rel=1e-3)
        clipping = clipping_of(bytes_, rounding_of(bytes_, seed))
        assert (clipping.low, clipping.high) == (0, 0)
        cut = [np.clip(v, 0.45, None) for v in good]
        clipping = clipping_of(cut, rounding_of(cut, seed))
        assert clipping.low == pytest.approx(np.mean([(c == c.min()).mean() for c in cut]), rel=0.1)
        assert clipping.high == 0


def _jpeg(values: NDArray[np.uint8]) -> NDArray[np.float32]:
    """After JPEG of quality 60, (1, H, W)."""
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "JPEG", quality=60)
    back = np.asarray(Image.open(buffer)).astype(np.float32) / 255
    return back[None]


def test_copies_are_found_and_not_imagined(pictures: NDArray[np.float64]) -> None:
    """24 different images have 276 pairs, none alike, at three levels and two seeds."""
    for seed in range(2):
        for sigma in (0.02, 0.1, 0.3):
            values = with_noise(pictures, sigma, seed)
            found = copies_of(measured(values), sigma, 0)
            assert (found.exact, found.near, found.constant) == ((), (), ())
        sigma = 0.05
        again = with_noise(pictures[:3], sigma, seed + 100)
        clear = [i for i in range(3) if pictures[i].std() > 0.05]
        found = copies_of(
            measured(np.concatenate([with_noise(pictures, sigma, seed), again])), sigma, 0
        )
        assert {(f"array#{i}", f"array#{24 + i}") for i in clear} <= set(found.near)
        assert len(found.near) <= 3
    values = with_noise(pictures, 0.05, 0)
    values[7] = values[2]
    found = copies_of(measured(values), 0.05, 0)
    assert found.exact == (("array#2", "array#7"),)
    assert found.near == ()
    assert equal_channels([np.ones((3, 4, 4), np.float32)])
    assert not equal_channels([np.ones((1, 4, 4), np.float32)])


# --- scores ---


def test_the_contrast_score_is_free_of_the_noise() -> None:
    """Var(S)/E[S²] with noise up to 0.1 as without: within 0.02, where signal is 0.1 as well."""
    for name in ("power", "edges", "astronaut"):
        pictures = clean(name, count=24)
        exact = gather_blocks(noisy(pictures, 1e-5, 0))  # without any, blocks at the ends are lost
        expected = contrast_of(exact, np.zeros(len(exact))).score
        assert expected is not None
        for sigma in (0.03, 0.1):
            blocks = gather_blocks(noisy(pictures, sigma, 0))
            found = contrast_of(blocks, np.full(len(blocks), sigma**2)).score
            assert found == pytest.approx(expected, abs=0.02)


def test_the_contrast_score_of_a_known_spread() -> None:
    """White patches of contrast 10^U, U even over d decades: the score says d.

    S of a patch is a mean of 63 squares, which adds 2/63 to R, and 4000 patches leave 3 %.
    """
    rng = np.random.default_rng(0)
    for decades in (0.5, 1.0, 2.0):
        contrast = 10 ** rng.uniform(-1 - decades, -1, (4000, 1, 1))
        pixels = (contrast * rng.normal(size=(4000, 8, 8))).astype(np.float32)
        zeros = np.zeros(4000)
        group = np.arange(4000) % 20
        energy = cosine_energies(pixels)
        blocks = Blocks(energy, zeros, group, zeros, zeros, group, group, 0.0, (0.0, 1.0))
        found = contrast_of(blocks, np.zeros(len(blocks)))
        assert found.decades == pytest.approx(decades, rel=0.2)
    flat = noisy(np.full((8, 1, 32, 32), 0.5), 0.1, 0)
    blocks = gather_blocks(flat)
    assert contrast_of(blocks, np.full(len(blocks), 0.01)).score is None


def test_the_scale_score_knows_scale_invariance() -> None:
    """Spectra 1/f² look alike at every scale; waves of one length do not. With noise or without."""
    for sigma in (0.01, 0.05):
        for name, alike in (("power", True), ("stripes", False)):
            values = list(with_noise(clean(name, count=24), sigma, 0))
            spectra = {f: spectrum_of(values, f, sigma**2) for f in (1, 2, 4)}
            for factor in (2, 4):
                found = compare(spectra[1], spectra[factor], factor)
                assert found.safe == alike, (sigma, name, found)
    assert compare(None, None, 2).score is None


def test_white_noise_leaves_no_spectrum() -> None:
    """σ² is taken out of the energies, and nothing of 3 standard errors remains in most rings."""
    values = list(with_noise(np.full((40, 1, 64, 64), 0.5), 0.1, 0))
    for factor in (1, 2, 4):
        spectrum = spectrum_of(values, factor, 0.01)
        assert spectrum is not None
        assert np.isnan(spectrum.rings).all()
        assert spectrum.noise == pytest.approx(0.01 / factor**2)


def test_the_wiener_bounds() -> None:
    """Of white images of variance v in white noise both are v σ²/(v + σ²): the best there is.

    But for the mean of the blocks, which is left as it is: (63 v σ²/(v + σ²) + σ²)/64.
    """
    rng = np.random.default_rng(0)
    values = [
        (rng.normal(0.5, np.hypot(0.1, 0.05), (1, 64, 64))).astype(np.float32) for _ in range(30)
    ]
    found = expectation_of(values, 0.05, 30 * 64 * 64)
    assert found is not None
    left = (63 * 0.01 * 0.0025 / 0.0125 + 0.0025) / 64
    assert found.wiener == pytest.approx(-10 * np.log10(left), abs=0.1)
    assert found.adaptive == pytest.approx(found.wiener, abs=0.15)
    assert found.squares == 30
    assert expectation_of(values, 0.0, 100) is None


def test_adaptive_filters_gain_more_where_images_have_flat_places() -> None:
    values = list(with_noise(clean("edges", count=16), 0.05, 0))
    found = expectation_of(values, 0.05, 16 * 64 * 64)
    assert found is not None
    assert found.noisy < found.wiener < found.adaptive < found.likely


# --- the command ---


def test_the_text(tmp_path: Path) -> None:
    data = float_folder(tmp_path / "data", count=6, height=96, width=80)
    out = succeeded("diagnose", data).out
    assert "6 image(s) of 80 × 96 pixels, 1 channel(s), float32 (TIFF)" in out
    assert "noise: σ = 0.1" in out or "noise: σ = 0.09" in out
    assert "white: correlation" in out
    assert f"Next: nediff train {data} --sigma 0." in out


def test_the_json(tmp_path: Path) -> None:
    data, file = float_folder(tmp_path / "data", count=4, height=64), tmp_path / "new" / "d.json"
    succeeded("diagnose", data, "--json", file, "--seed", "3")
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["noise"]["sigma"]["value"] == pytest.approx(0.1, rel=0.1)
    assert found["summary"]["images"] == 4
    assert found["noise"]["whiteness"]["white"] is True
    assert len(found["noise"]["whiteness"]["correlation"]) == 4
    assert {w["code"] for w in found["warnings"]} >= {"few_images"}
    assert [s["factor"] for s in found["scales"]] == [2, 4]
    assert sorted(p.name for p in file.parent.iterdir()) == ["d.json"]


def test_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "a<b"
    data, file = float_folder(folder, count=4, height=64), tmp_path / "d.html"
    done = succeeded("diagnose", data, "--html", file)
    assert done.err.split("The page is at ")[1].strip() == str(file.resolve())
    page = file.read_text(encoding="utf-8")
    assert page.count("<svg") == 5
    assert page.count("<figure>") == 4
    assert "a&lt;b" in page
    assert "a<b" not in page
    assert "http" not in page.replace("http://www.w3.org", "").replace(
        "http://purl.org", ""
    ).replace("http://creativecommons.org", "").replace("https://matplotlib.org", "")


def test_data_units_range_and_axes_come_back_in_the_command(tmp_path: Path) -> None:
    values = with_noise(clean("smooth", count=4), 0.05, 0)[:, 0] * 1000
    np.save(tmp_path / "d.npy", values)
    out = succeeded("diagnose", tmp_path / "d.npy", "--axes", "NHW", "--range", "0", "1000").out
    (line,) = (line for line in out.splitlines() if line.startswith("Next: "))
    words = line.split()
    assert float(words[words.index("--sigma") + 1]) == pytest.approx(50, rel=0.05)
    assert line.endswith("--units data --range 0 1000 --axes NHW --out runs/restorer")


@pytest.mark.parametrize(
    ("make", "extra", "message"),
    [
        (lambda p: p / "nothing", (), "does not exist"),
        (
            lambda p: _saved(p / "small.tif", np.random.default_rng(0).random((5, 6))),
            (),
            "smaller than 8",
        ),
        (lambda p: _saved(p / "even.tif", np.ones((32, 32))), (), "same value"),
        (lambda p: _saved(p / "nan.tif", np.full((32, 32), np.nan)), (), "NaN"),
        (lambda p: float_folder(p / "data"), ("--json", "{}"), "is a folder"),
        (lambda p: float_folder(p / "data"), ("--html", "{}"), "is a folder"),
        (lambda p: float_folder(p / "data"), ("--range", "2", "1"), "not a range"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, make: Any, extra: Any, message: str) -> None:
    data = make(tmp_path)
    outcome = nediff("diagnose", data, *(word.format(tmp_path) for word in extra))
    assert outcome.code == 2
    assert message in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def _saved(path: Path, values: NDArray[Any]) -> Path:
    tifffile.imwrite(path, values.astype(np.float32))
    return path


def test_help_stays_quick() -> None:
    """Neither torch nor scipy is imported for it."""
    code = (
        "import sys; from nediff.cli import main\n"
        "assert not {'torch', 'scipy', 'nediff.diagnosis'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
