"""Writing: what is written in the format of a file is read back as it was."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
import tifffile
from PIL import Image

from nediff.data import Form, ImageFile, Sheet, atomic_path, list_files, write_like, write_tiff
from nediff.data import tiff as tiff_module
from nediff.data.formats import ZARR
from nediff.data.header import Header
from nediff.data.layout import Layout
from nediff.errors import NediffError

RNG = np.random.default_rng(2)


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if np.dtype(dtype).kind == "f":
        return RNG.normal(0.5, 1.0, shape).astype(dtype)
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


def make(path: Path, array: np.ndarray, axes: str | None) -> ImageFile:
    if path.suffix == ".png":
        path.write_bytes(imagecodecs.png_encode(array))
    elif path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".tif":
        rgb = axes is not None and "S" in axes
        tifffile.imwrite(
            path,
            array,
            photometric="rgb" if rgb else "minisblack",
            planarconfig=None if not rgb else "contig" if axes.endswith("S") else "separate",
            metadata={"axes": axes},
        )
    else:
        Image.fromarray(array).save(path, lossless=True)
    (file,) = list_files(path)
    return file


CASES: list[tuple[str, str, tuple[int, ...], str | None]] = [
    ("png", "uint8", (8, 9), None),
    ("png", "uint16", (8, 9), None),
    ("png", "uint8", (8, 9, 3), None),
    ("png", "uint16", (8, 9, 3), None),
    ("webp", "uint8", (8, 9, 3), None),
    *[("tif", t, (8, 9), "YX") for t in ("uint8", "uint16", "int16", "uint32", "float64")],
    ("tif", "float32", (3, 8, 9), "ZYX"),
    ("tif", "uint16", (3, 8, 9), "TYX"),
    ("tif", "uint16", (5, 8, 9), "CYX"),
    ("tif", "float32", (5, 2, 8, 9), "CZYX"),
    ("tif", "float32", (2, 2, 5, 8, 9), "TZCYX"),
    ("tif", "uint8", (8, 9, 3), "YXS"),
    ("tif", "uint16", (4, 8, 9, 3), "ZYXS"),
    ("tif", "uint8", (3, 8, 9), "SYX"),
    ("npy", "float64", (8, 9), None),
    ("npy", "uint16", (7, 8, 9), None),
    ("npy", "int64", (8, 9, 3), None),
    ("npy", "float16", (7, 2, 8, 9), None),
]


@pytest.mark.parametrize(("suffix", "dtype", "shape", "axes"), CASES)
def test_round_trip(
    tmp_path: Path, suffix: str, dtype: str, shape: tuple[int, ...], axes: str | None
) -> None:
    array = values(shape, dtype) if dtype != "int64" else RNG.integers(-(2**40), 2**40, shape)
    file = make(tmp_path / f"in.{suffix}", array, axes)
    images = [file.read(page) for page in range(file.n_images)]
    out = tmp_path / "new" / f"out.{suffix}"
    write_like(file, out, (image.astype(np.float64) for image in images))
    (again,) = list_files(out)
    assert (again.format, again.dtype, again.axes) == (file.format, file.dtype, file.axes)
    assert again.shape == file.shape == shape
    for page, image in enumerate(images):
        np.testing.assert_array_equal(again.read(page), image)
    assert [p.name for p in out.parent.iterdir()] == [out.name]


def test_other_programs_see_the_same_array(tmp_path: Path) -> None:
    array = values((4, 8, 9, 3), "uint16")
    file = make(tmp_path / "in.tif", array, "ZYXS")
    write_like(file, tmp_path / "out.tif", [file.read(k) for k in range(4)])
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "out.tif"), array)
    with tifffile.TiffFile(tmp_path / "out.tif") as tif:
        assert tif.pages[0].photometric == tifffile.PHOTOMETRIC.RGB
        assert len(tif.pages) == 4


def test_compressed_tiff_round_trip(tmp_path: Path) -> None:
    array = values((5, 8, 9), "uint16")
    tifffile.imwrite(tmp_path / "in.tif", array, compression="zlib", photometric="minisblack")
    (file,) = list_files(tmp_path / "in.tif")
    write_like(file, tmp_path / "out.tif", [file.read(k) for k in range(5)])
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "out.tif"), array)


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("photometric", ["miniswhite", "minisblack"])
@pytest.mark.parametrize(
    ("axes", "shape"), [("YX", (8, 9)), ("ZYX", (3, 8, 9)), ("CYX", (2, 8, 9))]
)
def test_white_and_black_stay_as_they_are_shown(
    tmp_path: Path, axes: str, shape: tuple[int, ...], photometric: str, compression: str | None
) -> None:
    """Of a file whose low values are white, the same values as black would be its negative."""
    array = values(shape, "uint16")
    tifffile.imwrite(
        tmp_path / "in.tif",
        array,
        photometric=photometric,
        metadata={"axes": axes},
        compression=compression,
    )
    (file,) = list_files(tmp_path / "in.tif")
    np.testing.assert_array_equal(file.read().reshape(-1), array.reshape(-1)[: file.read().size])
    write_like(file, tmp_path / "out.tif", [file.read(k) for k in range(file.n_images)])
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "out.tif"), array)
    with tifffile.TiffFile(tmp_path / "out.tif") as tif:
        assert {page.photometric.name.lower() for page in tif.pages} == {photometric}


def test_a_viewer_shows_the_restored_as_the_source(tmp_path: Path) -> None:
    """By Pillow, which turns the values of a file whose low values are white."""
    array = values((8, 9), "uint8")
    tifffile.imwrite(tmp_path / "in.tif", array, photometric="miniswhite")
    (file,) = list_files(tmp_path / "in.tif")
    write_like(file, tmp_path / "out.tif", [file.read()])
    with Image.open(tmp_path / "in.tif") as source, Image.open(tmp_path / "out.tif") as written:
        np.testing.assert_array_equal(np.asarray(source), 255 - array)
        np.testing.assert_array_equal(np.asarray(written), np.asarray(source))


def test_jpeg_is_close_and_keeps_its_orientation(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 64)[:, None, None] * np.array([1.0, 0.6, 0.2]) + np.zeros(
        (64, 48, 3)
    )
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(ramp.astype(np.uint8)).save(tmp_path / "in.jpg", exif=exif)
    (file,) = list_files(tmp_path / "in.jpg")
    write_like(file, tmp_path / "out.jpg", [file.read()])
    (again,) = list_files(tmp_path / "out.jpg")
    assert np.abs(again.read().astype(int) - file.read()).max() <= 6
    with Image.open(tmp_path / "out.jpg") as picture:
        assert picture.getexif()[0x0112] == 6
        assert all(c[1:3] == (1, 1) for c in picture.layer)  # chroma at full resolution


def test_integers_are_rounded_and_clipped(tmp_path: Path) -> None:
    file = make(tmp_path / "in.png", np.array([[1, 2, 3, 4]], np.uint8), None)
    write_like(file, tmp_path / "out.png", [np.array([[[-3.2, 1.6, 254.4, 300.0]]])])
    assert list_files(tmp_path / "out.png")[0].read().tolist() == [[[0, 2, 254, 255]]]
    file = make(tmp_path / "in.npy", np.zeros((1, 2), np.int64), None)
    write_like(file, tmp_path / "out.npy", [np.array([[[-1e30, 1e30]]])])
    low, high = np.load(tmp_path / "out.npy")[0]
    assert low == np.iinfo(np.int64).min
    assert high > 2**62


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("size", [(8, 9), (7, 3)])
def test_float_tiff(tmp_path: Path, channels: int, count: int, size: tuple[int, int]) -> None:
    images = [values((channels, *size), "float64") for _ in range(count)]
    write_tiff(tmp_path / "a.tif", iter(images))
    (file,) = list_files(tmp_path / "a.tif")
    assert (file.n_images, file.channels, file.size()) == (count, channels, size)
    assert file.dtype == np.float32
    for page, image in enumerate(images):
        np.testing.assert_array_equal(file.read(page), image.astype(np.float32))


def test_wrong_number_or_shape_writes_nothing(tmp_path: Path) -> None:
    file = make(tmp_path / "in.npy", values((5, 8, 9), "float32"), None)
    good = np.zeros((1, 8, 9))
    for images in ([good] * 4, [good] * 6, [np.zeros((1, 1, 9))] * 5, [np.zeros((8, 9))] * 5):
        with pytest.raises(ValueError, match=r"shape|zip"):
            write_like(file, tmp_path / "out.npy", images)
    assert [p.name for p in tmp_path.iterdir()] == ["in.npy"]
    with pytest.raises(NediffError, match="as NPY"):
        write_like(file, tmp_path / "out.tif", [good] * 5)


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.tif"
    write_tiff(target, [np.ones((1, 4, 4))])
    before = target.read_bytes()

    def full(path: Path, *_: Any) -> None:
        path.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tiff_module, "fill", full)
    with pytest.raises(NediffError, match="No space left") as caught:
        write_tiff(target, [np.zeros((1, 4, 4))])
    assert str(tmp_path) in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["a.tif"]
    assert target.read_bytes() == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_interruption_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def interrupted() -> None:
        with atomic_path(tmp_path / "state.bin") as temporary:
            temporary.write_bytes(b"x")
            assert temporary.parent == tmp_path
            assert temporary.name.endswith("state.bin")
            raise error

    with pytest.raises(error):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_a_file_or_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NediffError, match=r"Cannot write a\.tif in the folder"):
        write_tiff(tmp_path / "file" / "a.tif", [np.zeros((1, 4, 4))])
    (tmp_path / "a.tif").mkdir()
    with pytest.raises(NediffError, match=r"Cannot write a\.tif"):
        write_tiff(tmp_path / "a.tif", [np.zeros((1, 4, 4))])
    if os.getuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(NediffError, match="Permission denied"):
            write_tiff(tmp_path / "b.tif", [np.zeros((1, 4, 4))])
        tmp_path.chmod(0o700)


def test_written_files_have_ordinary_permissions(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("1")
    (tmp_path / "b").write_text("1")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_sheets_that_are_shared_lose_nothing(tmp_path: Path) -> None:
    """Two write to the same chunk of a Zarr array, which is read and written as a whole."""
    form = Form(ZARR, Header(Layout("YX", (64, 64)), np.dtype(np.float32), mapped=True), None)
    first = Sheet(form, tmp_path / "sheet", shared=True)
    sheets = [first, Sheet(form, tmp_path / "sheet", shared=True)]

    def write(number: int) -> None:
        for column in range(number, 64, 2):
            values = np.full((1, 64, 1), column, np.float32)
            sheets[number].put(0, slice(0, 64), slice(column, column + 1), values)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(2)))
    first.finish(tmp_path / "b.zarr")
    (written,) = list_files(tmp_path / "b.zarr")
    assert np.array_equal(written.read(0)[0], np.tile(np.arange(64, dtype=np.float32), (64, 1)))
