"""4. Restoring: megapixels a second and peak memory, from a quarter to a hundred megapixels.

16-bit TIFF in, 16-bit TIFF out, by `nediff restore` as a user calls it; against CAREamics in tiles
and BM3D, each in a process of its own, up to the size it finishes in ten minutes. All have one
core. Seconds are of the processor. Reading and writing is in the time of ours, not in that of the
others.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed import peers

SIGMA = 0.075
MEGAPIXELS = (0.25, 1.0, 4.0, 16.0, 100.0)
LIMIT = 600.0
"""Seconds that each may take."""


def picture(megapixels: float) -> NDArray[np.float32]:
    """A noisy square of so many pixels, made of scikit-image's photographs laid side by side."""
    from skimage import data

    side = round((megapixels * 1e6) ** 0.5)
    tiles = [np.asarray(getattr(data, name)(), np.float32) / 255 for name in ("camera", "moon")]
    row = np.concatenate(tiles, axis=1)
    rows, columns = -(-side // row.shape[0]), -(-side // row.shape[1])
    rng = np.random.default_rng(0)
    noisy = np.tile(row, (rows, columns))[:side, :side].astype(np.float32)
    for start in range(0, side, 1024):  # a hundred megapixels of noise at once would count as ours
        part = noisy[start : start + 1024]
        part += np.float32(SIGMA) * rng.standard_normal(part.shape, dtype=np.float32)
    return noisy


def as_16_bit(image: NDArray[np.float32]) -> NDArray[np.uint16]:
    """As a camera would store it, noise below black and above white kept."""
    return np.clip(image * 40000 + 10000, 0, 65535).astype(np.uint16)


def untrained(folder: Path) -> Path:
    """A run of two steps on 16-bit images: speed and memory are those of a trained one."""
    import tifffile

    images, run = folder / "train", folder / "run"
    images.mkdir()
    for i, part in enumerate(np.split(as_16_bit(picture(0.25))[:500, :500], 5)):
        tifffile.imwrite(images / f"{i}.tif", part)
    arguments = [str(images), "--out", str(run), "--sigma", str(SIGMA), "--steps", "2"]
    measured([sys.executable, "-m", "nediff", "train", *arguments, "--range", "10000", "50000"])
    return run


def measured(command: list[str]) -> dict[str, float]:
    """Processor seconds and the peak memory of a process, in MB."""
    started = time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    deadline, peak = started + LIMIT, 0.0
    while True:
        peak = max(peak, _memory(process.pid))
        found, status, usage = os.wait4(process.pid, os.WNOHANG)
        if found:
            break
        if time.perf_counter() > deadline:
            process.kill()
            os.wait4(process.pid, 0)
            raise TimeoutError
        time.sleep(0.05)
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"{command[1:4]} failed")
    return {"seconds": usage.ru_utime + usage.ru_stime, "peak_mb": peak}


def _memory(pid: int) -> float:
    """The peak of a process so far, in MB; `ru_maxrss` would count what we had when it began."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return (
        max((int(line.split()[1]) for line in status if line.startswith("VmHWM")), default=0) / 1024
    )


def by_us(image: NDArray[np.float32], folder: Path, model: Path) -> dict[str, float]:
    """`nediff restore`, the start of Python and PyTorch included."""
    import tifffile

    path = folder / "image.tif"
    tifffile.imwrite(path, as_16_bit(image), tile=(512, 512))
    arguments = ["restore", str(model), str(path), "--out", str(folder / "out")]
    return measured([sys.executable, "-m", "nediff", *arguments])


def by_careamics(image: NDArray[np.float32], folder: Path, model: Path) -> dict[str, float]:
    """CAREamics prediction, in tiles of 256 pixels."""
    np.save(folder / "image.npy", image)
    out = peers.call("predict", str(folder / "image.npy"), str(folder), seconds=LIMIT)
    found: dict[str, float] = json.loads(out.strip().splitlines()[-1])
    return found


def by_bm3d(image: NDArray[np.float32], folder: Path, model: Path) -> dict[str, float]:
    """BM3D, by a process of its own."""
    np.save(folder / "image.npy", image)
    return measured([sys.executable, "-m", "benchmarks.speed.restoring", str(folder / "image.npy")])


CANDIDATES: dict[str, Callable[[NDArray[np.float32], Path, Path], dict[str, float]]] = {
    "ours": by_us,
    "CAREamics": by_careamics,
    "BM3D": by_bm3d,
}


def run(sizes: tuple[float, ...] = MEGAPIXELS) -> dict[str, Any]:
    """Every candidate on every size, in turn, until one takes too long."""
    with tempfile.TemporaryDirectory() as folder:
        return _run(untrained(Path(folder)), sizes)


def _run(model: Path, sizes: tuple[float, ...]) -> dict[str, Any]:
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in CANDIDATES}
    given_up: dict[str, str] = {}
    for size in sizes:
        image = picture(size)
        for name, restore in CANDIDATES.items():
            if name in given_up:
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = restore(image, Path(folder), model)
                except (TimeoutError, subprocess.TimeoutExpired):
                    given_up[name] = f"not done in {LIMIT:g} s at {size:g} megapixels"
                    continue
            rows[name].append({"megapixels": size, **found})
            print(name, rows[name][-1], flush=True)
    return {"rows": rows, "given_up": given_up}


def _bm3d_alone(path: str) -> None:
    import bm3d

    bm3d.bm3d(np.load(path, allow_pickle=False).astype(np.float64), SIGMA)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _bm3d_alone(sys.argv[1])
