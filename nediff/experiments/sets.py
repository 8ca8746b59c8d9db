"""The image sets of the paper, and what stands in for them.

`tiny` cuts pictures out of the photographs that come inside scikit-image. `cpu` reads folders of
64-pixel stand-ins. `paper` reads the sets themselves, in the folders they come in, and keeps
resized copies.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nediff.data import Measurements, atomic_path, open_measurements
from nediff.errors import NediffError, NediffWarning
from nediff.experiments.pieces import Workspace

HUGGING_FACE = (
    "a snapshot of a Hugging Face data set with its parquet files, or one saved with "
    "`datasets.load_dataset(...).save_to_disk(...)`"
)
HOW_TO_GET = {
    "ffhq": "FFHQ: the 70,000 images of github.com/NVlabs/ffhq-dataset (`images1024x1024/` or "
    f"`thumbnails128x128/`), {HUGGING_FACE}, as a folder `ffhq` inside --data.",
    "afhq": "AFHQ: `afhq/train/...` and `afhq/val/...` (in its second version `afhq/test/...`) as "
    f"unpacked from github.com/clovaai/stargan-v2, {HUGGING_FACE}, as a folder `afhq` inside "
    "--data.",
    "nbu": "NBU: the panchromatic images of deepinv.datasets.NBUDataset (`nbu/<satellite>/"
    "PAN_1024/*.mat`), as a folder `nbu` inside --data.",
}
SPLITS = {"train": ("train",), "val": ("val", "validation", "test")}
GREY = ("nbu",)
"""Sets of one channel, which WebP has no way to store."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".mat")
LABEL = re.compile(r"(?:^|[/_.-])(train|val|validation|test)(?=[/_.-])")
"""What names the split in the path of a parquet file."""
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
        images = _resized(workspace, name, part, side)
        _warn_of_few(name, part, len(images), most)
        return images
    images = open_measurements(folder / part, range=(0, 255))
    _warn_of_few(name, part, len(images), most)
    chosen = images if most is None else images.select(range(min(most, len(images))))
    return _one_channel(chosen) if name in GREY else chosen


@cache  # once is enough
def _warn_of_few(name: str, part: str, found: int, asked: int | None) -> None:
    """Say that there are fewer images than the scale asks for; they are used all the same."""
    if asked is not None and found < asked:
        use = "to train on" if part == "train" else "to judge by"
        sentence = f"{WORDS[name]} has {found} images {use}, not the {asked} of this scale."
        warnings.warn(NediffWarning(sentence), stacklevel=3)


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
        unpacked = workspace.runs / "sets" / "parquet"
        found = _squares(workspace.data / scale.folders[name], part, side, unpacked)
        squares = list(islice(found, most))
        if not squares:
            raise NediffError(f"No images of {WORDS[name]} were found. {HOW_TO_GET[name]}")
        with atomic_path(path) as temporary, open(temporary, "wb") as file:
            np.save(file, np.stack(squares))
    return open_measurements(path, axes="NHWC", range=(0, 255))


def _squares(folder: Path, part: str, side: int, unpacked: Path) -> Iterator[NDArray[np.uint8]]:
    """The images of a part, (side, side, C) in 8 bits, in an order that is the same everywhere.

    By a hash of their names, so that the first few are of all kinds (animals, satellites) alike.
    """
    if _is_hugging_face(folder):
        yield from (_square(image, side) for image in _hugging_face(folder, part, unpacked))
        return
    for path in _files(folder, part):
        yield from _tiles(path, side) if path.suffix == ".mat" else [_picture(path, side)]


def _is_hugging_face(folder: Path) -> bool:
    if (folder / "dataset_info.json").is_file():
        raise NediffError(
            f"{folder} is a single Hugging Face data set; save a DatasetDict with a split 'train'."
        )
    saved = (folder / "dataset_dict.json").is_file()
    return saved or next(folder.rglob("*.parquet"), None) is not None


def _files(folder: Path, part: str) -> list[Path]:
    """Of a part. Sets that come split keep their split.

    Of others one file in ten is for validation, by the hash of its name; of the folder of training
    images alone, if there is one.
    """
    there = {
        kind: [folder / name for name in names if (folder / name).is_dir()]
        for kind, names in SPLITS.items()
    }
    whole = there["train"][0] if there["train"] else folder
    split = bool(there["val"])
    root = there["val"][0] if split and part == "val" else whole
    names = {
        path: path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.suffix.lower() in SUFFIXES
    }
    if not split:
        names = {p: n for p, n in names.items() if _held_out(n) == (part == "val")}
    elif root == folder:  # what is left beside the folder of validation
        names = {p: n for p, n in names.items() if not any(v in p.parents for v in there["val"])}
    return [path for path, _ in sorted(names.items(), key=lambda item: _place(item[1]))]


def _held_out(name: str) -> bool:
    """One in ten."""
    return hashlib.blake2b(name.encode(), digest_size=1).digest()[0] < 26


def _place(name: str) -> tuple[bytes, str]:
    """Where it is in the order, which has nothing to do with the split."""
    return hashlib.blake2b(name.encode(), digest_size=8, person=b"order").digest(), name


def _hugging_face(folder: Path, part: str, unpacked: Path) -> Iterator[Image.Image]:
    """The pictures of a data set saved with `save_to_disk`, or of a snapshot in parquet files."""
    try:
        from datasets import load_dataset, load_from_disk
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise NediffError(
            f"{folder} is a Hugging Face data set; reading it needs `pip install datasets`."
        ) from error
    try:
        if (folder / "dataset_dict.json").is_file():
            parts = load_from_disk(str(folder))
        else:
            files = _parquet_files(folder)
            parts = load_dataset("parquet", data_files=files, cache_dir=str(unpacked))
        yield from (_decoded(image, folder) for image in part_of(parts, part, folder))
    except (OSError, ValueError, KeyError, TypeError, DatasetsError) as error:
        raise NediffError(
            f"{folder} is a Hugging Face data set that cannot be read ({error}): copy it anew."
        ) from error


def _parquet_files(folder: Path) -> dict[str, list[str]]:
    """By the split that their paths name; those that name none are for training."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.parquet")):
        label = LABEL.search(path.relative_to(folder).as_posix())
        found.setdefault(label.group(1) if label else "train", []).append(str(path))
    return found


def part_of(parts: Any, part: str, folder: Path) -> Iterator[Any]:
    """The pictures of a split; where only "train" is there, one row in ten is for validation."""
    split = next((s for s in SPLITS[part] if s in parts), None)
    if split is None and "train" not in parts:
        raise NediffError(f"{folder} has no split 'train' but {', '.join(parts)}.")
    rows = parts[split or "train"]
    divided = split is None or not any(s in parts for s in SPLITS["val"])
    numbers: Iterable[int] = range(len(rows))
    if divided:
        numbers = [n for n in numbers if _held_out(str(n)) == (part == "val")]
    for number in sorted(numbers, key=lambda n: _place(str(n))):
        row = rows[number]
        if "image" not in row:
            raise NediffError(f"{folder} has no column 'image' but {', '.join(row)}; rename it.")
        yield row["image"]


def _decoded(image: Any, folder: Path) -> Image.Image:
    """Parquet files that do not say that a column holds pictures give the bytes of their files."""
    if isinstance(image, dict) and isinstance(image.get("bytes"), bytes):
        image = Image.open(BytesIO(image["bytes"]))
    if not isinstance(image, Image.Image):
        raise NediffError(f"The column 'image' of {folder} holds no pictures.")
    image.load()
    return image


def _picture(path: Path, side: int) -> NDArray[np.uint8]:
    """A file as a square; or a sentence that names it."""
    try:
        with Image.open(path) as picture:
            return _square(picture, side)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise NediffError(
            f"{path} cannot be read as a picture ({error}): copy it anew or remove it."
        ) from error


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
    if "PAN" not in path.parent.name:
        return
    image = _panchromatic(path)
    top = 1023 if "gaofen-1" in path.parts else 2047
    scaled = np.round(np.clip(image / top, 0, 1) * 255).astype(np.uint8)
    for row in range(0, scaled.shape[0] - side + 1, side):
        for column in range(0, scaled.shape[1] - side + 1, side):
            yield scaled[row : row + side, column : column + side, None]


def _panchromatic(path: Path) -> NDArray[np.float64]:
    """The image of a file of NBU, (H, W); or a sentence that names it."""
    from scipy.io import loadmat

    try:
        image = np.asarray(loadmat(path)["imgPAN"], dtype=np.float64)
        if image.ndim != 2:
            raise ValueError(f"imgPAN has {image.ndim} dimensions")
    except Exception as error:  # of a damaged file, scipy raises whatever its bytes lead to
        raise NediffError(
            f"{path} cannot be read as an image of NBU, `imgPAN` in a .mat file ({error}): copy "
            "it anew or remove it."
        ) from error
    return image
