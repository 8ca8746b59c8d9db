"""Zarr, and OME-Zarr: an array in a folder of chunks, read and written window by window.

A group with several arrays is named with the one that is meant: plate.zarr/raw. Of the
resolutions of an OME-Zarr image it is the finest.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nediff.data.cache import Store
from nediff.data.header import Header
from nediff.data.layout import Array, Layout
from nediff.data.limits import refuse_chunk, refuse_claim
from nediff.data.nested import Nested, choose, nested_header, split_at
from nediff.errors import NediffError

SUFFIXES = (".zarr",)
_CHUNK = 512
_METADATA = (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")
_MOST_METADATA = 2**26
_PACKED = ("compressor", "filters", "codecs", "index_codecs")
_CODECS = {
    *("blosc", "zlib", "gzip", "bz2", "lzma", "zstd", "lz4", "delta", "shuffle", "bitround"),
    *("packbits", "quantize", "fixedscaleoffset", "astype", "crc32", "crc32c", "adler32"),
    *("fletcher32", "jenkins_lookup3", "bytes", "transpose", "sharding_indexed"),
    *(f"numcodecs.{name}" for name in ("blosc", "zlib", "gzip", "bz2", "lzma", "zstd", "lz4")),
    *(f"numcodecs.{name}" for name in ("delta", "shuffle", "bitround", "crc32", "crc32c")),
}
"""None of them runs anything; pickle, and the codecs for objects, are not here."""


def header(path: Path, axes: str | None) -> Header:
    """Shape, type and, where the metadata say so, the axes."""
    return nested_header(open_map(path), axes, str(path))


def open_map(path: Path, mode: Literal["r", "r+"] = "r") -> Array:
    """The array, which is indexed like one in memory."""
    import zarr

    place, inside = split_at(path, SUFFIXES)
    stored = vetted(place)
    root = zarr.open(str(place), mode=mode)
    array = _array(root, inside, path)
    if mode == "r":
        _refuse_claims(array, stored, path)
    return array


def _refuse_claims(array: Any, stored: int, path: Path) -> None:
    """Values that cannot be in a folder of so many bytes, and chunks that fit nowhere."""
    refuse_claim(array.dtype.itemsize * math.prod(array.shape), stored, str(path))
    refuse_chunk(array.dtype.itemsize * math.prod(array.chunks), str(path))


def _array(root: Any, inside: str, path: Path) -> Array:
    if not hasattr(root, "arrays"):  # not a group
        return Nested(root)  # type: ignore[return-value]
    scales = _multiscales(dict(root.attrs))
    if scales is not None and not inside:
        array = root[scales["datasets"][0]["path"]]
        return Nested(array, _letters(scales))  # type: ignore[return-value]
    return Nested(choose(_arrays(root), inside, path))  # type: ignore[return-value]


def vetted(place: Path) -> int:
    """Bytes of a Zarr folder; refuses one that could do more than hold numbers.

    Its metadata name the codecs that unpack it, and one of those that exist is pickle, which runs
    what it unpacks. So they are looked at before Zarr itself opens them.
    """
    stored = 0
    for folder, folders, files in os.walk(place):
        for name in (*folders, *files):
            path = Path(folder) / name
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise NediffError(
                    f"{path} is a link, a pipe or a device, and not part of the array; copy what "
                    "it stands for."
                )
        for name in files:
            path = Path(folder) / name
            stored += path.stat().st_size
            if name in _METADATA:
                _refuse_codecs(_json(path), path)
    return stored


def _json(path: Path) -> Any:
    if path.stat().st_size > _MOST_METADATA:
        raise NediffError(f"{path} is too long for what it should be.")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise NediffError(f"{path} is damaged: it is no JSON.") from error


def _refuse_codecs(value: Any, path: Path) -> None:
    """Codecs are dicts with an id (version 2) or a name (3), wherever they are."""
    waiting = [(value, False)]
    while waiting:
        here, codec = waiting.pop()
        if isinstance(here, list):
            waiting += [(item, codec) for item in here]
        if not isinstance(here, dict):
            continue
        named = here.get("id", here.get("name"))
        if codec and named not in _CODECS:
            raise NediffError(
                f"{path} is packed with the codec {named!r}, which is not one of those that are "
                "known to hold nothing but numbers; save it with Blosc, Zstandard or gzip."
            )
        waiting += [(item, key in _PACKED) for key, item in here.items()]


def _arrays(group: Any, prefix: str = "") -> dict[str, Any]:
    found = {prefix + name: array for name, array in group.arrays() if array.ndim >= 2}
    for name, inner in group.groups():
        found |= _arrays(inner, f"{prefix}{name}/")
    return found


def _multiscales(attributes: dict[str, Any]) -> dict[str, Any] | None:
    """The first image of OME-Zarr metadata, versions 0.4 and 0.5."""
    images = attributes.get("ome", attributes).get("multiscales")
    return images[0] if images else None


def _letters(scales: dict[str, Any]) -> str | None:
    """Such as TCZYX."""
    axes = [a["name"] if isinstance(a, dict) else a for a in scales.get("axes", [])]
    return "".join(str(name)[:1].upper() for name in axes) or None


def decode(path: Path, layout: Layout, page: int, store: Store) -> Array:
    """Never called: arrays are read in parts."""
    raise NotImplementedError


def create(path: Path, header: Header) -> Array:
    """A new array of the header's layout, as an OME-Zarr image of one resolution."""
    import zarr

    layout = header.layout
    sizes = zip(layout.axes, layout.shape, strict=True)
    chunks = tuple(min(n, _CHUNK) if axis in "YX" else 1 for axis, n in sizes)
    size: dict[str, Any] = {"shape": layout.shape, "chunks": chunks, "dtype": header.dtype}
    if zarr.__version__.startswith("2."):
        group = zarr.open_group(str(path), mode="w")
        group.create_dataset("0", dimension_separator="/", **size)
    else:
        group = zarr.open_group(str(path), mode="w", zarr_format=2)
        group.create_array("0", chunk_key_encoding={"name": "v2", "separator": "/"}, **size)
    axes = [{"name": a.lower(), "type": _TYPES.get(a, "space")} for a in layout.axes]
    scale = {"type": "scale", "scale": [1.0] * len(axes)}
    level = {"path": "0", "coordinateTransformations": [scale]}
    group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": [level]}]
    return open_map(path, "r+")


_TYPES = {"T": "time", "C": "channel", "S": "channel", "I": "time"}


def write(path: Path, header: Header, images: Iterable[Array], source: Path | None) -> None:
    """Write the images, each (C, H, W), in the layout of the header."""
    array = create(path, header)
    for page, image in enumerate(images):
        header.layout.put(array, page, np.asarray(image))
