"""Files made to get in, to get out of their folder, or to exhaust the machine: each is refused.

Nothing of ours unpickles, and what others would unpickle for us is refused before they can. A file
that would run code if it were unpickled leaves a mark; no test may find it.
"""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
import resource
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
import yaml
import zarr

import nediff as package
from nediff.data import list_files, open_measurements, read_plain, read_sigmas, scan
from nediff.errors import NediffError
from nediff.keeping import read_tensors
from nediff.runs import load_config
from tests.command import SIGMA, TINY, float_folder, nediff, succeeded

GREY = np.random.default_rng(0).integers(0, 256, (32, 32)).astype(np.uint8)


class Intruder:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """What an intruder would leave; a test ends without it."""
    path = tmp_path / "intruder was here"
    yield path
    assert not path.exists()


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """Four gigabytes more than there are: a claim of terabytes must not even be tried."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if _LINUX else 0
    if not _LINUX:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + 4 * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


_LINUX = Path("/proc/self/statm").exists()


def refused(path: Path, match: str = ".") -> None:
    """By the reader of images, with a sentence that names the file."""
    with pytest.raises(NediffError, match=match) as caught:
        scan(list_files(path))
    assert path.name in str(caught.value)


# --- pickles --------------------------------------------------------------------------------------


def test_the_intruder_works(tmp_path: Path) -> None:
    """Unpickled, it would be noticed."""
    pickle.loads(pickle.dumps(Intruder(tmp_path / "mark")))
    assert (tmp_path / "mark").is_dir()


@pytest.mark.parametrize("name", ["a.npy", "a.tif", "a.png", "a.jpg", "a.h5"])
def test_a_pickle_is_no_image(tmp_path: Path, mark: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Intruder(mark)))
    refused(tmp_path / name)
    with pytest.raises(NediffError):
        read_plain(tmp_path / name)


def test_arrays_of_objects(tmp_path: Path, mark: Path) -> None:
    array = np.empty((8, 8), object)
    array[:] = Intruder(mark)
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    refused(tmp_path / "a.npy")
    with pytest.raises(NediffError):
        read_plain(tmp_path / "a.npy")
    np.savez(tmp_path / "b.npz", a=array)
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    refused(tmp_path / "b.npy")


def test_a_pickle_is_no_network(tmp_path: Path, mark: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps(Intruder(mark)))
    with pytest.raises(NediffError, match="is corrupt"):
        read_tensors(tmp_path / "model.safetensors")


def zarr_folder(path: Path, **changes: Any) -> Path:
    """A Zarr array of version 2 with other metadata."""
    made = zarr.open_array(
        str(path), mode="w", shape=GREY.shape, chunks=(32, 32), dtype="u1", zarr_format=2
    )
    made[...] = GREY
    known = json.loads((path / ".zarray").read_text())
    (path / ".zarray").write_text(json.dumps(known | changes))
    return path


@pytest.mark.parametrize("slot", ["compressor", "filters"])
def test_zarr_that_is_packed_with_pickle(tmp_path: Path, mark: Path, slot: str) -> None:
    codec: Any = {"id": "pickle", "protocol": 5}
    changes = {"compressor": None, slot: codec if slot == "compressor" else [codec]}
    folder = zarr_folder(tmp_path / "a.zarr", **changes)
    chunk = next(p for p in folder.iterdir() if p.name[0] != ".")
    chunk.write_bytes(pickle.dumps(Intruder(mark)))
    refused(folder, "codec 'pickle'")


def test_zarr_with_a_pickled_fill_value(tmp_path: Path, mark: Path) -> None:
    """Some versions of Zarr unpickle it when the array is opened."""
    import base64

    value = base64.b64encode(pickle.dumps(Intruder(mark))).decode()
    changes = {"dtype": [["a", "|O"]], "filters": [{"id": "pickle"}], "fill_value": value}
    folder = zarr_folder(tmp_path / "a.zarr", **changes)
    with pytest.raises(NediffError, match="codec 'pickle'"):
        list_files(folder)


def test_zarr_whose_consolidated_metadata_say_pickle(tmp_path: Path, mark: Path) -> None:
    folder = tmp_path / "a.zarr"
    group = zarr.open_group(str(folder), mode="w", zarr_format=2)
    group.create_array("0", shape=GREY.shape, chunks=(32, 32), dtype="u1")[...] = GREY
    inner = json.loads((folder / "0/.zarray").read_text()) | {"filters": [{"id": "pickle"}]}
    words = {"zarr_consolidated_format": 1, "metadata": {".zgroup": {}, "0/.zarray": inner}}
    (folder / ".zmetadata").write_text(json.dumps(words))
    with pytest.raises(NediffError, match="codec 'pickle'"):
        list_files(folder)


FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve"}
FORBIDDEN_MODULES |= {"marshal", "jsonpickle", "imp", "code"}
FORBIDDEN_CALLS = {
    ("torch", "load"),
    ("torch", "save"),
    ("np", "load"),
    ("numpy", "load"),
    ("yaml", "load"),
    ("yaml", "load_all"),
    ("yaml", "full_load"),
    ("yaml", "unsafe_load"),
    ("yaml", "unsafe_load_all"),
    ("pd", "read_pickle"),
    ("os", "system"),
    ("os", "popen"),
}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__"}


def offences(source: str) -> list[str]:
    """What in a module could run what a file says."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")[0]
            found += [module] if module in FORBIDDEN_MODULES else []
            pairs = {(module, alias.name) for alias in node.names}
            found += [".".join(pair) for pair in pairs & FORBIDDEN_CALLS]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            pair = (node.value.id, node.attr)
            found += [".".join(pair)] if pair in FORBIDDEN_CALLS else []
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            found += [name] if name in FORBIDDEN_NAMES else []
            for option in node.keywords:
                value = option.value.value if isinstance(option.value, ast.Constant) else None
                if (option.arg, value) in (("allow_pickle", True), ("shell", True)):
                    found.append(str(option.arg))
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('a')",
        "from torch import load",
        "np.load('a')",
        "np.lib.npyio.thing('a', allow_pickle=True)",
        "yaml.load(text)",
        "eval('1')",
        "subprocess.run('ls', shell=True)",
    ],
)
def test_the_search_finds_them(source: str) -> None:
    assert offences(source)


def test_no_module_of_ours_can_run_what_a_file_says() -> None:
    assert package.__file__ is not None
    sources = sorted(Path(package.__file__).parent.rglob("*.py"))
    assert len(sources) > 100
    found = {s.name: offences(s.read_text(encoding="utf-8")) for s in sources}
    assert not {name: what for name, what in found.items() if what}


# --- bombs and absurd claims ----------------------------------------------------------------------


def npy_header(shape: tuple[int, ...]) -> bytes:
    words = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"
    words = words.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(words)) + words.encode()


@pytest.mark.parametrize("shape", [(10**6, 10**7), (2**40, 2**40), (-1, 5), (10**30, 2)])
def test_npy_that_claims_terabytes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (tmp_path / "a.npy").write_bytes(npy_header(shape) + bytes(64))
    refused(tmp_path / "a.npy")
    with pytest.raises(NediffError):
        read_plain(tmp_path / "a.npy")


def test_a_zip_bomb_is_no_array(tmp_path: Path) -> None:
    for name in ("a.npy", "a.npz"):
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.npy", npy_header((2**13, 2**13)) + bytes(2**26))
        with pytest.raises(NediffError):
            scan(list_files(tmp_path / name))
        with pytest.raises(NediffError):
            read_plain(tmp_path / name)


def test_png_that_claims_too_much(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    for width, height in ((2**31 - 1, 2**31 - 1), (60_000, 60_000), (0, 5)):
        header = struct.pack(">IIBBBBB", width, height, 16, 6, 0, 0, 0)
        parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100)))
        (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + parts + chunk(b"IEND", b""))
        refused(tmp_path / "a.png")


def tiff_of(path: Path, width: int, height: int, compression: int) -> None:
    """Hand-made: one page of 8-bit grey with one strip of a hundred bytes."""
    tags = [(256, width), (257, height), (258, 8), (259, compression), (262, 1), (273, 8)]
    tags += [(277, 1), (278, height), (279, 100)]
    body = bytes(100)
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    directory = struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)
    path.write_bytes(struct.pack("<2sHI", b"II", 42, 8 + len(body)) + body + directory)


@pytest.mark.parametrize("compression", [1, 5, 8, 50000])
@pytest.mark.parametrize("side", [2**20, 2**31 - 1])
def test_tiff_that_claims_terabytes(tmp_path: Path, side: int, compression: int) -> None:
    tiff_of(tmp_path / "a.tif", side, side, compression)
    refused(tmp_path / "a.tif")
    with pytest.raises(NediffError):
        read_plain(tmp_path / "a.tif")


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("bigtiff", [False, True])
def test_tiff_whose_pages_lead_in_a_circle(tmp_path: Path, byteorder: Any, bigtiff: bool) -> None:
    """There is no end of them, and tifffile looks for it."""
    path = tmp_path / "a.tif"
    how: Any = {"byteorder": byteorder, "bigtiff": bigtiff, "photometric": "minisblack"}
    tifffile.imwrite(path, np.stack([GREY] * 5), compression="zlib", **how)
    assert scan(list_files(path))
    with tifffile.TiffFile(path) as tif:
        first, last = tif.pages[0].offset, tif.pages[-1].offset
        kind, tags = tif.tiff, len(tif.pages[-1].tags)
    place = last + kind.tagnosize + tags * kind.tagsize
    content = bytearray(path.read_bytes())
    assert not any(content[place : place + kind.offsetsize])  # there is no page after the last
    content[place : place + kind.offsetsize] = struct.pack(kind.offsetformat, first)
    path.write_bytes(bytes(content))
    refused(path, "in a circle")
    with pytest.raises(NediffError, match="in a circle"):
        read_plain(path)


def test_hdf5_of_which_nothing_is_there(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", (10**6, 10**6), "f4", chunks=(1000, 1000))
    refused(tmp_path / "a.h5", "claims")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("data", (2**17, 2**17), "u1", chunks=(2**16, 2**15 + 1))
    refused(tmp_path / "b.h5")


@pytest.mark.parametrize("shape", [[10**6, 10**6], [10**12, 10**12]])
def test_zarr_of_which_nothing_is_there(tmp_path: Path, shape: list[int]) -> None:
    refused(zarr_folder(tmp_path / "a.zarr", shape=shape), "claims")
    shutil.rmtree(tmp_path / "a.zarr")
    refused(zarr_folder(tmp_path / "a.zarr", chunks=[10**6, 10**6]), "chunks of")


def test_a_large_array_that_is_there_is_not_refused(tmp_path: Path) -> None:
    """The limits are for claims: real zeros compress well, too."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("data", (13500, 13500), "u1", chunks=True, compression="lzf")
        made[:] = 1
    assert list_files(tmp_path / "a.h5")[0].size() == (13500, 13500)


# --- configurations -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    data = float_folder(folder / "data")
    succeeded("train", data, "--sigma", SIGMA, "--steps", 1, "--out", folder / "run", *TINY)
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(trained, tmp_path / "run"))
    (copy / "state/config.yaml").unlink()
    return copy


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.mkdir ['{mark}']",
        "version: !!python/object/apply:os.mkdir ['{mark}']",
        "a: &a [x]\n" + "\n".join(f"a{i}: &a{i} [{'*a, ' * 9}]" for i in range(1)),
        "\n".join(
            f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 9) if i else 'x'}]" for i in range(40)
        ),
        "[" * 100_000,
        "a: " + "9" * 10_000,
        "version: 2001-99-99",
        "version: 1\n" * 100_000,
    ],
    ids=["tag", "inner tag", "alias", "alias bomb", "deep", "digits", "date", "long"],
)
def test_yaml_made_to_get_in_or_to_last_for_ever(run: Path, mark: Path, text: str) -> None:
    (run / "config.yaml").write_text(text.replace("{mark}", str(mark)))
    with pytest.raises(NediffError, match=r"config\.yaml"):
        load_config(run)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("network", "channels"), 10**9),
        (("network", "guides"), 10**9),
        (("recipe", "rehearse_rounds"), 10**12),
        (("training", "steps"), 10**18),
        (("operator", "stride"), 10**9),
        (("network", "sigma_data"), float("nan")),
    ],
)
def test_settings_beyond_any_machine(run: Path, place: tuple[str, str], value: object) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    config[place[0]][place[1]] = value
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    outcome = nediff("restore", run, run, "--out", run / "out")
    assert outcome.code == 2
    assert f"{place[0]}.{place[1]}: " in outcome.err


# --- out of the folder ----------------------------------------------------------------------------


def test_hdf5_does_not_lead_to_other_files(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["data"] = GREY
    (tmp_path / "secret.raw").write_bytes(bytes(GREY))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/data")
    refused(tmp_path / "a.h5", "holds 0 arrays")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        place = [(str(tmp_path / "secret.raw"), 0, GREY.nbytes)]
        file.create_dataset("data", GREY.shape, "u1", external=place)
    refused(tmp_path / "b.h5", "values in other files")
    layout = h5py.VirtualLayout(GREY.shape, "u1")
    layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "data", GREY.shape)
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_virtual_dataset("data", layout)
    refused(tmp_path / "c.h5", "values in other files")


@pytest.mark.parametrize("target", ["secret", "/dev/zero"])
def test_zarr_does_not_lead_out_of_its_folder(tmp_path: Path, target: str) -> None:
    folder = zarr_folder(tmp_path / "a.zarr")
    (tmp_path / "secret").write_bytes(bytes(GREY))
    chunk = next(p for p in folder.iterdir() if p.name[0] != ".")
    chunk.unlink()
    chunk.symlink_to(tmp_path / target)
    with pytest.raises(NediffError, match="is a link"):
        list_files(folder)


def test_ome_zarr_whose_path_climbs(tmp_path: Path) -> None:
    zarr_folder(tmp_path / "other.zarr")
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2)
    group.attrs["multiscales"] = [{"axes": ["y", "x"], "datasets": [{"path": "../other.zarr"}]}]
    refused(tmp_path / "a.zarr")


def test_ome_tiff_does_not_open_the_files_it_names(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    tifffile.imwrite(tmp_path / "secret.tif", GREY)
    named = '<UUID FileName="../secret.tif">urn:uuid:1</UUID>'
    plane = f'<TiffData IFD="0" PlaneCount="1">{named}</TiffData>'
    words = (
        '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" '
        'UUID="urn:uuid:2"><Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYCZT" '
        f'Type="uint8" SizeX="32" SizeY="32" SizeC="1" SizeZ="1" SizeT="1">{plane}</Pixels></Image>'
        "</OME>"
    )
    path = tmp_path / "in/a.ome.tif"
    tifffile.imwrite(path, 255 - GREY, description=words, metadata=None)
    try:
        found = list_files(path)[0].read(0)
    except NediffError:
        return
    assert not np.array_equal(found[0], GREY)


def test_names_in_a_csv_are_names_and_not_paths(tmp_path: Path) -> None:
    (tmp_path / "secret.tif").write_bytes(b"x")
    (tmp_path / "levels.csv").write_text("name,sigma\n../secret.tif,0.1\n")
    with pytest.raises(NediffError, match=r"no image '\.\./secret\.tif'"):
        read_sigmas(tmp_path / "levels.csv", [("a.tif", "a.tif")])


def test_pipes_and_devices_do_not_make_us_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(NediffError, match="a pipe or a device"):
        list_files(tmp_path / "a.png")
    os.mkfifo(tmp_path / "levels.csv")
    with pytest.raises(NediffError, match="is not a file"):
        read_sigmas(tmp_path / "levels.csv", [("a.tif", "a.tif")])
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(NediffError, match=r"config\.yaml"):
        load_config(tmp_path)
    (tmp_path / "model.safetensors").symlink_to("/dev/zero")
    with pytest.raises(NediffError, match="is missing"):
        read_tensors(tmp_path / "model.safetensors")


def test_a_link_in_the_place_of_an_output_is_replaced_and_not_followed(
    trained: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    out = tmp_path / "out"
    (out / "restored").mkdir(parents=True)
    (out / "restored/a0.tif").symlink_to(victim)
    (out / ".nediff-lock").symlink_to(victim)
    outcome = nediff("restore", trained, trained.parent / "data", "--out", out, "--overwrite")
    assert victim.read_text() == "untouched"
    assert outcome.code == 2  # the lock is not ours to take
    (out / ".nediff-lock").unlink()
    succeeded("restore", trained, trained.parent / "data", "--out", out, "--overwrite")
    assert victim.read_text() == "untouched"
    assert open_measurements(out / "restored/a0.tif", range=(0, 1)).size(0) == (40, 44)


def test_the_memory_limit_is_felt() -> None:
    """Otherwise the tests above would show nothing."""
    if not _LINUX:
        pytest.skip("needs /proc")
    with pytest.raises(MemoryError):
        np.ones(2**36, np.uint8)
    assert io.BytesIO(b"x").read() == b"x"
