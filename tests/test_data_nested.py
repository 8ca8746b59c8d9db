"""HDF5 and Zarr: arrays inside files and folders, read and written in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from nediff.data import list_files, open_measurements
from nediff.data.write import Sheet, form_like, write_form, write_like
from nediff.errors import NediffError
from tests.command import TINY, smooth, succeeded

RANDOM = np.random.default_rng(0)
STACK = RANDOM.integers(0, 4000, (3, 40, 44)).astype(np.uint16)
VOLUME = RANDOM.integers(0, 255, (2, 3, 4, 20, 24)).astype(np.uint8)
"""T, C, Z, Y, X."""


def ome_zarr(path: Path, values: Any = VOLUME, axes: str = "tczyx") -> Path:
    """As an acquisition writes it: two resolutions, the metadata of version 0.4."""
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    for level, part in enumerate((values, values[..., ::2, ::2])):
        made = group.create_array(
            str(level),
            shape=part.shape,
            chunks=(*([1] * (part.ndim - 2)), 16, 16),
            dtype=part.dtype,
        )
        made[...] = part
    named = [{"name": a, "type": "space"} for a in axes]
    levels = [{"path": str(k)} for k in range(2)]
    group.attrs["multiscales"] = [{"version": "0.4", "axes": named, "datasets": levels}]
    return path


def test_an_ome_zarr_image_is_a_stack_by_its_axes(tmp_path: Path) -> None:
    (file,) = list_files(ome_zarr(tmp_path / "plate.zarr"))
    assert (file.format, file.axes, file.n_images, file.channels) == ("Zarr", "TCZYX", 8, 3)
    assert file.size() == (20, 24)
    for page in range(8):
        t, z = divmod(page, 4)
        np.testing.assert_array_equal(file.read(page), VOLUME[t, :, z])
    np.testing.assert_array_equal(file.read_crop(5, 3, 4, 10, 12), VOLUME[1, :, 1, 3:13, 4:16])


def test_plain_arrays_and_those_in_groups(tmp_path: Path) -> None:
    zarr.save_array(str(tmp_path / "plain.zarr"), STACK)
    group = zarr.open_group(str(tmp_path / "group.zarr"), mode="w")
    for name in ("raw", "deep/dark"):
        made = group.create_array(name, shape=STACK.shape, dtype=STACK.dtype)
        made[...] = STACK + (name == "raw")
    (plain,) = list_files(tmp_path / "plain.zarr", "NHW")
    np.testing.assert_array_equal(plain.read(1), STACK[1][None])
    (raw,) = list_files(tmp_path / "group.zarr" / "raw", "NHW")
    np.testing.assert_array_equal(raw.read(2), STACK[2][None] + 1)
    with pytest.raises(NediffError, match=r"2 arrays of at least two axes .*name the one"):
        list_files(tmp_path / "group.zarr")
    with pytest.raises(NediffError, match=r"no array .*nothing; those .* are: deep/dark, raw"):
        list_files(tmp_path / "group.zarr" / "nothing")


def test_hdf5_by_name_and_by_its_only_dataset(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "one.h5", "w") as file:
        file["entry/images"] = STACK
        file["line"] = np.arange(5)  # not an image
    with h5py.File(tmp_path / "two.hdf5", "w") as file:
        file["a"], file["b"] = STACK, STACK + 1
    (one,) = list_files(tmp_path / "one.h5", "NHW")
    np.testing.assert_array_equal(one.read_crop(2, 5, 6, 7, 8), STACK[2:, 5:12, 6:14])
    (b,) = list_files(tmp_path / "two.hdf5" / "b", "NHW")
    assert (b.name, b.place) == ("b", tmp_path / "two.hdf5")
    np.testing.assert_array_equal(b.read(0), STACK[:1] + 1)
    with pytest.raises(NediffError, match=r"two\.hdf5 holds 2 arrays"):
        list_files(tmp_path / "two.hdf5")
    with pytest.raises(NediffError, match="may be one image of 3 channels or a stack"):
        list_files(tmp_path / "one.h5")


def test_complex_values_are_two_channels(tmp_path: Path) -> None:
    values = (RANDOM.normal(size=(2, 16, 18)) + 1j * RANDOM.normal(size=(2, 16, 18))).astype(
        np.complex64
    )
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["kspace"] = values
    (scan,) = list_files(tmp_path / "scan.h5", "NHW")
    assert (scan.channels, scan.n_images) == (2, 2)
    expected = np.stack([values[1].real, values[1].imag])
    np.testing.assert_array_equal(scan.read(1), expected)
    write_like(scan, tmp_path / "copy.h5", [scan.read(0), scan.read(1)])
    with h5py.File(tmp_path / "copy.h5") as file:
        np.testing.assert_array_equal(file["data"], values)


@pytest.mark.parametrize("kind", ["zarr", "h5"])
def test_what_is_written_is_read_again(tmp_path: Path, kind: str) -> None:
    """With its axes; also window by window, opened again in between."""
    if kind == "zarr":
        source = ome_zarr(tmp_path / "source.zarr")
    else:
        source = tmp_path / "source.h5"
        with h5py.File(source, "w") as file:
            file["data"] = VOLUME
            file["data"].attrs["axes"] = "TCZYX"
    (file,) = list_files(source)
    write_like(file, tmp_path / f"copy.{kind}", [file.read(k) for k in range(8)])
    form = form_like(file, (3, 20, 24))
    for page in range(8):
        for rows in (slice(0, 11), slice(11, 20)):
            sheet = Sheet(form, tmp_path / "work")
            sheet.put(page, rows, slice(0, 24), file.read(page)[:, rows].astype(float))
    Sheet(form, tmp_path / "work").finish(tmp_path / f"parts.{kind}")
    for name in ("copy", "parts"):
        (copy,) = list_files(tmp_path / f"{name}.{kind}")
        assert (copy.axes, copy.dtype, copy.shape) == (file.axes, file.dtype, file.shape)
        for page in range(8):
            np.testing.assert_array_equal(copy.read(page), file.read(page))
    write_form(form, tmp_path / f"copy.{kind}", [0 * file.read(k) for k in range(8)])
    (copy,) = list_files(tmp_path / f"copy.{kind}")  # replaced as a whole
    assert not copy.read(3).any()
    assert not list(tmp_path.glob(".*"))


def test_folders_and_patterns_with_zarr_in_them(tmp_path: Path) -> None:
    for k in range(2):
        ome_zarr(tmp_path / f"{k}.zarr")
    for source in (tmp_path, f"{tmp_path}/*.zarr", f"{tmp_path}/**"):
        assert [f.name for f in list_files(source)] == ["0.zarr", "1.zarr"]


def test_from_training_to_restored_files(tmp_path: Path) -> None:
    clean = np.stack([smooth(k) for k in range(4)])
    noisy = np.rint(4000 * (clean + RANDOM.normal(0, 0.1, clean.shape))).clip(0, 65535)
    ome_zarr(tmp_path / "data.zarr", noisy.astype(np.uint16)[:, None], "tcyx")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["images"] = noisy.astype(np.uint16)
        file["images"].attrs["axes"] = "TYX"
    options = ("--sigma", 0.1, "--range", 0, 4000, "--steps", 3, *TINY)
    succeeded("train", tmp_path / "data.zarr", "--out", tmp_path / "run", *options)
    for name in ("data.zarr", "data.h5"):
        out = tmp_path / "out" / name
        succeeded("restore", tmp_path / "run", tmp_path / name, "--out", out, "--samples", 1)
        restored = open_measurements(out / "restored" / name, range=(0, 4000))
        assert len(restored) == 4
        assert np.mean((restored[0][0] - clean[0]) ** 2) < 0.1**2
