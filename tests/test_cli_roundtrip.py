"""What goes in through the command line comes out again: formats, types, units, seeds, figures."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
import tifffile
import yaml
from numpy.typing import NDArray
from PIL import Image

import nediff as package
from nediff.data import read_about
from tests.command import SIGMA, TINY, float_folder, nediff, noisy, smooth, succeeded

BITS = 2048
"""The images the run is trained on are 11-bit numbers in uint16."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on 11-bit images, whose range is found from them."""
    folder = tmp_path_factory.mktemp("roundtrip")
    (folder / "data").mkdir()
    for i in range(4):
        image = np.clip(np.rint(BITS * noisy(i)), 0, BITS - 1).astype(np.uint16)
        (folder / "data" / f"a{i}.png").write_bytes(imagecodecs.png_encode(image))
    sigma = ("--sigma", SIGMA * BITS, "--units", "data")
    succeeded("train", folder / "data", *sigma, "--out", folder / "run", "--steps", 20, *TINY)
    return folder / "run"


def config_of(run: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text())
    return config


def with_range(run: Path, tmp_path: Path, low: float, high: float) -> Path:
    """The same network for data of another range, with the same σ in unit intensities."""
    other = Path(shutil.copytree(run, tmp_path / "run"))
    config = config_of(run)
    config["data"] |= {"low": low, "high": high}
    (other / "config.yaml").write_text(yaml.safe_dump(config))
    return other


def test_eleven_bits_fill_the_range(run: Path) -> None:
    data = config_of(run)["data"]
    assert 0 <= data["low"] < 0.2 * BITS
    assert 0.8 * BITS < data["high"] < 1.2 * BITS
    assert data["sigma"] * (data["high"] - data["low"]) == pytest.approx(SIGMA * BITS)
    sections = {"version", "data", "operator", "network", "recipe", "training"}
    assert set(config_of(run)) == sections


def test_sixteen_bit_png_in_its_own_units(run: Path, tmp_path: Path) -> None:
    succeeded("restore", run, run.parent / "data", "--out", tmp_path)
    for i in range(4):
        before = imagecodecs.png_decode((run.parent / f"data/a{i}.png").read_bytes())
        after = imagecodecs.png_decode((tmp_path / f"restored/a{i}.png").read_bytes())
        assert after.dtype == np.uint16
        assert after.shape == before.shape
        assert abs(after.mean() - before.mean()) < 0.03 * BITS
        truth = BITS * smooth(i)
        assert np.mean((after - truth) ** 2) < np.mean((before - truth) ** 2)
    assert [p.name for p in tmp_path.glob("[!.]*")] == ["restored"]


def test_stack_of_sixteen_bit_pages(run: Path, tmp_path: Path) -> None:
    stack = np.stack([np.rint(BITS * noisy(i)) for i in range(3)]).clip(0).astype(np.uint16)
    tifffile.imwrite(
        tmp_path / "stack.tif",
        stack,
        photometric="minisblack",
        compression="zlib",
        metadata={"axes": "ZYX"},
    )
    succeeded("restore", run, tmp_path / "stack.tif", "--out", tmp_path, "--samples", 2)
    after = tifffile.imread(tmp_path / "restored" / "stack.tif")
    assert after.dtype == np.uint16
    assert after.shape == stack.shape
    assert np.abs(after.mean((1, 2)) - stack.mean((1, 2))).max() < 0.03 * BITS
    assert tifffile.imread(tmp_path / "sd" / "stack.tif").shape == stack.shape


def test_tiffs_say_how_they_were_made(run: Path, tmp_path: Path) -> None:
    """What the web page's files say: model, σ, seed; of a stack with several levels, all."""
    stack = np.stack([np.rint(BITS * noisy(i)) for i in range(2)]).clip(0).astype(np.uint16)
    tifffile.imwrite(tmp_path / "stack.tif", stack, photometric="minisblack")
    (tmp_path / "levels.csv").write_text(
        f"name,sigma\nstack.tif#0,{SIGMA}\nstack.tif#1,{SIGMA / 2}\n"
    )
    asked = ("--samples", 2, "--steps", 3, "--seed", 5, "--sigma", tmp_path / "levels.csv")
    asked = (*asked, "--axes", "NHW")
    succeeded("restore", run, tmp_path / "stack.tif", "--out", tmp_path / "out", *asked)
    data = config_of(run)["data"]
    names = {"restored/stack.tif": "restored", "samples/stack_1.tif": "sample 1"}
    for name, holds in {**names, "sd/stack.tif": "sd"}.items():
        about = read_about(tmp_path / "out" / name)
        assert about == {
            "software": f"nediff {package.__version__}",
            "model": "run",
            "source": "stack.tif",
            "intensity_range": [data["low"], data["high"]],
            "sigma_of_range": [SIGMA, SIGMA / 2],
            "sigma_in_data_units": pytest.approx(
                [s * (data["high"] - data["low"]) for s in (SIGMA, SIGMA / 2)]
            ),
            "samples": 2,
            "seed": 5,
            "solver": "dpm2m",
            "steps": 3,
            "holds": holds,
        }
        assert tifffile.imread(tmp_path / "out" / name).shape == stack.shape


@pytest.mark.parametrize("suffix", ["tif", "npy"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_stays_float(run: Path, tmp_path: Path, suffix: str, dtype: type) -> None:
    run = with_range(run, tmp_path, -3.0, 5.0)
    image = (8 * noisy(1) - 3).astype(dtype)
    path = tmp_path / f"image.{suffix}"
    if suffix == "npy":
        np.save(path, image)
    else:
        tifffile.imwrite(path, image)
    succeeded("restore", run, path, "--out", tmp_path / "out")
    out = tmp_path / "out" / "restored" / path.name
    after = np.load(out) if suffix == "npy" else tifffile.imread(out)
    assert after.dtype == dtype
    assert after.shape == image.shape
    assert not np.array_equal(after, np.rint(after))
    assert abs(after.mean() - image.mean()) < 0.03 * 8


@pytest.mark.parametrize(("suffix", "kind"), [("jpg", "JPEG"), ("jpeg", "JPEG"), ("webp", "WEBP")])
def test_photographs(run: Path, tmp_path: Path, suffix: str, kind: str) -> None:
    run = with_range(run, tmp_path, 0, 255)
    config = config_of(run)
    image = np.clip(np.rint(255 * noisy(2)), 0, 255).astype(np.uint8)
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(image).save(path)
    if kind == "WEBP":  # knows no grey: three channels, which this run was not trained on
        outcome = nediff("restore", run, path, "--out", tmp_path / "out")
        assert outcome.code == 2
        assert "has 3 channel(s); this run was trained on 1" in outcome.err
        return
    assert config["data"]["high"] == 255
    succeeded("restore", run, path, "--out", tmp_path / "out", "--samples", 1)
    with Image.open(tmp_path / "out" / "restored" / path.name) as after:
        assert (after.format, after.mode, after.size) == (kind, "L", image.shape[::-1])
        assert abs(np.asarray(after).mean() - image.mean()) < 0.03 * 255
    assert sorted(p.name for p in (tmp_path / "out").glob("[!.]*")) == [
        "mean",
        "restored",
        "samples",
    ]


def test_colour_webp(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    image = np.stack([255 * noisy(i) for i in range(3)], -1).clip(0, 255).astype(np.uint8)
    for name in ("a.webp", "b.webp"):
        Image.fromarray(image).save(tmp_path / "data" / name, lossless=True)
    command = ("train", tmp_path / "data", "--sigma", SIGMA, "--out", tmp_path / "run")
    succeeded(*command, "--range", 0, 255, "--steps", 2, *TINY)
    source = tmp_path / "data" / "a.webp"
    succeeded("restore", tmp_path / "run", source, "--out", tmp_path / "out", "--samples", 2)
    with Image.open(tmp_path / "out" / "restored" / "a.webp") as after:
        assert (after.format, after.mode, after.size) == ("WEBP", "RGB", (44, 40))
    assert tifffile.imread(tmp_path / "out" / "mean" / "a.tif").shape == image.shape


def drawn(out: Path, stem: str, n: int) -> NDArray[np.float32]:
    return np.stack([tifffile.imread(out / "samples" / f"{stem}_{k}.tif") for k in range(n)])


def sample(run: Path, images: Path, out: Path, *options: object) -> None:
    settings = ("--samples", 3, "--steps", 4)
    succeeded("restore", run, images, "--out", out, *settings, *options)


def test_samples_mean_and_sd_in_the_units_of_the_data(run: Path, tmp_path: Path) -> None:
    sample(run, run.parent / "data", tmp_path)
    for i in range(4):
        samples = drawn(tmp_path, f"a{i}", 3)
        mean = tifffile.imread(tmp_path / "mean" / f"a{i}.tif")
        sd = tifffile.imread(tmp_path / "sd" / f"a{i}.tif")
        assert samples.dtype == mean.dtype == sd.dtype == np.float32
        np.testing.assert_allclose(mean, samples.astype(float).mean(0), rtol=1e-6)
        np.testing.assert_allclose(sd, samples.astype(float).std(0, ddof=1), rtol=1e-4, atol=1e-2)
        assert abs(mean.mean() - BITS * smooth(i).mean()) < 0.05 * BITS
        assert 0.002 * BITS < sd.mean() < 0.3 * BITS
    assert not (tmp_path / "samples" / "a0_3.tif").exists()


def test_a_sample_depends_on_its_image_and_seed_alone(run: Path, tmp_path: Path) -> None:
    data = run.parent / "data"
    sample(run, data, tmp_path / "all")
    sample(run, data / "a2.png", tmp_path / "alone")
    sample(run, data / "a2.png", tmp_path / "seed", "--seed", 1)
    together, alone = drawn(tmp_path / "all", "a2", 3), drawn(tmp_path / "alone", "a2", 3)
    np.testing.assert_array_equal(together, alone)
    restored = [(tmp_path / d / "restored/a2.png").read_bytes() for d in ("all", "alone", "seed")]
    assert restored[0] == restored[1] == restored[2]
    assert np.abs(alone - drawn(tmp_path / "seed", "a2", 3)).mean() > 0.002 * BITS
    assert np.abs(alone[0] - alone[1]).mean() > 0.002 * BITS


def test_sub_folders_are_kept(run: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "in" / name).mkdir(parents=True)
        shutil.copy(run.parent / "data" / "a0.png", tmp_path / "in" / name / "a.png")
    sample(run, tmp_path / "in" / "*" / "*.png", tmp_path / "out")
    for name in ("one", "two"):
        assert (tmp_path / "out" / "restored" / name / "a.png").is_file()
        assert (tmp_path / "out" / "mean" / name / "a.tif").is_file()


def test_sigma_in_the_units_of_the_data_or_as_a_fraction(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    image = np.clip(np.rint(65535 * noisy(3)), 0, 65535).astype(np.uint16)
    (tmp_path / "data" / "a.png").write_bytes(imagecodecs.png_encode(image))
    command = ("train", tmp_path / "data", "--range", 0, 65535, "--steps", 1, *TINY)
    succeeded(*command, "--sigma", 4915, "--units", "data", "--out", tmp_path / "units")
    succeeded(*command, "--sigma", repr(4915 / 65535), "--out", tmp_path / "fraction")
    assert config_of(tmp_path / "units") == config_of(tmp_path / "fraction")
    weights = [(tmp_path / d / "model.safetensors").read_bytes() for d in ("units", "fraction")]
    assert weights[0] == weights[1]


# --- evaluate -----------------------------------------------------------------------------------


def evaluation(tmp_path: Path, *arguments: object) -> tuple[dict[str, Any], str]:
    outcome = succeeded("evaluate", *arguments, "--json", tmp_path / "new" / "figures.json")
    figures: dict[str, Any] = json.loads((tmp_path / "new" / "figures.json").read_text())
    return figures, outcome.out


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    (tmp_path / "clean").mkdir()
    for i in range(4):
        image = np.rint(BITS * smooth(i)).astype(np.uint16)
        (tmp_path / "clean" / f"a{i}.png").write_bytes(imagecodecs.png_encode(image))
    return tmp_path / "clean"


def test_evaluate_with_clean_images(run: Path, clean: Path, tmp_path: Path) -> None:
    figures, printed = evaluation(tmp_path, run, run.parent / "data", "--clean", clean)
    (level,) = figures["levels"]
    data = config_of(run)["data"]
    assert level["sigma"] == data["sigma"]
    assert level["psnr_noisy"] == pytest.approx(-20 * np.log10(data["sigma"]), abs=0.5)
    assert level["psnr"] > level["psnr_noisy"]
    assert 0 < level["ssim"] < 1
    assert figures["spread"]["samples"] == 8
    assert figures["spread"]["error2_over_variance"] > 0
    assert "error²/variance of 8 samples" in printed
    assert f"{level['psnr']:.2f}" in printed


def test_evaluate_with_simulated_noise(run: Path, clean: Path, tmp_path: Path) -> None:
    noise = ("--simulate", SIGMA * BITS, "--units", "data")
    figures, _ = evaluation(tmp_path, run, clean, *noise, "--samples", 0)
    levels = figures["levels"]
    assert len(levels) == 5
    assert [level["sigma"] for level in levels] == sorted(level["sigma"] for level in levels)
    for level in levels:
        assert level["psnr_noisy"] == pytest.approx(-20 * np.log10(level["sigma"]), abs=0.5)
    assert figures["spread"] is None
    again, _ = evaluation(tmp_path, run, clean, *noise, "--samples", 0)
    assert again == figures
    other, _ = evaluation(tmp_path, run, clean, *noise, "--samples", 0, "--seed", 5)
    assert other != figures


def test_evaluate_without_truth(run: Path, tmp_path: Path) -> None:
    figures, printed = evaluation(tmp_path, run, run.parent / "data")
    assert figures["levels"] == []
    assert figures["spread"] is None
    assert figures["images"] == 4
    assert figures["blind"]["estimated_psnr"] > -20 * np.log10(config_of(run)["data"]["sigma"])
    low, high = figures["blind"]["interval"]
    assert low < figures["blind"]["estimated_psnr"] < high
    lines = printed.splitlines()
    # sentences are one line each, whatever their length
    assert lines[0].startswith("without truth")
    assert lines[0].endswith("by the network itself")
    assert sum("by SURE (1 is right" in line for line in lines) == 1
    assert figures["consistency"] == figures["blind"]["consistency"] > 0
    assert len(figures["blind"]["pairs"]["classes"]) == 10
    assert figures["blind"]["pairs"]["true_ratio"] is None


# --- the package --------------------------------------------------------------------------------


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    data = float_folder(tmp_path / "data")
    restorer = package.fit(data, SIGMA, steps=3, size="tiny", out=tmp_path / "run")
    restorer.save(tmp_path / "copy")
    y = noisy(8, 33, 47).astype(np.float32)
    estimate, samples = restorer.restore(y), restorer.sample(y, 2, seed=4)
    for folder in ("run", "copy"):
        loaded = package.load(tmp_path / folder)
        np.testing.assert_array_equal(loaded.restore(y), estimate)
        np.testing.assert_array_equal(loaded.sample(y, 2, seed=4), samples)
        assert loaded.config == restorer.config
        assert "σ = 0.1" in (tmp_path / folder / "README.md").read_text()
    again = package.fit(data, SIGMA, steps=3, size="tiny")
    np.testing.assert_array_equal(again.restore(y), estimate)


def test_fit_refuses_what_the_command_line_refuses(tmp_path: Path) -> None:
    data = float_folder(tmp_path / "data")
    for match, options in {
        "not both": {"steps": 1, "minutes": 1.0},
        "steps": {"steps": 0},
        "no recipe": {"steps": 1, "recipe": "best"},
        "size": {"steps": 1, "size": "huge"},
    }.items():
        with pytest.raises(package.NediffError, match=match):
            package.fit(data, SIGMA, out=tmp_path / "run", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_version_and_help() -> None:
    assert succeeded("--version").out == f"nediff {package.__version__}\n"
    text = succeeded("--help").out
    assert all(command in text for command in ("train", "restore", "evaluate", "demo"))
    for command in ("train", "restore", "evaluate", "demo"):
        assert "--help" in succeeded(command, "--help").out
    assert "Usage" in nediff().out


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_is_quick_because_nothing_heavy_is_imported(arguments: list[str]) -> None:
    program = (
        "import atexit, sys\n"
        "heavy = ('torch', 'numpy', 'deepinv', 'accelerate', 'matplotlib', 'tifffile')\n"
        "atexit.register(lambda: print('HEAVY', [m for m in heavy if m in sys.modules]))\n"
        f"sys.argv = ['nediff', *{arguments!r}]\n"
        "from nediff.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout


def test_images_in_other_units_are_warned_about(run: Path, tmp_path: Path) -> None:
    same = succeeded("restore", run, run.parent / "data", "--out", tmp_path / "same")
    assert "Careful" not in same.err
    (tmp_path / "8bit").mkdir()
    Image.fromarray((255 * smooth(0)).astype(np.uint8)).save(tmp_path / "8bit/a.png")
    dark = succeeded("restore", run, tmp_path / "8bit", "--out", tmp_path / "dark")
    assert "vary less" in dark.err
    (tmp_path / "16bit").mkdir()
    bright = (65535 * smooth(0)).astype(np.uint16)
    (tmp_path / "16bit/a.png").write_bytes(imagecodecs.png_encode(bright))
    wide = succeeded("restore", run, tmp_path / "16bit", "--out", tmp_path / "wide")
    assert "same units" in wide.err
