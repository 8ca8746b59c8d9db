"""Every bad input is refused with a sentence that names it."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
import tifffile
from PIL import Image

from nediff.data import list_files, open_measurements
from nediff.errors import NediffError

RNG = np.random.default_rng(5)
GREY = RNG.integers(0, 256, (64, 64)).astype(np.uint8)
RGB = RNG.integers(0, 256, (64, 64, 3)).astype(np.uint8)


def refused(source: object, match: str, **options: object) -> str:
    with pytest.raises(NediffError, match=match) as caught:
        open_measurements(source, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_missing_and_empty(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere does not exist")
    refused([tmp_path / "a.png"], r"a\.png does not exist")
    refused(str(tmp_path / "*.png"), "No image matches")
    refused([], "No image files")
    assert ".webp" in refused(tmp_path, "has no images; the formats read are")
    (tmp_path / "notes.txt").write_text("x")
    refused(tmp_path / "notes.txt", r"notes\.txt is not in a format")
    (tmp_path / "sub").mkdir()
    refused(tmp_path, "only sub-folders; name one of them, such as .*sub")


def test_named_twice(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", GREY)
    refused([tmp_path / "a.npy", tmp_path], r"a\.npy is named twice")


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tif", "npy"])
@pytest.mark.parametrize("content", [b"", b"this is only a text\n" * 50])
def test_renamed_text(tmp_path: Path, suffix: str, content: bytes) -> None:
    (tmp_path / f"a.{suffix}").write_bytes(content)
    refused(tmp_path, rf"a\.{suffix} cannot be read as")


def save(path: Path, compressed: bool) -> None:
    if path.suffix == ".npy":
        np.save(path, GREY)
    elif path.suffix == ".tif":
        stack = np.stack([GREY] * 5)
        compression = "zlib" if compressed else None
        tifffile.imwrite(path, stack, compression=compression, photometric="minisblack")
    else:
        Image.fromarray(RGB).save(path)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("keep", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tif", "npy"])
def test_truncated(tmp_path: Path, suffix: str, keep: float, compressed: bool) -> None:
    path = tmp_path / f"cut.{suffix}"
    save(path, compressed)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data))])
    refused(tmp_path, rf"cut\.{suffix} cannot be read as")


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.95])
def test_truncated_pillow_stack(tmp_path: Path, keep: float) -> None:
    pages = [Image.fromarray(GREY)] * 5
    pages[0].save(tmp_path / "cut.tif", save_all=True, append_images=pages[1:])
    data = (tmp_path / "cut.tif").read_bytes()
    (tmp_path / "cut.tif").write_bytes(data[: int(keep * len(data))])
    refused(tmp_path, r"cut\.tif cannot be read as")


def test_truncated_where_the_decoder_does_not_mind(tmp_path: Path) -> None:
    """libjpeg fills up a tile that is cut short, so its length has to be looked at."""
    tifffile.imwrite(tmp_path / "cut.tif", np.tile(GREY, (4, 4)), tile=(64, 64), compression="jpeg")
    data = (tmp_path / "cut.tif").read_bytes()
    (tmp_path / "cut.tif").write_bytes(data[:-100])
    refused(tmp_path, r"cut\.tif cannot be read as TIFF \(the pixels of page 0 are cut off")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite(tmp_path: Path, bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["nediff.data.scan"], "_BLOCK", 30 * 4)  # bands of four rows
    stack = RNG.random((5, 20, 30)).astype(np.float32)
    stack[3, 7, 11] = stack[3, 7, 12] = stack[3, 15, 2] = bad
    tifffile.imwrite(tmp_path / "a.tif", stack, photometric="minisblack")
    message = refused(tmp_path, r"a\.tif#3 has 3 pixel\(s\)")
    assert "row 7, column 11" in message
    refused(stack, "array#3 has 3 pixel")


def test_mixed_channels_and_types(tmp_path: Path) -> None:
    (tmp_path / "grey.png").write_bytes(imagecodecs.png_encode(GREY))
    (tmp_path / "rgb.png").write_bytes(imagecodecs.png_encode(RGB))
    message = refused(tmp_path, r"grey\.png has 1 channel")
    assert "rgb.png has 3" in message
    (tmp_path / "rgb.png").write_bytes(imagecodecs.png_encode(GREY.astype(np.uint16)))
    message = refused(tmp_path, r"grey\.png is of type uint8")
    assert "rgb.png of uint16" in message
    assert len(open_measurements(tmp_path, range=(0, 255))) == 2


@pytest.mark.parametrize("dtype", ["bool", "U3", "datetime64[s]"])
def test_types_that_are_not_intensities(tmp_path: Path, dtype: str) -> None:
    array = np.ones((8, 8)).astype(dtype) if dtype[0] != "d" else np.zeros((8, 8), dtype)
    refused(array, "which are not intensities")
    np.save(tmp_path / "a.npy", array)
    refused(tmp_path, r"a\.npy holds values of type")


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    np.save(tmp_path / "a.npy", np.array([[Trap()]], dtype=object), allow_pickle=True)
    refused(tmp_path, r"a\.npy cannot be read as")
    assert not (tmp_path / "sprung").exists()


def test_axes(tmp_path: Path) -> None:
    array = RNG.random((6, 7, 8, 9))
    refused(array, "It is not clear which axes")
    refused(array, "name 3", axes="NHW")
    for axes in ("NCHH", "NCDE", "CCHW", "N-HW", "NYHW"):
        refused(array, "not an order", axes=axes)
    refused(RNG.random(9), "It is not clear")
    refused(np.zeros((0, 5)), "empty")
    np.save(tmp_path / "a.npy", array)
    refused(tmp_path, r"a\.npy")
    assert open_measurements(tmp_path, axes="NCHW").channels == 7


@pytest.mark.parametrize("suffix", ["npy", "array", "tif"])
@pytest.mark.parametrize("length", [2, 3, 4])
def test_few_channels_or_few_images(tmp_path: Path, length: int, suffix: str) -> None:
    """A short first axis means one or the other, and only the user knows which."""
    array = RNG.random((length, 20, 30)).astype(np.float32)
    path = tmp_path / f"a.{suffix}"
    if suffix == "npy":
        np.save(path, array)
    elif suffix == "tif":
        tifffile.imwrite(path, array, photometric="minisblack")
    source = array if suffix == "array" else path
    message = refused(source, f"one image of {length} channels or a stack of {length} grey images")
    assert "--axes CHW or --axes NHW" in message
    assert 'axes="CHW"' in message
    assert ("The array" if suffix == "array" else path.name) in message
    channels, stack = open_measurements(source, axes="CHW"), open_measurements(source, axes="NHW")
    assert (len(channels), channels.channels) == (1, length)
    assert (len(stack), stack.channels) == (length, 1)


def test_a_tiff_that_says_its_axes_is_not_asked(tmp_path: Path) -> None:
    array = RNG.random((3, 20, 30)).astype(np.float32)
    for axes, images in (("CYX", 1), ("ZYX", 3), ("TYX", 3)):
        path = tmp_path / f"{axes}.tif"
        tifffile.imwrite(path, array, photometric="minisblack", metadata={"axes": axes})
        assert len(open_measurements(path)) == images
    tifffile.imwrite(tmp_path / "ij.tif", array, imagej=True, metadata={"axes": "ZYX"})
    assert len(open_measurements(tmp_path / "ij.tif")) == 3
    pages = [Image.fromarray(plane) for plane in array]  # separate pages, which nothing joins
    pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
    assert len(open_measurements(tmp_path / "pages.tif")) == 3


@pytest.mark.parametrize("by", ["pillow", "tifffile"])
def test_palette_tiff(tmp_path: Path, by: str) -> None:
    """The values of a palette are numbers of colours, which cannot be averaged."""
    path = tmp_path / "a.tif"
    if by == "pillow":
        Image.fromarray(RGB).quantize(16).save(path)
    else:
        colours = RNG.integers(0, 2**16, (3, 256)).astype(np.uint16)
        tifffile.imwrite(path, GREY, photometric="palette", colormap=colours, compression="zlib")
    message = refused(tmp_path, r"a\.tif has a colour palette")
    assert "convert it to RGB, or to grey" in message


def test_several_series(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as tif:
        tif.write(GREY, photometric="minisblack")
        tif.write(GREY[:32], photometric="minisblack")
    refused(tmp_path, r"a\.tif holds 2 series")


def test_cmyk_and_animation(tmp_path: Path) -> None:
    Image.fromarray(RGB).convert("CMYK").save(tmp_path / "a.jpg")
    refused(tmp_path / "a.jpg", r"a\.jpg has the colour mode CMYK")
    frames = [Image.fromarray(RGB), Image.fromarray(255 - RGB)]
    frames[0].save(tmp_path / "b.webp", save_all=True, append_images=frames[1:])
    refused(tmp_path / "b.webp", "animation of 2 frames")


def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    ihdr = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", ihdr) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(content)
    refused(tmp_path / "a.png", r"a\.png claims more than")
    Image.fromarray(RGB).save(tmp_path / "b.jpg")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    refused(tmp_path / "b.jpg", r"b\.jpg claims more than 2000 pixels")


@pytest.mark.parametrize("sigma", [0.0, -0.1, np.nan, np.inf])
def test_simulated_noise_must_be_positive(sigma: float) -> None:
    refused(RNG.random((8, 8)), "must be a positive number", simulate=sigma)


def test_wrong_format_behind_the_ending(tmp_path: Path) -> None:
    Image.fromarray(RGB).save(tmp_path / "a.jpg")
    (tmp_path / "a.jpg").rename(tmp_path / "a.png")
    with pytest.raises(NediffError, match="do not begin as a PNG does"):
        list_files(tmp_path)
