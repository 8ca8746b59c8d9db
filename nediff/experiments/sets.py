"""The image sets of the paper, and what stands in for them.

`tiny` cuts pictures out of the photographs that come inside scikit-image. `cpu` reads folders of
64-pixel stand-ins. `paper` reads the sets themselves, in the folders they come in, and keeps
resized copies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nediff.data import Measurements, atomic_path, list_files, open_measurements
from nediff.errors import NediffError
from nediff.experiments.pieces import Workspace

HOW_TO_GET = {
    "ffhq": "FFHQ: the 70,000 images of github.com/NVlabs/ffhq-dataset (`images1024x1024/` or "
    "`thumbnails128x128/`), or a Hugging Face copy, as a folder `ffhq` inside --data.",
    "afhq": "AFHQ: `afhq/train/...` and `afhq/val/...` as unpacked from "
    "github.com/clovaai/stargan-v2, as a folder `afhq` inside --data.",
    "nbu": "NBU: the panchromatic images of deepinv.datasets.NBUDataset (`nbu/<satellite>/"
    "PAN_1024/*.mat`), as a folder `nbu` inside --data.",
}
WORDS = {"ffhq": "FFHQ", "nbu": "NBU", "afhq": "AFHQ"}


def open_set(workspace: Workspace, name: str, part: str, side: int | None = None) -> Measurements:
    """The clean images of a set, ``part`` "train" or "val", squares of ``side`` pixels."""
    scale = workspace.scale
    side = side or scale.side
    if scale.name == "tiny":
        return _pictures(name, part, side, scale.train or 8)
    if workspace.data is None:
        raise NediffError(
            "This scale needs images: give the folder that holds them with --data, or set "
            "NEDIFF_DATA."
        )
    folder = workspace.data / scale.folders[name]
    if not folder.is_dir():
        hint = f" {HOW_TO_GET[name]}" if scale.name == "paper" else ""
        raise NediffError(f"There is no folder {folder}.{hint}")
    if scale.name == "paper":
        return _resized(workspace, name, part, side)
    images = open_measurements(folder / part, range=(0, 255))
    most = scale.train if part == "train" else scale.validation[name]
    return images if most is None else images.select(range(min(most, len(images))))


def _pictures(name: str, part: str, side: int, count: int) -> Measurements:
    """Squares of scikit-image's photographs, others for each set and part."""
    from skimage import data

    picture = {"ffhq": data.astronaut, "nbu": data.camera, "afhq": data.chelsea}[name]()
    picture = picture[..., None] if picture.ndim == 2 else picture
    rng = np.random.default_rng([ord(c) for c in name + part])
    height, width = (n - 2 * side for n in picture.shape[:2])
    squares = []
    for _ in range(count):
        top, left = int(rng.integers(height)), int(rng.integers(width))
        block = picture[top : top + 2 * side, left : left + 2 * side].astype(np.float32)
        squares.append(block.reshape(side, 2, side, 2, -1).mean(axis=(1, 3)))
    return open_measurements(np.stack(squares), axes="NHWC", range=(0, 255))


def _resized(workspace: Workspace, name: str, part: str, side: int) -> Measurements:
    """The set's images as squares of ``side`` pixels, made once and kept in the runs folder."""
    train, validation = workspace.scale.train or 0, workspace.scale.validation[name]
    most = train if part == "train" else validation
    path = workspace.runs / "sets" / f"{name}-{part}-{side}.npy"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        squares = list(_squares(workspace, name, part, side, most))
        if not squares:
            raise NediffError(f"No images of {WORDS[name]} were found. {HOW_TO_GET[name]}")
        with atomic_path(path) as temporary, open(temporary, "wb") as file:
            np.save(file, np.stack(squares))
    return open_measurements(path, axes="NHWC", range=(0, 255))


def _squares(
    workspace: Workspace, name: str, part: str, side: int, most: int
) -> Iterator[NDArray[np.uint8]]:
    """Up to ``most`` images of a part, cut square in the middle and resized."""
    assert workspace.data is not None
    folder = workspace.data / workspace.scale.folders[name]
    inside = [folder / part] if (folder / part).is_dir() else [folder]
    files = sorted(
        p for p in inside[0].rglob("*") if p.suffix.lower() in (".png", ".jpg", ".jpeg", ".mat")
    )
    if inside[0] == folder:  # one folder for all: the split is by name, the same for everyone
        files = [p for p in files if _held_out(p.name) == (part == "val")]
    for path in files[:most]:
        yield _square(path, side)


def _held_out(name: str) -> bool:
    """One image in ten, by the hash of its name."""
    return hashlib.blake2b(name.encode(), digest_size=1).digest()[0] < 26


def _square(path: Path, side: int) -> NDArray[np.uint8]:
    """(side, side, C), 8 bits."""
    from PIL import Image

    if path.suffix == ".mat":
        picture = _panchromatic(path)
    else:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
    size = min(picture.size)
    left, top = (picture.width - size) // 2, (picture.height - size) // 2
    square = picture.crop((left, top, left + size, top + size))
    small = square.resize((side, side), Image.Resampling.LANCZOS)
    values = np.asarray(small)
    return values[..., None] if values.ndim == 2 else values
