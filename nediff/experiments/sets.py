"""The image sets of the paper, and what stands in for them.

`tiny` cuts pictures out of the photographs that come inside scikit-image. `cpu` reads folders of
64-pixel stand-ins. `paper` reads the sets themselves, in the folders they come in, and keeps
resized copies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nediff.data import Measurements, atomic_path, open_measurements
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
SPLITS = {"train": ("train",), "val": ("val", "validation", "test")}
GREY = ("nbu",)
"""Sets of one channel, which WebP has no way to store."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".mat")
WORDS = {"ffhq": "FFHQ", "nbu": "NBU", "afhq": "AFHQ"}


def open_set(workspace: Workspace, name: str, part: str, side: int | None = None) -> Measurements:
    """The clean images of a set, ``part`` "train" or "val", squares of ``side`` pixels."""
    scale = workspace.scale
    side = side or scale.side
    most = scale.train if part == "train" else scale.validation[name]
    if scale.name == "tiny":
        return _pictures(name, part, side, most or 8)
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
    chosen = images if most is None else images.select(range(min(most, len(images))))
    return _one_channel(chosen) if name in GREY else chosen


def _one_channel(images: Measurements) -> Measurements:
    """Grey pictures stored as RGB; noise on three equal channels could be averaged away."""
    if images.channels == 1:
        return images
    grey = np.stack([images.image(i)[0] for i in range(len(images))])
    return open_measurements(grey, axes="NHW", range=(0, 1))


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
    scale = workspace.scale
    most = scale.validation[name] if part == "val" else scale.train
    path = workspace.runs / "sets" / f"{name}-{part}-{side}.npy"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        assert workspace.data is not None
        found = _squares(workspace.data / scale.folders[name], part, side)
        squares = list(islice(found, most))
        if not squares:
            raise NediffError(f"No images of {WORDS[name]} were found. {HOW_TO_GET[name]}")
        with atomic_path(path) as temporary, open(temporary, "wb") as file:
            np.save(file, np.stack(squares))
    return open_measurements(path, axes="NHWC", range=(0, 255))


def _squares(folder: Path, part: str, side: int) -> Iterator[NDArray[np.uint8]]:
    """The images of a part, (side, side, C) in 8 bits, in an order that is the same everywhere.

    Sets that come split keep their split; of the others one file in ten is for validation, by
    the hash of its name.
    """
    saved = folder / part if (folder / part).is_dir() else folder
    if (folder / "dataset_info.json").is_file():
        raise NediffError(
            f"{folder} is a single Hugging Face data set; save a DatasetDict with a split 'train'."
        )
    if (folder / "dataset_dict.json").is_file():
        yield from (_square(image, side) for image in _hugging_face(folder, part))
        return
    files = sorted(p for p in saved.rglob("*") if p.suffix.lower() in SUFFIXES)
    if saved == folder:
        names = {path: path.relative_to(folder).as_posix() for path in files}
        files = [path for path in files if _held_out(names[path]) == (part == "val")]
    for path in files:
        if path.suffix == ".mat":
            yield from _tiles(path, side)
            continue
        with Image.open(path) as picture:
            yield _square(picture, side)


def _held_out(name: str) -> bool:
    """One in ten."""
    return hashlib.blake2b(name.encode(), digest_size=1).digest()[0] < 26


def _hugging_face(folder: Path, part: str) -> Iterator[Image.Image]:
    """The pictures of a data set saved with `datasets.save_to_disk`."""
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise NediffError(
            f"{folder} is a Hugging Face data set; reading it needs `pip install datasets`."
        ) from error
    yield from part_of(load_from_disk(str(folder)), part, folder)


def part_of(parts: Any, part: str, folder: Path) -> Iterator[Image.Image]:
    """The pictures of a split; where only "train" is there, one row in ten is for validation."""
    split = next((s for s in SPLITS[part] if s in parts), None)
    rows = parts[split or "train"]
    divided = split is None or not any(s in parts for s in SPLITS["val"])
    for number, row in enumerate(rows):
        if "image" not in row:
            raise NediffError(f"{folder} has no column 'image' but {', '.join(row)}; rename it.")
        if not divided or _held_out(str(number)) == (part == "val"):
            yield row["image"]


def _square(picture: Image.Image, side: int) -> NDArray[np.uint8]:
    """Cut square in the middle and resized, (side, side, 3)."""
    size = min(picture.size)
    left, top = (picture.width - size) // 2, (picture.height - size) // 2
    square = picture.convert("RGB").crop((left, top, left + size, top + size))
    return np.asarray(square.resize((side, side), Image.Resampling.LANCZOS))


def _tiles(path: Path, side: int) -> Iterator[NDArray[np.uint8]]:
    """Squares of a panchromatic image of NBU, at full resolution, (side, side, 1).

    The values are those of its sensor, 10 bits for Gaofen-1 and 11 for the others.
    """
    from scipy.io import loadmat

    if "PAN" not in path.parent.name:
        return
    image = np.asarray(loadmat(path)["imgPAN"], dtype=np.float64)
    top = 1023 if "gaofen-1" in path.parts else 2047
    scaled = np.round(np.clip(image / top, 0, 1) * 255).astype(np.uint8)
    for row in range(0, scaled.shape[0] - side + 1, side):
        for column in range(0, scaled.shape[1] - side + 1, side):
            yield scaled[row : row + side, column : column + side, None]
