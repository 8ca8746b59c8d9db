"""From what the user named (folder, glob, file, list, array) to image files."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nediff.data.cache import DEFAULT_CACHE_BYTES, Store
from nediff.data.files import ImageFile, open_file, wrap_array
from nediff.data.formats import ENDINGS, format_of
from nediff.errors import NediffError

PathLike: TypeAlias = str | os.PathLike[str]
Source: TypeAlias = PathLike | Sequence[PathLike] | NDArray[Any]


def list_files(
    source: Source, axes: str | None = None, cache_bytes: int = DEFAULT_CACHE_BYTES
) -> list[ImageFile]:
    """Find the images of a source and read their headers.

    A folder stands for the image files directly in it, in natural order (2 before 10). The
    files share one cache of ``cache_bytes`` for decoded images.
    """
    store = Store(cache_bytes)
    if isinstance(source, np.ndarray):
        return [wrap_array(source, axes, store)]
    items = [source] if isinstance(source, str | os.PathLike) else list(source)
    paths = [path for item in items for path in _expand(item)]
    if not paths:
        raise NediffError("No image files were given.")
    root = _root(paths)
    names = [path.absolute().relative_to(root).as_posix() for path in paths]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise NediffError(f"{twice[0]} is named twice; name every file once.")
    return [open_file(path, name, axes, store) for path, name in zip(paths, names, strict=True)]


def _root(paths: Sequence[Path]) -> Path:
    """The deepest folder that holds all files: names are relative to it."""
    return Path(os.path.commonpath([path.absolute().parent for path in paths]))


def _natural(path: Path) -> tuple[list[str | int], str]:
    """A sorting key by which image2 comes before image10."""
    parts = re.split(r"(\d+)", str(path).lower())
    return [int(p) if k % 2 else p for k, p in enumerate(parts)], str(path)


def _expand(item: PathLike) -> list[Path]:
    """The image files that one path, folder or glob stands for."""
    path = Path(item).expanduser()
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return [path]
    pattern = str(path)
    if not glob.has_magic(pattern):
        raise NediffError(f"{path} does not exist.")
    found = [Path(p) for p in glob.glob(pattern, recursive=True)]
    images = [p for p in found if p.is_file() and format_of(p) is not None]
    if not images:
        raise NediffError(f"No image matches {pattern}; the formats read are {ENDINGS}.")
    return sorted(images, key=_natural)


def _in_folder(folder: Path) -> list[Path]:
    try:
        entries = [p for p in folder.iterdir() if not p.name.startswith(".")]
    except OSError as error:
        raise NediffError(f"The folder {folder} cannot be read: {error.strerror}.") from error
    images = [p for p in entries if p.is_file() and format_of(p) is not None]
    if images:
        return sorted(images, key=_natural)
    folders = sorted((p for p in entries if p.is_dir()), key=_natural)
    if folders:
        raise NediffError(
            f"The folder {folder} has no images directly in it, only sub-folders; name one of "
            f"them, such as {folders[0]}, or a pattern such as '{folder}/**/*.png'."
        )
    raise NediffError(f"The folder {folder} has no images; the formats read are {ENDINGS}.")
