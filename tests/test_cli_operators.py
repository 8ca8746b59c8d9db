"""Operators through the command line: train, resume, restore, evaluate, and every refusal."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
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
from nediff.cli.console import console, warnings
from nediff.cli.seen import describe, say_what_is_seen
from nediff.data import open_measurements, read_plain
from nediff.problem import Problem, cartesian_mask, random_mask
from nediff.recipes import recipe_named
from nediff.runs import spare_of
from nediff.training import Trainer
from tests.command import SIGMA, Outcome, nediff, smooth, succeeded, tree
from tests.test_cli_refusals import assert_refused

Array = NDArray[Any]
H, W = 32, 36
TINY = ("--steps", 4, "--size", "tiny", "--crop", 16, "--batch", 2)
MASK = random_mask(0.7, (H, W), 3).numpy()
KERNEL = np.outer([1.0, 3, 1], [1.0, 2, 4, 2, 1])
COLUMNS = cartesian_mask((H, W), 3, 1)[0].numpy()


def pictures(channels: int = 1) -> NDArray[np.float32]:
    """Four clean images, (4, C, H, W)."""
    rows = [[smooth(i + 7 * c, H, W) for c in range(channels)] for i in range(4)]
    return np.array(rows, dtype=np.float32)


def measured(problem: Problem, channels: int = 1) -> list[NDArray[np.float32]]:
    """Four measurements (C', h, w) in unit intensities, with noise of SIGMA."""
    clean = open_measurements(pictures(channels), axes="NCHW", range=(0, 1))
    noisy = clean.simulate(SIGMA, 5, problem)
    return [noisy.image(i) for i in range(4)]


def eight_bits(values: Array, where: Array | float = 1.0) -> NDArray[np.uint8]:
    """Unit intensities as 1 to 255; 0 where nothing is measured."""
    bits = np.clip(np.rint(255 * values), 1, 255) * (np.asarray(where) != 0)
    return np.asarray(bits, dtype=np.uint8)


def write_png(path: Path, image: Array) -> None:
    pixels = np.moveaxis(image, 0, 2) if len(image) > 1 else image[0]
    path.write_bytes(imagecodecs.png_encode(np.ascontiguousarray(pixels)))


def write_inpainting(data: Path) -> tuple[object, ...]:
    write_png(data.parent / "mask.png", eight_bits(np.ones((1, H, W)), MASK))
    for i, y in enumerate(measured(Problem.inpainting(MASK, SIGMA))):
        write_png(data / f"a{i}.png", eight_bits(y, MASK))
    return "--mask", data.parent / "mask.png", "--range", 0, 255


def write_demosaicing(data: Path) -> tuple[object, ...]:
    for i, y in enumerate(measured(Problem.demosaicing(SIGMA, "GBRG"), 3)):
        tifffile.imwrite(data / f"a{i}.tif", np.moveaxis(y, 0, 2), photometric="rgb")
    return "--pattern", "gbrg"


def write_raw(data: Path) -> tuple[object, ...]:
    for i, y in enumerate(measured(Problem.demosaicing(SIGMA, "BGGR", raw=True), 3)):
        write_png(data / f"a{i}.png", eight_bits(y))
    return "--pattern", "BGGR", "--range", 0, 255


def write_blur(data: Path) -> tuple[object, ...]:
    np.save(data.parent / "kernel.npy", KERNEL)
    for i, y in enumerate(measured(Problem.blur(KERNEL, SIGMA))):
        tifffile.imwrite(data / f"a{i}.tif", y[0])
    return "--kernel", data.parent / "kernel.npy"


def write_super_resolution(data: Path) -> tuple[object, ...]:
    for i, y in enumerate(measured(Problem.super_resolution(2, SIGMA))):
        write_png(data / f"a{i}.png", eight_bits(y))
    return "--factor", 2, "--range", 0, 255


def write_mri(data: Path) -> tuple[object, ...]:
    np.save(data.parent / "columns.npy", COLUMNS > 0)
    problem = Problem.mri(np.tile(COLUMNS, (H, 1)), SIGMA)
    for i, y in enumerate(measured(problem)):
        np.save(data / f"a{i}.npy", (3 * (y[0] + 1j * y[1])).astype(np.complex64))
    return "--mask", data.parent / "columns.npy", "--range", 0, 3


WRITERS: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "inpainting": write_inpainting,
    "demosaicing": write_demosaicing,
    "raw": write_raw,
    "blur": write_blur,
    "super_resolution": write_super_resolution,
    "mri": write_mri,
}


class Trained:
    """Per operator, measurements and a run on them, made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outcomes: dict[str, Outcome] = {}
        self._options: dict[str, tuple[object, ...]] = {}

    def data(self, name: str) -> Path:
        self.command(name)
        return self.folder / name / "data"

    def run(self, name: str) -> Path:
        command = self.command(name)
        run = self.folder / name / "run"
        if name not in self.outcomes:
            self.outcomes[name] = succeeded(*command, "--out", run)
        return run

    def command(self, name: str) -> tuple[object, ...]:
        """`train DATA ...` without --out."""
        data = self.folder / name / "data"
        if name not in self._options:
            data.mkdir(parents=True)
            operator = "demosaicing" if name == "raw" else name
            self._options[name] = ("--operator", operator, *WRITERS[name](data))
        return ("train", data, "--sigma", SIGMA, *TINY, *self._options[name])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("operators"))


def config_of(run: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text())
    return config


def read(path: Path) -> Array:
    """An image as it is stored."""
    if path.suffix == ".npy":
        return np.asarray(np.load(path))
    if path.suffix == ".png":
        return np.asarray(imagecodecs.png_decode(path.read_bytes()))
    return np.asarray(tifffile.imread(path))


# --- train, save, restore -------------------------------------------------------------------------

EXPECTED = {
    "inpainting": ("a0.png", (H, W), np.uint8, (H, W)),
    "demosaicing": ("a0.tif", (H, W, 3), np.float32, (H, W, 3)),
    "raw": ("a0.png", (H, W, 3), np.uint8, (H, W, 3)),
    "blur": ("a0.tif", (H - 2, W - 4), np.float32, (H - 2, W - 4)),
    "super_resolution": ("a0.png", (H, W), np.uint8, (H, W)),
    "mri": ("a0.npy", (2, H, W), np.float32, (2, H, W)),
}
"""Name, shape and type of a restored file, and the shape of a sample."""


@pytest.mark.parametrize("name", WRITERS)
def test_round_trip(trained: Trained, tmp_path: Path, name: str) -> None:
    run = trained.run(name)
    succeeded(
        *("restore", run, trained.data(name), "--out", tmp_path),
        *("--samples", 2, "--steps", 3),
    )
    file, shape, dtype, sampled = EXPECTED[name]
    restored = read(tmp_path / "restored" / file)
    assert restored.shape == shape
    assert restored.dtype == dtype
    assert len(list((tmp_path / "restored").iterdir())) == 4
    for kind in ("mean/a0.tif", "sd/a0.tif", "samples/a0_1.tif"):
        values = read(tmp_path / kind)
        assert values.shape == sampled
        assert values.dtype == np.float32
    same = expected_by_hand(run, trained.data(name), file, shape)
    np.testing.assert_allclose(restored, same, atol=0.51 if dtype == np.uint8 else 1e-5)


def expected_by_hand(run: Path, data: Path, file: str, shape: tuple[int, ...]) -> Array:
    """What the Restorer gives for the first file, in data units and as stored."""
    restorer = package.load(run)
    stored = next(data.glob("a0.*"))
    y = open_measurements(stored, range=restorer.range).image(0)
    x = restorer.range.from_unit(restorer.restore(y))
    if x.shape[-2:] != shape[:2] and len(x) == 1:  # the frame of a blur
        x = x[:, 1:-1, 2:-2]
    x = np.moveaxis(x, 0, 2) if shape[-1] == 3 else x
    clipped = np.clip(x, 0, 255) if file.endswith("png") else x
    return clipped.reshape(shape)


def test_what_a_run_says_and_keeps(trained: Trained) -> None:
    said = {
        "inpainting": "of 36 × 32 pixels are measured",
        "demosaicing": "Bayer pattern GBRG, masked images of three channels",
        "raw": "Bayer pattern BGGR, raw mosaics of one channel",
        "blur": "blur by a kernel of 5 × 3 pixels",
        "super_resolution": "super-resolution by a factor of 2",
        "mri": "of a k-space of 36 × 32 is sampled",
    }
    for name, words in said.items():
        run = trained.run(name)
        err = trained.outcomes[name].err
        assert words in err
        assert "the instrument alone sees" in err
        assert "operator.safetensors" in (run / "README.md").read_text()
        kind = "demosaicing" if name == "raw" else name
        assert config_of(run)["operator"]["kind"] == kind
    assert config_of(trained.run("raw"))["data"]["channels"] == 1
    assert config_of(trained.run("raw"))["network"]["channels"] == 3
    assert config_of(trained.run("mri"))["data"]["low"] == 0


def test_the_part_that_no_group_shows_is_warned_about() -> None:
    symmetric = Problem.blur(np.ones((5, 5)), SIGMA)
    with warnings.capture() as warned:
        say_what_is_seen(symmetric, recipe_named("paper", "blur"))
    assert "Careful: the group 'turns'" in warned.get()
    with warnings.capture() as warned:  # a recipe that does not rely on the group
        say_what_is_seen(symmetric, recipe_named("default", "blur"))
    assert warned.get() == ""
    mask = Problem.inpainting(MASK, SIGMA)
    with console.capture() as shown, warnings.capture() as warned:
        say_what_is_seen(mask, recipe_named("paper", "inpainting"))
    assert "through the group 'shifts', 100%" in " ".join(shown.get().split())
    assert warned.get() == ""
    assert describe(Problem.denoising(SIGMA)) == "denoising"


def test_restored_values_are_better_than_the_missing_ones(trained: Trained, tmp_path: Path) -> None:
    succeeded("restore", trained.run("inpainting"), trained.data("inpainting"), "--out", tmp_path)
    for i in range(4):
        restored = read(tmp_path / f"restored/a{i}.png") / 255
        assert np.abs(restored - smooth(i, H, W))[MASK == 0].mean() < 0.1


# --- formats that cannot hold the result ----------------------------------------------------------


def test_a_grey_photograph_of_a_mosaic_becomes_a_colour_tiff(
    trained: Trained, tmp_path: Path
) -> None:
    mosaic = read(trained.data("raw") / "a0.png")
    (tmp_path / "in").mkdir()
    Image.fromarray(mosaic).save(tmp_path / "in" / "a0.jpg")
    succeeded("restore", trained.run("raw"), tmp_path / "in", "--out", tmp_path / "out")
    assert [p.name for p in (tmp_path / "out" / "restored").iterdir()] == ["a0.tif"]
    after = read(tmp_path / "out" / "restored" / "a0.tif")
    assert (after.shape, after.dtype) == ((H, W, 3), np.uint8)
    with tifffile.TiffFile(tmp_path / "out" / "restored" / "a0.tif") as tif:
        assert tif.pages[0].photometric == tifffile.PHOTOMETRIC.RGB  # type: ignore[union-attr]
    write_png(tmp_path / "in" / "a0.png", mosaic[None])
    tifffile.imwrite(tmp_path / "in" / "a0.tif", mosaic)
    assert_refused(
        tmp_path,
        "would both be written to",
        *("restore", trained.run("raw"), tmp_path / "in", "--out", tmp_path / "other"),
    )


def test_a_stack_of_mosaics(trained: Trained, tmp_path: Path) -> None:
    pages = np.stack([read(trained.data("raw") / f"a{i}.png") for i in range(3)])
    tifffile.imwrite(
        tmp_path / "stack.tif", pages, photometric="miniswhite", metadata={"axes": "ZYX"}
    )
    succeeded("restore", trained.run("raw"), tmp_path / "stack.tif", "--out", tmp_path)
    after = read(tmp_path / "restored" / "stack.tif")
    assert (after.shape, after.dtype) == ((3, H, W, 3), np.uint8)
    succeeded("restore", trained.run("raw"), trained.data("raw"), "--out", tmp_path / "single")
    np.testing.assert_array_equal(after[1], read(tmp_path / "single" / "restored" / "a1.png"))


def test_a_finer_photograph_stays_one(trained: Trained, tmp_path: Path) -> None:
    Image.fromarray(read(trained.data("super_resolution") / "a0.png")).save(tmp_path / "a.jpg")
    succeeded("restore", trained.run("super_resolution"), tmp_path / "a.jpg", "--out", tmp_path)
    with Image.open(tmp_path / "restored" / "a.jpg") as after:
        assert (after.format, after.mode, after.size) == ("JPEG", "L", (W, H))


@pytest.mark.parametrize("layout", ["complex128 stack", "YXC", "CYX tif"])
def test_k_space_in_other_forms(trained: Trained, tmp_path: Path, layout: str) -> None:
    values = read(trained.data("mri") / "a0.npy")
    succeeded("restore", trained.run("mri"), trained.data("mri"), "--out", tmp_path / "first")
    first = read(tmp_path / "first" / "restored" / "a0.npy")
    path = tmp_path / "k.npy"
    if layout == "complex128 stack":
        np.save(path, np.asfortranarray(np.stack([values] * 5).astype(np.complex128)))
        first = np.stack([first] * 5)
    elif layout == "YXC":
        np.save(path, np.stack([values.real, values.imag], -1))
        first = np.moveaxis(first, 0, 2)
    else:
        path = tmp_path / "k.tif"
        parts = np.stack([values.real, values.imag])
        tifffile.imwrite(path, parts, photometric="minisblack", metadata={"axes": "CYX"})
    succeeded("restore", trained.run("mri"), path, "--out", tmp_path / "out")
    after = read(tmp_path / "out" / "restored" / path.name)
    assert (after.shape, after.dtype) == (first.shape, np.float32)
    np.testing.assert_allclose(after, first, atol=1e-5)


def test_complex_images_stay_complex_where_nothing_else_changes(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    noise = random.standard_normal((2, 8, H, W)) * SIGMA
    stack = np.stack([smooth(i, H, W) for i in range(8)]) + noise[0] + 1j * noise[1]
    np.save(tmp_path / "stack.npy", stack.astype(np.complex64))
    images = open_measurements(stack)
    assert (images.channels, len(images)) == (2, 8)
    np.testing.assert_allclose(images.range.from_unit(images.image(3))[1], stack[3].imag, atol=1e-6)
    command = ("train", tmp_path / "stack.npy", "--sigma", SIGMA, "--range", 0, 1, *TINY)
    succeeded(*command, "--out", tmp_path / "run")
    succeeded("restore", tmp_path / "run", tmp_path / "stack.npy", "--out", tmp_path)
    after = np.load(tmp_path / "restored" / "stack.npy")
    assert (after.shape, after.dtype) == (stack.shape, np.complex64)
    assert np.abs(after - stack).mean() < 0.2
    assert np.abs(after.imag).mean() < 0.2


# --- intensity range ------------------------------------------------------------------------------


def test_zeros_of_missing_pixels_are_not_in_the_range(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    np.save(tmp_path / "mask.npy", MASK.astype(bool))
    for i, y in enumerate(measured(Problem.inpainting(MASK, SIGMA))):
        counts = np.rint(1000 + 200 * y[0]) * MASK
        tifffile.imwrite(data / f"a{i}.tif", counts.astype(np.uint16))
    options = ("--operator", "inpainting", "--mask", tmp_path / "mask.npy", *TINY)
    command = ("train", data, "--sigma", 20, "--units", "data", *options)
    succeeded(*command, "--out", tmp_path / "run")
    found = config_of(tmp_path / "run")["data"]
    assert 900 < found["low"] < 1060
    assert 1100 < found["high"] < 1300
    outcome = succeeded("restore", tmp_path / "run", data, "--out", tmp_path / "out")
    assert "Careful" not in outcome.err
    after = read(tmp_path / "out" / "restored" / "a1.tif")
    assert after.dtype == np.uint16
    assert np.abs(after - (1000 + 200 * smooth(1, H, W))).mean() < 25


def test_range_of_k_space(trained: Trained, tmp_path: Path) -> None:
    mask = trained.folder / "mri" / "columns.npy"
    options = ("--operator", "mri", "--mask", mask, *TINY)
    command = ("train", trained.data("mri"), "--sigma", 3 * SIGMA, "--units", "data", *options)
    outcome = succeeded(*command, "--out", tmp_path / "run")
    found = config_of(tmp_path / "run")["data"]
    assert found["low"] == 0
    assert 1.5 < found["high"] < 4  # of images up to 3 × 0.8
    assert "99.9th percentile of the magnitude of the zero-filled images" in outcome.err
    assert "zero-filled" in found["range_chosen"]
    restored = succeeded(
        "restore", tmp_path / "run", trained.data("mri"), "--out", tmp_path / "out"
    )
    assert "Careful" not in restored.err
    np.save(tmp_path / "loud.npy", 50 * read(trained.data("mri") / "a0.npy"))
    loud = succeeded("restore", tmp_path / "run", tmp_path / "loud.npy", "--out", tmp_path / "loud")
    assert "Careful" in loud.err
    for low in (-1, 1):
        assert_refused(
            tmp_path, "begins at 0", *command, "--out", tmp_path / "no", "--range", low, 3
        )


# --- simulated measurements, evaluation -----------------------------------------------------------


def clean_folder(folder: Path, channels: int = 1, height: int = H, width: int = W) -> Path:
    folder.mkdir(parents=True)
    for i in range(4):
        image = np.stack([smooth(i + 7 * c, height, width) for c in range(channels)], -1)
        write_picture(folder / f"a{i}.tif", image.astype(np.float32))
    return folder


def write_picture(path: Path, image: Array) -> None:
    """(H, W, C) as TIFF, grey or RGB."""
    rgb = image.shape[2] == 3
    pixels = image if rgb else image[..., 0]
    tifffile.imwrite(path, pixels, photometric="rgb" if rgb else "minisblack")


SIMULATED: dict[str, tuple[int, tuple[object, ...]]] = {
    "inpainting": (1, ("--mask-fraction", 0.6, "--mask-seed", 4, "--group", "turns", "--ei", 0.5)),
    "demosaicing": (3, ()),
    "super_resolution": (1, ("--factor", 2, "--recipe", "ei", "--group", "shifts")),
    "mri": (1, ("--mask-fraction", 0.4, "--kind", "unrolled")),
}


@pytest.mark.parametrize("name", SIMULATED)
def test_simulated_measurements(tmp_path: Path, name: str) -> None:
    channels, options = SIMULATED[name]
    clean = clean_folder(tmp_path / "clean", channels, 33, 37)  # odd: 2 × 2 does not divide it
    run = tmp_path / "run"
    command = ("train", clean, "--simulate", SIGMA, "--operator", name, *TINY, *options)
    succeeded(*command, "--out", run)
    before = tree(run)
    succeeded(*command, "--out", run, "--resume")
    assert tree(run)["model.safetensors"] == before["model.safetensors"]
    config = config_of(run)
    assert config["data"]["simulate"] == SIGMA
    if name == "inpainting":
        assert (config["recipe"]["ei"], config["recipe"]["group"]) == (0.5, "turns")
    evaluation = ("--simulate", SIGMA, "--samples", 2, "--json", tmp_path / "figures.json")
    page = tmp_path / "page.html"
    outcome = succeeded("evaluate", run, clean, *evaluation, "--html", page)
    assert page.read_text(encoding="utf-8").count('alt="truth"') == 3
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["levels"]) == 5
    assert figures["levels"][-1]["psnr"] > 15
    assert "samples differ from the measurement by" in outcome.out


@pytest.mark.parametrize("name", ["inpainting", "raw", "blur"])
def test_evaluate_measurements(trained: Trained, tmp_path: Path, name: str) -> None:
    run, data = trained.run(name), trained.data(name)
    blind = succeeded("evaluate", run, data)
    assert "without truth" in blind.out
    channels = 3 if name == "raw" else 1
    clean = clean_folder(tmp_path / "clean", channels)
    if name != "blur":
        for path in clean.iterdir():
            write_picture(path, 255 * tifffile.imread(path).reshape(H, W, channels))
    page = tmp_path / "page.html"
    outcome = succeeded("evaluate", run, data, "--clean", clean, "--samples", 2, "--html", page)
    assert "first guess PSNR" in outcome.out
    text = page.read_text(encoding="utf-8")
    assert text.count('alt="error bar"') == text.count('alt="truth"') > 0
    write_picture(clean / "a0.tif", smooth(0, H + 1, W)[..., None].repeat(channels, -1))
    assert_refused(
        tmp_path, r"its clean partner a0\.tif is 36 × 33", "evaluate", run, data, "--clean", clean
    )


def test_evaluations_that_do_not_fit(trained: Trained, tmp_path: Path) -> None:
    colour, grey = clean_folder(tmp_path / "colour", 3), clean_folder(tmp_path / "grey")
    run = trained.run("raw")
    match = r"grey has 1 channel\(s\); this run restores images of 3"
    assert_refused(tmp_path, match, "evaluate", run, grey, "--simulate", SIGMA)
    match = r"colour has 3 channel\(s\); this run was trained on 1"
    assert_refused(tmp_path, match, "evaluate", run, colour)
    small = clean_folder(tmp_path / "small", height=20)
    run = trained.run("inpainting")
    match = r"a0\.tif: A measurement of 36 × 20 pixels does not fit the mask"
    assert_refused(tmp_path, match, "evaluate", run, small)
    assert_refused(tmp_path, match, "evaluate", run, small, "--simulate", SIGMA)


# --- resume ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["inpainting", "mri"])
def test_interrupted_and_resumed(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    uninterrupted = trained.run(name)
    true_step = Trainer.step

    def step(self: Trainer, number: int) -> float:
        if number == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return true_step(self, number)

    monkeypatch.setattr(Trainer, "step", step)
    command = (*trained.command(name), "--out", tmp_path / "run")
    assert nediff(*command).code == 128 + signal.SIGINT
    monkeypatch.setattr(Trainer, "step", true_step)
    succeeded(
        *("train", trained.data(name), "--out", tmp_path / "run", "--resume"),
    )
    weights = [(f / "model.safetensors").read_bytes() for f in (uninterrupted, tmp_path / "run")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("inpainting", ("--operator", "denoising"), "begun with inpainting, not with --operator"),
        ("inpainting", ("--mask-fraction", 0.7), "begun with another mask, not with --mask-fr"),
        ("inpainting", ("--mask", "inverted.png"), "begun with another mask, not with --mask"),
        ("inpainting", ("--group", "turns"), "begun without it, not with --group turns"),
        ("inpainting", ("--ei", 2), r"begun with 0\.0, not with --ei 2"),
        ("inpainting", ("--factor", 2), "--factor does not belong to --operator inpainting"),
        ("raw", ("--pattern", "RGGB"), "begun with another pattern, not with --pattern RGGB"),
        ("blur", ("--kernel", "other.npy"), "begun with another kernel, not with --kernel"),
        ("super_resolution", ("--factor", 3), "begun with another factor, not with --factor 3"),
        ("super_resolution", ("--kernel", "other.npy"), "begun with another kernel"),
    ],
)
def test_resuming_with_another_operator(
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    options: tuple[object, ...],
    match: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_png(Path("inverted.png"), eight_bits(np.ones((1, H, W)), 1 - MASK))
    np.save("other.npy", np.eye(3))
    run = shutil.copytree(trained.run(name), tmp_path / "run")
    command = ("train", trained.data(name), "--out", run, "--resume")
    assert_refused(tmp_path, match, *command, *options)


def test_resuming_with_the_same_operator(trained: Trained, tmp_path: Path) -> None:
    for name in ("inpainting", "raw", "blur", "super_resolution", "mri"):
        run = shutil.copytree(trained.run(name), tmp_path / name)
        succeeded(*trained.command(name), "--out", run, "--resume")


# --- refusals: options ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--mask", "m.png"), "--mask does not belong to --operator denoising, only to inpainting"),
        (("--ei", 1), "--ei does not belong to --operator denoising"),
        (("--group", "turns"), "--group does not belong to --operator denoising"),
        (("--operator", "blur", "--mask-fraction", 0.5), "--mask-fraction does not belong"),
        (("--operator", "mri", "--factor", 2), "--factor does not belong.*super_resolution"),
        (("--operator", "inpainting"), "needs to know which pixels are measured"),
        (("--operator", "mri"), "needs to know which part of k-space"),
        (("--operator", "blur"), "needs its kernel"),
        (("--operator", "super_resolution"), "give --factor"),
        (("--operator", "demosaicing"), "give --pattern RGGB, BGGR, GRBG or GBRG"),
        (("--operator", "super_resolution", "--factor", 1), "--factor must be 2 or more"),
        (("--operator", "inpainting", "--mask-seed", 1), "give --mask-fraction too"),
        (("--operator", "inpainting", "--mask-fraction", 1.5), "not a fraction between 0 and 1"),
        (("--operator", "mri", "--mask-fraction", "nan"), "not a fraction between 0 and 1"),
        (
            ("--operator", "inpainting", "--mask", "m.png", "--mask-fraction", 0.5),
            "--mask or --mask-fraction, not both",
        ),
        (("--operator", "inpainting", "--mask-fraction", 0.5, "--ei", -1), "0 or more, and fin"),
        (("--operator", "inpainting", "--mask-fraction", 0.5, "--ei", "inf"), "0 or more, and fin"),
        (
            ("--operator", "inpainting", "--mask-fraction", 0.5, "--group", "turns"),
            "is for the equivariance term.*give it a weight with --ei",
        ),
        (("--operator", "blur", "--kernel", "k.npy"), "k.npy does not exist"),
        (("--operator", "inpainting", "--mask", "m.png"), "m.png does not exist"),
        (("--operator", "blur", "--kernel", "k.npy", "--recipe", "best"), "no recipe 'best'"),
        (("--recipe", "ei"), "no recipe 'ei' for denoising"),
    ],
)
def test_options_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[object, ...], match: str
) -> None:
    monkeypatch.chdir(tmp_path)
    clean_folder(tmp_path / "data")
    command = ("train", "data", "--sigma", SIGMA, *TINY, "--out", "out")
    assert_refused(tmp_path, match, *command, *options)


def test_options_that_are_none(tmp_path: Path) -> None:
    for options in (("--operator", "magic"), ("--pattern", "RGBG"), ("--group", "mirrors")):
        outcome = nediff("train", tmp_path, "--out", tmp_path / "out", *options)
        assert outcome.code == 2
        assert f"Invalid value for '{options[0]}'" in outcome.err


# --- refusals: masks and kernels ------------------------------------------------------------------


def mask_refused(tmp_path: Path, match: str, mask: Path, operator: str = "inpainting") -> None:
    data = tmp_path / "data"
    if not data.exists():
        clean_folder(data)
    option = "--kernel" if operator in ("blur", "super_resolution") else "--mask"
    factor = ("--factor", 4) if operator == "super_resolution" else ()
    command = ("train", data, "--simulate", SIGMA, *TINY, "--out", tmp_path / "out")
    assert_refused(tmp_path, match, *command, "--operator", operator, option, mask, *factor)


def saved(tmp_path: Path, values: Array, name: str = "m.npy") -> Path:
    np.save(tmp_path / name, values)
    return tmp_path / name


def test_masks_that_are_none(tmp_path: Path) -> None:
    mask_refused(
        tmp_path, r"a0\.tif: A measurement of 36 × 32 pixels", saved(tmp_path, MASK.T.copy())
    )
    mask_refused(tmp_path, "m.npy: The mask is zero everywhere", saved(tmp_path, 0 * MASK))
    mask_refused(tmp_path, "m.npy is nonzero everywhere", saved(tmp_path, 1 + MASK))
    mask_refused(tmp_path, "does not fit images with 1", saved(tmp_path, np.arange(9)))
    two = np.stack([MASK, 1 - MASK])
    mask_refused(tmp_path, r"m.npy: A mask of shape \(2, 32, 36\)", saved(tmp_path, two))
    mask_refused(tmp_path, "finite real numbers", saved(tmp_path, MASK * np.nan))
    mask_refused(tmp_path, "finite real numbers", saved(tmp_path, MASK + 1j))
    (tmp_path / "m.png").write_text("a text")
    mask_refused(tmp_path, r"m\.png cannot be read", tmp_path / "m.png")
    (tmp_path / "m.npy").write_text("a text")
    mask_refused(tmp_path, r"m\.npy cannot be read", tmp_path / "m.npy")
    Image.fromarray(eight_bits(np.ones((H, W)), MASK)).save(tmp_path / "m.jpg")
    mask_refused(tmp_path, r"m\.jpg must be a \.png, \.tif or \.npy", tmp_path / "m.jpg")
    corner = np.fft.ifftshift(COLUMNS)
    mask_refused(tmp_path, "leaves out the centre", saved(tmp_path, corner), "mri")


def test_masks_in_every_form(tmp_path: Path) -> None:
    bits = eight_bits(np.ones((H, W)), MASK)
    np.save(tmp_path / "bool.npy", MASK > 0)
    write_png(tmp_path / "grey.png", bits[None])
    write_png(tmp_path / "colour.png", np.stack([bits] * 3))
    tifffile.imwrite(tmp_path / "bool.tif", MASK > 0)
    tifffile.imwrite(tmp_path / "rgb.tif", np.stack([bits] * 3, -1), photometric="rgb")
    for path in tmp_path.iterdir():
        np.testing.assert_array_equal(read_plain(path) != 0, MASK > 0)
    np.save(tmp_path / "three.npy", np.stack([MASK, 1 - MASK, MASK], -1))
    assert read_plain(tmp_path / "three.npy").shape == (3, H, W)


def test_kernels_that_are_none(tmp_path: Path) -> None:
    mask_refused(tmp_path, "m.npy: The values of the .*kernel", saved(tmp_path, -np.eye(3)), "blur")
    mask_refused(tmp_path, "m.npy: A blur kernel is", saved(tmp_path, np.ones(4)), "blur")
    large = saved(tmp_path, np.ones((40, 3)))
    mask_refused(tmp_path, r"a0\.tif has 36 × 32 pixels, fewer than the kernel", large, "blur")
    mask_refused(
        tmp_path, "smaller than the factor of 4", saved(tmp_path, np.eye(3)), "super_resolution"
    )


# --- refusals: data -------------------------------------------------------------------------------


def train_refused(trained: Trained, tmp_path: Path, match: str, name: str, data: Path) -> None:
    _, _, *options = trained.command(name)
    assert_refused(tmp_path, match, "train", data, *options, "--out", tmp_path / "out")
    match = match.replace("for demosaicing.*", "this run was trained on")
    restore = ("restore", trained.run(name), data, "--out", tmp_path / "out")
    assert_refused(tmp_path, match, *restore)


def copied(trained: Trained, tmp_path: Path, name: str) -> Path:
    return Path(shutil.copytree(trained.data(name), tmp_path / name))


def test_values_where_nothing_is_measured(trained: Trained, tmp_path: Path) -> None:
    data = copied(trained, tmp_path, "inpainting")
    image = read(data / "a2.png")
    row, column = np.argwhere(MASK == 0)[0]
    image[row, column] = 1
    write_png(data / "a2.png", image[None])
    place = f"row {row}, column {column}"
    match = rf"a2\.png has values other than 0 at 1 place.*{place}; multiply.*mask inverted\?"
    train_refused(trained, tmp_path, match, "inpainting", data)
    assert_refused(tmp_path, match, "evaluate", trained.run("inpainting"), data)

    data = copied(trained, tmp_path, "demosaicing")
    colour = read(data / "a3.tif")
    tifffile.imwrite(data / "a3.tif", colour + 0.5, photometric="rgb")
    train_refused(
        trained, tmp_path, r"a3\.tif has .*is the Bayer pattern another", "demosaicing", data
    )

    data = copied(trained, tmp_path, "mri")
    np.save(data / "a1.npy", read(data / "a1.npy") + np.complex64(0.5))
    train_refused(trained, tmp_path, r"a1\.npy has values.*multiply it", "mri", data)


def test_sizes_that_do_not_fit(trained: Trained, tmp_path: Path) -> None:
    data = copied(trained, tmp_path, "inpainting")
    write_png(data / "b.png", read(data / "a0.png")[None, :-1])
    match = r"b\.png: A measurement of 36 × 31 pixels does not fit the mask, which is for 36 × 32"
    train_refused(trained, tmp_path, match, "inpainting", data)
    data = copied(trained, tmp_path, "mri")
    np.save(data / "b.npy", read(data / "a0.npy")[:, :-2])
    match = r"b\.npy: A measurement of 34 × 32 pixels does not fit the mask"
    train_refused(trained, tmp_path, match, "mri", data)


def test_channels_that_do_not_fit(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    for i in range(4):
        np.save(tmp_path / "two" / f"a{i}.npy", np.ones((H, W, 2)) * smooth(i, H, W)[..., None])
    match = r"a0\.npy has 2 channel\(s\); for demosaicing.*"
    train_refused(trained, tmp_path, match, "demosaicing", tmp_path / "two")
    grey = clean_folder(tmp_path / "grey")
    _, _, *options = trained.command("mri")
    command = ("train", grey, *options, "--out", tmp_path / "out")
    assert_refused(tmp_path, r"a0\.tif has 1 channel\(s\); for mri it must be k-space", *command)
    restore = ("restore", trained.run("mri"), grey, "--out", tmp_path / "out")
    assert_refused(tmp_path, r"a0\.tif has 1 channel\(s\); this run was trained on 2", *restore)
    colour = clean_folder(tmp_path / "colour", 3)
    simulate = ("--simulate", SIGMA, *TINY, "--out", tmp_path / "out")
    mri = ("--operator", "mri", "--mask-fraction", 0.5)
    assert_refused(tmp_path, "convert them to grey", "train", colour, *simulate, *mri)
    bayer = ("--operator", "demosaicing")
    assert_refused(tmp_path, "it needs 3 channels", "train", grey, *simulate, *bayer)


def test_a_run_that_lost_its_operator(trained: Trained, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained.run("inpainting"), tmp_path / "run"))
    (run / "operator.safetensors").unlink()
    spare_of(run / "operator.safetensors").unlink()
    data = trained.data("inpainting")
    restore = ("restore", run, data, "--out", tmp_path / "out")
    assert_refused(tmp_path, "operator.safetensors is missing", *restore)
    command = ("train", data, "--out", run, "--resume")
    assert_refused(tmp_path, "operator.safetensors is missing", *command)
    shutil.copy(trained.run("blur") / "operator.safetensors", run)
    assert_refused(tmp_path, "operator.safetensors does not fit the operator", *restore)


def test_patterns_are_spelt_as_built() -> None:
    for pattern in ("RGGB", "BGGR", "GRBG", "GBRG"):
        assert f"pattern {pattern}" in describe(Problem.demosaicing(SIGMA, pattern))
