"""From what the user named (folder, glob, file, list, array) to image files."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nediff.data.cache import DEFAULT_CACHE_BYTES, Store
from nediff.data.files import ImageFile, open_file, wrap_array
from nediff.data.formats import ENDINGS, ZARR, format_of, place_of
from nediff.data.shards import shard_files, shard_urls
from nediff.errors import NediffError, did_you_mean_path

PathLike: TypeAlias = str | os.PathLike[str]
Source: TypeAlias = PathLike | Sequence[PathLike] | NDArray[Any]


def list_files(
    source: Source, axes: str | None = None, cache_bytes: int = DEFAULT_CACHE_BYTES
) -> list[ImageFile]:
    """Find the images of a source and read their headers.

    A folder stands for the image files directly in it, in natural order (2 before 10), or for
    the shards in it; see shards.py. The files share one cache of ``cache_bytes`` for decoded
    images.
    """
    store = Store(cache_bytes)
    if isinstance(source, np.ndarray):
        return [wrap_array(source, axes, store)]
    items = [source] if isinstance(source, str | os.PathLike) else list(source)
    shards = [shard_urls(item) for item in items]
    if any(shards):
        if not all(shards):
            raise NediffError("Name shards (.tar) or images, not both.")
        files = shard_files([url for urls in shards for url in urls], axes, store)
        _refuse_no_text(file.name for file in files)
        return files
    paths = [path for item in items for path in _expand(item)]
    if not paths:
        raise NediffError("No image files were given.")
    _refuse_no_text(map(str, paths))
    root = _root(paths)
    names = [path.absolute().relative_to(root).as_posix() for path in paths]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise NediffError(f"{twice[0]} is named twice; name every file once.")
    return [open_file(path, name, axes, store) for path, name in zip(paths, names, strict=True)]


def _refuse_no_text(names: Iterable[str]) -> None:
    """Names go into texts (run folders, CSV, JSON): bytes that are none could not be kept there."""
    for name in names:
        shown = name.encode("utf-8", "replace").decode()
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            raise NediffError(
                f"The name {shown} is no text in UTF-8 (each ? is a byte that is not); rename it."
            )


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
    if path.is_dir() and format_of(path) is not ZARR:
        return _in_folder(path)
    if path.exists() or place_of(path) != path:
        return [path]
    pattern = str(path)
    if not glob.has_magic(pattern):
        raise NediffError(f"{path} does not exist.{did_you_mean_path(path)}")
    found = [Path(p) for p in glob.glob(pattern, recursive=True)]
    images = [p for p in found if _is_image(p)]
    if not images:
        raise NediffError(f"No image matches {pattern}; the formats read are {ENDINGS}.")
    return sorted(images, key=_natural)


def would_read(source: PathLike, path: Path) -> bool:
    """Whether a folder or a glob would take in an image that came to be at ``path``."""
    item, place = Path(source).expanduser(), path.resolve()
    if item.is_dir() and format_of(item) is not ZARR:
        return place.parent == item.resolve()
    if item.exists() or not glob.has_magic(str(item)):
        return False
    parts = item.absolute().parts
    fixed = next(k for k, part in enumerate(parts) if glob.has_magic(part))
    root = Path(*parts[:fixed]).resolve()
    if not place.is_relative_to(root):
        return False
    return _matches(place.relative_to(root).parts, parts[fixed:])


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """As `glob` does: ** stands for any number of folders, nothing for what is hidden."""
    if not pattern or not names:
        return not names and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        deeper = not names[0].startswith(".") and _matches(names[1:], pattern)
        return deeper or _matches(names, pattern[1:])
    hidden = names[0].startswith(".") and not pattern[0].startswith(".")
    fits = fnmatch.fnmatch(names[0], pattern[0]) and not hidden
    return fits and _matches(names[1:], pattern[1:])


def _is_image(path: Path) -> bool:
    """A file by its ending, or a Zarr folder (not what is in one)."""
    if path.suffix.lower() in ZARR.suffixes:
        return path.is_dir()
    return path.is_file() and format_of(path) not in (None, ZARR)


def _in_folder(folder: Path) -> list[Path]:
    try:
        entries = [p for p in folder.iterdir() if not p.name.startswith(".")]
    except OSError as error:
        raise NediffError(f"The folder {folder} cannot be read: {error.strerror}.") from error
    images = [p for p in entries if _is_image(p)]
    if images:
        return sorted(images, key=_natural)
    folders = sorted((p for p in entries if p.is_dir()), key=_natural)
    if folders:
        raise NediffError(
            f"The folder {folder} has no images directly in it, only sub-folders; name one of "
            f"them, such as {folders[0]}, or a pattern such as '{folder}/**/*.png'."
        )
    raise NediffError(f"The folder {folder} has no images; the formats read are {ENDINGS}.")
