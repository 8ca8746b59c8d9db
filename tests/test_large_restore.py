"""`nediff restore` of large images: as of small ones, on little memory, and gone on with."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from torch import Tensor

from nediff.cli.ledger import UNFINISHED
from nediff.networks.denoiser import EDMDenoiser
from nediff.restorer import Restorer
from nediff.tiling import TiledDenoiser
from tests.command import TINY, nediff, smooth, succeeded, tree

SIZE = (150, 131)
STEPS = ("--steps", 4)


def shot(seed: int, channels: int = 1, size: tuple[int, int] = SIZE) -> NDArray[np.uint16]:
    """A noisy 12-bit picture (H, W) or (H, W, C)."""
    plane = np.stack([smooth(seed + c, *size) for c in range(channels)], axis=-1)
    noise = np.random.default_rng(seed).normal(0, 0.1, plane.shape)
    values: NDArray[np.uint16] = np.rint(4095 * (plane + noise)).clip(0, 4095).astype(np.uint16)
    return values[..., 0] if channels == 1 else values


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A few steps on grey and on colour images."""
    folder = tmp_path_factory.mktemp("runs")
    for channels in (1, 3):
        (folder / f"data{channels}").mkdir()
        for k in range(3):
            name = folder / f"data{channels}" / f"{k}.tif"
            tifffile.imwrite(name, shot(k, channels, (48, 48)))
        options = ("--sigma", 0.1, "--range", 0, 4095, "--steps", 6, *TINY)
        succeeded("train", folder / f"data{channels}", "--out", folder / str(channels), *options)
    return {channels: folder / str(channels) for channels in (1, 3)}


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and everything of more than a thousand pixels is large."""
    return lambda: monkeypatch.setattr("nediff.restorer.TILED_FROM", 1000)


def images(folder: Path, channels: int) -> Path:
    """One in every kind of file that is written in another way."""
    folder.mkdir()
    if channels == 1:
        pages = np.stack([shot(5), shot(6)])
        tifffile.imwrite(folder / "stack.tif", pages, metadata={"axes": "TYX"})
        tifffile.imwrite(folder / "packed.tif", shot(7), compression="zlib")
        np.save(folder / "array.npy", shot(8).astype(np.float32))
    else:
        tifffile.imwrite(folder / "colour.tif", shot(5, 3), photometric="rgb")
        planes = np.moveaxis(shot(6, 3), -1, 0)
        tifffile.imwrite(folder / "planes.tif", planes, photometric="rgb", planarconfig="separate")
        iio.imwrite(folder / "picture.png", (shot(7, 3) // 16).astype(np.uint8))
    return folder


def read(path: Path) -> NDArray[Any]:
    reading = {".npy": np.load, ".png": iio.imread}
    values: NDArray[Any] = reading.get(path.suffix, tifffile.imread)(path)
    return values


@pytest.mark.parametrize("channels", [1, 3])
def test_files_are_those_of_the_whole(
    runs: dict[int, Path], tmp_path: Path, in_parts: Callable[[], None], channels: int
) -> None:
    data = images(tmp_path / "data", channels)
    command = ("restore", runs[channels], data, "--samples", 2, "--seed", 3, *STEPS)
    succeeded(*command, "--out", tmp_path / "whole")
    in_parts()
    succeeded(*command, "--out", tmp_path / "parts", "--tile", 64)
    whole = {p.relative_to(tmp_path / "whole") for p in (tmp_path / "whole").rglob("*.*")}
    parts = {p.relative_to(tmp_path / "parts") for p in (tmp_path / "parts").rglob("*.*")}
    assert whole == parts
    compared = 0
    for name in sorted(p for p in whole if p.suffix and not p.name.startswith(".")):
        a, b = read(tmp_path / "whole" / name), read(tmp_path / "parts" / name)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        # 0.1 of 4095 levels, and one where rounding falls the other way
        bound = 0.1 + (a.dtype.kind == "u")
        np.testing.assert_allclose(b.astype(float), a.astype(float), rtol=0, atol=bound)
        compared += 1
    assert compared == 3 * 5


def test_interrupted_at_any_time_it_goes_on(
    runs: dict[int, Path],
    tmp_path: Path,
    in_parts: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every output is there whole or not at all, and in the end as without interruptions."""
    data = images(tmp_path / "data", 1)
    in_parts()
    command = ("restore", runs[1], data, "--samples", 2, "--tile", 96, *STEPS)
    succeeded(*command, "--out", tmp_path / "a")
    at, calls, interruptions = TiledDenoiser.at, 0, 0

    def interrupted(self: TiledDenoiser, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 17 == 0:
            raise KeyboardInterrupt
        return at(self, *arguments)

    monkeypatch.setattr(TiledDenoiser, "at", interrupted)
    while nediff(*command, "--out", tmp_path / "b").code != 0:
        interruptions += 1
        for path in (tmp_path / "b").rglob("*.tif"):
            if UNFINISHED not in str(path):
                relative = path.relative_to(tmp_path / "b")
                assert path.read_bytes() == (tmp_path / "a" / relative).read_bytes()
        assert interruptions < 30
    assert interruptions > 2
    a, b = tree(tmp_path / "a"), tree(tmp_path / "b")
    assert {k: v for k, v in a.items() if not k.startswith(".")} == {
        k: v for k, v in b.items() if not k.startswith(".")
    }
    assert not (tmp_path / "b" / UNFINISHED).exists()


def test_what_another_command_has_made_needless_is_removed(
    runs: dict[int, Path],
    tmp_path: Path,
    in_parts: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Interrupted, and then done otherwise; but what was begun of other files stays."""
    in_parts()
    data, out = images(tmp_path / "data", 1), tmp_path / "out"
    command = ("restore", runs[1], "--out", out, *STEPS)
    with monkeypatch.context() as patched:
        patched.setattr(TiledDenoiser, "at", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        for name in ("packed.tif", "array.npy"):
            assert nediff(*command, data / name, "--tile", 96).code != 0
    assert len(list((out / UNFINISHED).iterdir())) == 2
    succeeded(*command, data / "packed.tif", "--tile", 64)
    assert len(list((out / UNFINISHED).iterdir())) == 1
    succeeded(*command, data / "array.npy", "--tile", 96)
    assert not (out / UNFINISHED).exists()


def test_what_is_finished_is_not_done_again(runs: dict[int, Path], tmp_path: Path) -> None:
    data, out = images(tmp_path / "data", 1), tmp_path / "out"
    command = ("restore", runs[1], data, "--out", out)
    succeeded(*command)
    before = tree(out)
    assert "All of these files were restored" in succeeded(*command).err
    other = nediff(*command, "--sigma", 0.05)  # another request: nothing is overwritten
    assert other.code == 2
    assert "exists already" in other.err
    assert tree(out) == before
    (out / "restored" / "array.npy").unlink()
    assert "2 file(s) were restored before" in succeeded(*command).err
    after = tree(out)
    assert after.pop(".nediff-restored") != before.pop(".nediff-restored")
    assert after == before
    tifffile.imwrite(data / "packed.tif", shot(9))  # another input of the same name
    assert "exists already" in nediff(*command).err


def test_killed_in_a_process_of_its_own_it_goes_on(runs: dict[int, Path], tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "large.tif", shot(1, size=(1100, 1000)))
    command = [sys.executable, "-m", "nediff", "restore", str(runs[1]), str(tmp_path / "large.tif")]
    command += ["--samples", "1", "--tile", "256", "--steps", "3", "--out"]
    subprocess.run([*command, str(tmp_path / "a")], check=True, capture_output=True)
    kills = 0
    while True:
        process = subprocess.Popen([*command, str(tmp_path / "b")], stderr=subprocess.DEVNULL)
        done = next((tmp_path / "b").glob(f"{UNFINISHED}/*/done"), None)
        before = 0 if done is None else int(done.read_text())
        while process.poll() is None and kills < 2:
            found = next((tmp_path / "b").glob(f"{UNFINISHED}/*/done"), None)
            if found is not None and found.exists() and int(found.read_text() or 0) > before + 5:
                process.send_signal(signal.SIGKILL)
            time.sleep(0.005)
        if process.wait() == 0:
            break
        kills += 1
        assert kills < 20
    assert kills == 2
    for name in ("restored/large.tif", "samples/large_0.tif", "mean/large.tif"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_short_of_memory_it_takes_smaller_parts(
    runs: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And when the smallest are too large, it says so."""
    tifffile.imwrite(tmp_path / "a.tif", shot(1, size=(300, 310)))
    command = ("restore", runs[1], tmp_path / "a.tif", "--samples", 1, *STEPS)
    succeeded(*command, "--out", tmp_path / "a")
    forward, room = EDMDenoiser.denoise_centred, 200**2

    def short(self: EDMDenoiser, u: Tensor, sigma: Tensor) -> Tensor:
        if u.shape[-1] * u.shape[-2] > room:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")
        return forward(self, u, sigma)

    monkeypatch.setattr(EDMDenoiser, "denoise_centred", short)
    assert "in squares of 96 pixels" in succeeded(*command, "--out", tmp_path / "b").err
    for name in ("restored/a.tif", "samples/a_0.tif"):
        a, b = (read(tmp_path / k / name).astype(float) for k in "ab")
        np.testing.assert_allclose(a, b, rtol=0, atol=1.1)
    room = 10
    outcome = nediff(*command, "--out", tmp_path / "c")
    assert outcome.code == 2
    assert "not even in squares of 96 pixels (--tile)" in outcome.err
    assert "Traceback" not in outcome.err


def test_short_of_memory_and_interrupted_it_goes_on_in_the_smaller_parts(
    runs: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count of smaller squares, read as one of larger ones, would leave some of them empty."""
    monkeypatch.setattr("nediff.restorer.TILED_FROM", 1000)
    tifffile.imwrite(tmp_path / "a.tif", shot(1, size=(400, 410)))
    command = ("restore", runs[1], tmp_path / "a.tif", "--tile", 256, *STEPS)
    succeeded(*command, "--out", tmp_path / "a")
    at, calls, room = TiledDenoiser.at, 0, 128

    def short(self: TiledDenoiser, *arguments: Any) -> Any:
        nonlocal calls
        if self.side > room:
            raise MemoryError
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return at(self, *arguments)

    monkeypatch.setattr(TiledDenoiser, "at", short)
    assert "in squares of 128 pixels" in (stopped := nediff(*command, "--out", tmp_path / "b")).err
    assert stopped.code != 0
    room = 256  # when the same command is given again there is memory
    succeeded(*command, "--out", tmp_path / "b")
    assert calls == 4 + 16 - 3  # no square of the sixteen twice, and none never
    a, b = (read(tmp_path / k / "restored/a.tif").astype(float) for k in "ab")
    np.testing.assert_allclose(a, b, rtol=0, atol=1.1)


MEASURE = """
import re, resource, sys
from pathlib import Path
from nediff.cli.main import main
sys.argv = ["nediff", *sys.argv[1:]]
try:
    main()
finally:
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the process was before it became this one
        print(re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text())[1])
    else:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_megabytes(*arguments: object) -> float:
    """The most memory that a command used, in a process of its own."""
    made = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, arguments)], check=True, capture_output=True
    )
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return float(made.stdout.split()[-1]) / unit


def test_memory_does_not_grow_with_the_image(runs: dict[int, Path], tmp_path: Path) -> None:
    """Sixteen times the pixels: one image of float32 more would be 126 MB.

    Of the same image twice, the peaks differ by up to 90 MB: how the C library cuts its blocks.
    """
    assert resource is not None
    peaks = []
    for side in (1448, 5792):
        path = tmp_path / f"{side}.tif"
        tifffile.imwrite(path, np.tile(shot(1, size=(724, 724)), (side // 724, side // 724)))
        peaks.append(peak_megabytes("restore", runs[1], path, "--tile", 512, "--out", tmp_path))
    assert peaks[1] - peaks[0] < 120, peaks
    assert peaks[1] < 2000


def test_memory_does_not_grow_with_the_pages(
    runs: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty pages more: at nine float32 images a page, 47 MB if all were kept."""
    monkeypatch.setattr(Restorer, "restore", lambda _, y, sigma: y)
    monkeypatch.setattr(Restorer, "sample", lambda _, y, n, seed, sigma: np.repeat(y[None], n, 0))
    peaks = []
    for pages in (20, 40):
        stack = np.repeat(shot(1, size=(256, 256))[None], pages, 0)
        plain = {"photometric": "minisblack", "metadata": {"axes": "TYX"}}
        tifffile.imwrite(tmp_path / f"{pages}.tif", stack, **plain)
        tracemalloc.start()
        command = ("restore", runs[1], tmp_path / f"{pages}.tif", "--out", tmp_path / "out")
        succeeded(*command, "--samples", 8)
        peaks.append(tracemalloc.get_traced_memory()[1] / 2**20)
        tracemalloc.stop()
        assert read(tmp_path / "out" / "mean" / f"{pages}.tif").shape == stack.shape
    assert peaks[1] - peaks[0] < 3, peaks  # one page with its samples is 2.4 MB
