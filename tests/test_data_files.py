"""Reading: formats, axes, crops, memory."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
import tifffile
from PIL import Image

from nediff.data import ImageFile, list_files
from nediff.data.cache import Lru, Store
from nediff.errors import NediffError

RNG = np.random.default_rng(1)


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return RNG.normal(0.5, 1.0, shape).astype(kind)
    info = np.iinfo(kind)
    return RNG.integers(info.min, info.max, shape, dtype=kind, endpoint=True)


def only(source: object, axes: str | None = None) -> ImageFile:
    (file,) = list_files(source, axes)  # type: ignore[arg-type]
    return file


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("shape", [(13, 17), (13, 17, 3)])
def test_png_keeps_every_bit(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    pixels = values(shape, dtype)
    (tmp_path / "a.png").write_bytes(imagecodecs.png_encode(pixels))
    file = only(tmp_path / "a.png")
    assert (file.format, file.dtype, file.n_images) == ("PNG", np.dtype(dtype), 1)
    assert file.size() == (13, 17)
    expected = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)
    assert file.channels == len(expected)
    np.testing.assert_array_equal(file.read(), expected)


def test_palette_and_one_bit_png(tmp_path: Path) -> None:
    colour = Image.fromarray(values((9, 8, 3), "uint8")).quantize(16)
    colour.save(tmp_path / "p.png")
    expected = np.moveaxis(np.asarray(colour.convert("RGB")), 2, 0)
    np.testing.assert_array_equal(only(tmp_path / "p.png").read(), expected)
    bits = values((9, 8), "uint8") > 127
    Image.fromarray(bits).save(tmp_path / "b.png")
    np.testing.assert_array_equal(only(tmp_path / "b.png").read()[0], bits * np.uint8(255))


@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_alpha(tmp_path: Path, suffix: str) -> None:
    pixels = values((16, 16, 4), "uint8")
    pixels[..., 3] = 255
    Image.fromarray(pixels).save(tmp_path / f"a.{suffix}", lossless=True)
    read = only(tmp_path / f"a.{suffix}").read()
    np.testing.assert_array_equal(read, np.moveaxis(pixels[..., :3], 2, 0))
    pixels[3, 4, 3] = 254
    Image.fromarray(pixels).save(tmp_path / f"b.{suffix}", lossless=True, exact=True)
    with pytest.raises(NediffError, match=rf"b\.{suffix} is partly transparent"):
        only(tmp_path / f"b.{suffix}").read()


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_jpeg_is_what_pillow_decodes(tmp_path: Path, mode: str) -> None:
    Image.fromarray(values((16, 24, 3), "uint8")).convert(mode).save(tmp_path / "a.jpeg")
    expected = np.asarray(Image.open(tmp_path / "a.jpeg")).reshape(16, 24, -1)
    np.testing.assert_array_equal(only(tmp_path / "a.jpeg").read(), np.moveaxis(expected, 2, 0))


TIFF_TYPES = ["uint8", "uint16", "int16", "uint32", "float32", "float64"]


@pytest.mark.parametrize("dtype", TIFF_TYPES)
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_tiff_types(tmp_path: Path, dtype: str, compression: str | None) -> None:
    pixels = values((6, 20, 30), dtype)
    tifffile.imwrite(tmp_path / "a.tif", pixels, compression=compression, photometric="minisblack")
    file = only(tmp_path / "a.tif")
    assert (file.dtype, file.n_images, file.channels) == (np.dtype(dtype), 6, 1)
    assert file.header.mapped == (compression is None)
    for page in (3, 0):
        np.testing.assert_array_equal(file.read(page)[0], pixels[page])
        np.testing.assert_array_equal(file.read_crop(page, 2, 5, 7, 11)[0], pixels[page, 2:9, 5:16])
    with pytest.raises(IndexError):
        file.read(6)


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize(
    ("axes", "shape", "n_images", "channels"),
    [
        ("CYX", (5, 8, 9), 1, 5),
        ("ZCYX", (3, 5, 8, 9), 3, 5),
        ("CZYX", (5, 3, 8, 9), 3, 5),
        ("TZYX", (2, 3, 8, 9), 6, 1),
        ("TZCYX", (2, 3, 2, 8, 9), 6, 2),
    ],
)
def test_tiff_axes_from_metadata(
    tmp_path: Path,
    axes: str,
    shape: tuple[int, ...],
    n_images: int,
    channels: int,
    compression: str | None,
) -> None:
    pixels = values(shape, "uint16")
    tifffile.imwrite(
        tmp_path / "a.tif",
        pixels,
        photometric="minisblack",
        metadata={"axes": axes},
        compression=compression,
    )
    file = only(tmp_path / "a.tif")
    assert (file.n_images, file.channels, file.size()) == (n_images, channels, (8, 9))
    stack = [k for k, letter in enumerate(axes) if letter in "TZ"]
    rest = [axes.index(letter) for letter in "CYX" if letter in axes]
    expected = pixels.transpose(*stack, *rest).reshape(n_images, channels, 8, 9)
    for page in range(n_images):
        np.testing.assert_array_equal(file.read(page), expected[page])


@pytest.mark.parametrize("compression", [None, "lzw"])
@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_rgb_tiff(tmp_path: Path, planar: str, compression: str | None) -> None:
    pixels = values((2, 8, 9, 3) if planar == "contig" else (2, 3, 8, 9), "uint8")
    tifffile.imwrite(
        tmp_path / "a.tif",
        pixels,
        photometric="rgb",
        planarconfig=planar,
        compression=compression,
    )
    file = only(tmp_path / "a.tif")
    expected = np.moveaxis(pixels, 3, 1) if planar == "contig" else pixels
    assert (file.n_images, file.channels) == (2, 3)
    np.testing.assert_array_equal(file.read(1), expected[1])


def test_big_endian_and_pillow_stack(tmp_path: Path) -> None:
    pixels = values((8, 9), "uint16")
    tifffile.imwrite(tmp_path / "a.tif", pixels, byteorder=">")
    read = only(tmp_path / "a.tif").read()
    assert read.dtype == np.dtype("uint16")
    np.testing.assert_array_equal(read[0], pixels)
    pages = [Image.fromarray(values((8, 9), "uint8")) for _ in range(3)]
    pages[0].save(tmp_path / "b.tif", save_all=True, append_images=pages[1:])
    file = only(tmp_path / "b.tif")
    assert file.n_images == 3
    np.testing.assert_array_equal(file.read(2)[0], np.asarray(pages[2]))


@pytest.mark.parametrize("suffix", ["npy", "array", "tif"])
@pytest.mark.parametrize(
    ("shape", "axes", "n_images", "channels", "size"),
    [
        ((8, 9), None, 1, 1, (8, 9)),
        ((8, 9, 4), None, 1, 4, (8, 9)),
        ((8, 9, 5), None, 8, 1, (9, 5)),
        ((5, 8, 9), None, 5, 1, (8, 9)),
        ((1, 8, 9), None, 1, 1, (8, 9)),
        ((3, 8, 4), None, 1, 4, (3, 8)),
        ((6, 8, 9, 2), None, 6, 2, (8, 9)),
        ((6, 2, 8, 9), None, 6, 2, (8, 9)),
        ((5, 8, 9), "CHW", 1, 5, (8, 9)),
        ((3, 8, 9), "CHW", 1, 3, (8, 9)),
        ((8, 9, 5), "hwc", 1, 5, (8, 9)),
        ((3, 8, 9), "NHW", 3, 1, (8, 9)),
        ((6, 8, 9, 7), "NHWC", 6, 7, (8, 9)),
        ((6, 7, 8, 9), "NCHW", 6, 7, (8, 9)),
    ],
)
def test_axes_of_plain_arrays(
    tmp_path: Path,
    shape: tuple[int, ...],
    axes: str | None,
    n_images: int,
    channels: int,
    size: tuple[int, int],
    suffix: str,
) -> None:
    pixels = values(shape, "float32")
    path = tmp_path / f"a.{suffix}"
    if suffix == "npy":
        np.save(path, pixels)
    elif suffix == "tif":
        tifffile.imwrite(path, pixels, photometric="minisblack")
    file = only(pixels if suffix == "array" else path, axes)
    assert (file.n_images, file.channels, file.size()) == (n_images, channels, size)
    together = np.stack([file.read(page) for page in range(n_images)])
    channels_last = shape[-1] == channels and channels > 1
    order = pixels.reshape(n_images, *size, channels) if channels_last else pixels
    expected = np.moveaxis(order, 3, 1) if channels_last else order.reshape(together.shape)
    np.testing.assert_array_equal(together, expected)


def test_natural_order_names_and_what_is_ignored(tmp_path: Path) -> None:
    for name in ["im10.png", "im2.png", "IM1.PNG", ".hidden.png"]:
        (tmp_path / name).write_bytes(imagecodecs.png_encode(values((4, 5), "uint8")))
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "deeper.png").mkdir()
    names = ["IM1.PNG", "im2.png", "im10.png"]
    assert [f.name for f in list_files(tmp_path)] == names
    assert [f.name for f in list_files(str(tmp_path / "im*.png"))] == names[1:]
    assert [f.name for f in list_files([tmp_path / "im10.png", tmp_path / "im2.png"])] == [
        "im10.png",
        "im2.png",
    ]
    (tmp_path / "deeper.png" / "im2.png").write_bytes((tmp_path / "im2.png").read_bytes())
    both = list_files([tmp_path / "im2.png", tmp_path / "deeper.png"])
    assert [f.name for f in both] == ["im2.png", "deeper.png/im2.png"]


def test_reading_gives_a_copy(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(imagecodecs.png_encode(values((4, 5), "uint8")))
    file = only(tmp_path / "a.png")
    first = file.read()
    expected = first.copy()
    first[...] = 0
    np.testing.assert_array_equal(file.read(), expected)


def test_lru_stays_within_its_bound() -> None:
    dropped: list[int] = []
    lru: Lru[np.ndarray] = Lru(100, lambda a: a.nbytes, lambda a: dropped.append(int(a[0])))
    made: list[int] = []

    def get(k: int, size: int = 40) -> None:
        lru.get(k, lambda: (made.append(k), np.full(size, k, np.uint8))[1])

    get(1), get(2), get(1), get(3)  # the least recently used is 2
    assert dropped == [2]
    assert lru.weight == 80
    get(1), get(3)
    assert made == [1, 2, 3]
    get(9, 101)  # too heavy, and yet kept, alone: to be read again in parts
    assert (len(lru), lru.weight, dropped) == (1, 101, [2, 1, 3])
    get(9, 101), get(4)
    assert made == [1, 2, 3, 9, 4]
    assert (len(lru), lru.weight) == (1, 40)


def test_decoded_images_and_handles_are_bounded(tmp_path: Path) -> None:
    for k in range(70):
        tifffile.imwrite(tmp_path / f"{k}.tif", values((16, 16), "uint8"), compression="zlib")
    files = list_files(tmp_path, cache_bytes=16 * 16 * 5)
    for file in files:
        file.read()
    assert len(files[0].store.images) == 5
    assert len(files[0].store.handles) == 64
    open_here = [p for p in os.listdir("/proc/self/fd") if _is_in(p, tmp_path)]
    assert len(open_here) <= 64


def _is_in(descriptor: str, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder))
    except OSError:
        return False


def test_files_can_be_sent_to_another_process(tmp_path: Path) -> None:
    pixels = values((5, 16, 16), "uint8")
    tifffile.imwrite(tmp_path / "a.tif", pixels, compression="zlib", photometric="minisblack")
    file = only(tmp_path / "a.tif")
    file.read(0)
    copy = pickle.loads(pickle.dumps(file))
    assert isinstance(copy.store, Store)
    assert len(copy.store.handles) == 0
    np.testing.assert_array_equal(copy.read(2)[0], pixels[2])


CROP_FROM_HUGE = """
import resource, sys
import numpy as np
from nediff.data import list_files
(file,) = list_files(sys.argv[1])
assert file.n_images == 1 and file.size() == (40_000, 60_000), file.shape
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
crop = file.read_crop(0, 39_000, 59_000, 64, 64)
assert crop[0, 5, 7] == 3, crop
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert used < 50_000, f"{used} kB"
"""


@pytest.mark.parametrize("suffix", ["npy", "tif"])
def test_crop_does_not_load_a_huge_file(tmp_path: Path, suffix: str) -> None:
    path, shape = tmp_path / f"huge.{suffix}", (40_000, 60_000)  # 4.8 GB, all of it a hole
    try:
        if suffix == "npy":
            huge = np.lib.format.open_memmap(path, "w+", np.uint16, shape)
        else:
            huge = tifffile.memmap(path, shape=shape, dtype=np.uint16)
    except OSError as error:
        pytest.skip(f"no sparse files here: {error}")
    huge[39_005, 59_007] = 3
    huge.flush()
    del huge
    subprocess.run([sys.executable, "-c", CROP_FROM_HUGE, str(path)], check=True)
    path.unlink()
