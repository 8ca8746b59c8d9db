"""Data sets in tar files (WebDataset's shards), on a disk or at a URL, never unpacked.

Each shard is looked through once for where its images lie; this index is kept. Images are then
fetched one by one when a batch needs them, so that any order is as good as any other: batches,
splits and resuming are those of a folder. Copies of what was fetched are kept (kept.py).
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np

from nediff.data.atomic import atomic_path
from nediff.data.cache import Store
from nediff.data.files import ImageFile
from nediff.data.formats import FORMATS, HDF5, JPEG, NPY, PNG, WEBP, ZARR
from nediff.data.header import Header, reading
from nediff.data.kept import cache_folder, kept_members
from nediff.data.layout import Array, Layout
from nediff.errors import NediffError

T = TypeVar("T")

SUFFIX = ".tar"
AT_ONCE = 8
"""So many requests are under way at a time."""
_TRIES = 3
_BEGINNING = 2**15
"""Bytes that hold the header of these formats; the tags of a TIFF may be anywhere."""
_FROM_BEGINNING = (PNG, JPEG, WEBP, NPY)
_LONGEST_NAME = 2**20
_INDEX_VERSION = 1


@dataclass(frozen=True)
class Member:
    """An image in a shard: its name there, and where its bytes are."""

    url: str
    name: str
    offset: int
    size: int

    def fetch(self) -> Path:
        """The path of a copy on this machine."""
        text = f"{self.url}\n{self.offset}\n{self.size}\n{_changed(self.url)}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        name = digest + PurePosixPath(self.name).suffix.lower()
        return kept_members(cache_folder()).get(name, self.size, self.content)

    def content(self) -> bytes:
        """Its bytes, from where they are."""
        return _bytes(self.url, self.offset, self.size)


@dataclass(frozen=True, eq=False)
class ShardFile(ImageFile):
    """An image file inside a shard; it has no path of its own."""

    member: Member | None = None

    def fetch(self) -> Path:
        """The path of a copy, which may be gone soon."""
        assert self.member is not None
        return self.member.fetch()

    def _mapped(self) -> Array:
        key = (os.getpid(), self.member)
        array: Array = self.store.handles.get(key, lambda: self._opened(self.kind.open_map))
        return array

    def _decoded(self, page: int) -> Array:
        layout, store = self.header.layout, self.store

        def decode(path: Path) -> Array:
            return self.kind.decode(path, layout, page, store)

        return self.store.images.get((self.member, page), lambda: self._opened(decode))

    def _opened(self, read: Callable[[Path], Array]) -> Array:
        for _ in range(_TRIES):
            try:
                return read(self.fetch())
            except FileNotFoundError:  # removed to make room, just now
                continue
        assert self.member is not None  # there is no room for it, not even for a moment
        suffix = PurePosixPath(self.member.name).suffix.lower()
        return _with_file(self.member.content(), self.member.size, suffix, read)


def shard_urls(item: str | os.PathLike[str]) -> list[str]:
    """The shards that a name, folder, glob, {000..099} or URL stands for; none if it has none."""
    if not isinstance(item, str):
        return _local_shards(Path(item))
    names = expand_braces(item)
    if len(names) > 1:
        return [url for name in names for url in shard_urls(name)]
    if "://" in item:
        return _remote_shards(item)
    return _local_shards(Path(item).expanduser())


def expand_braces(text: str) -> list[str]:
    """train-{08..11}.tar → train-08.tar … train-11.tar; and {a,b} → a, b."""
    found = re.search(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}", text)
    if found is None or Path(text).exists():
        return [text]
    first, last, listed = found.groups()
    if listed is not None:
        middle = listed.split(",")
    else:
        if not 0 <= int(last) - int(first) < 10**6:
            raise NediffError(f"{text} stands for no shards, or for more than a million.")
        middle = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    before, after = text[: found.start()], text[found.end() :]
    return [name for part in middle for name in expand_braces(before + part + after)]


def _local_shards(path: Path) -> list[str]:
    if path.suffix.lower() == SUFFIX:
        if path.is_file():
            return [str(path.absolute())]
        found = sorted(glob.glob(str(path), recursive=True))
        if not found:
            raise NediffError(f"{path} does not exist.")
        return [str(Path(p).absolute()) for p in found]
    if not path.is_dir() or path.suffix.lower() in FORMATS:
        return []
    inside = [p for p in path.iterdir() if not p.name.startswith(".") and p.is_file()]
    if any(p.suffix.lower() in FORMATS for p in inside):
        return []
    return [str(p.absolute()) for p in sorted(inside) if p.suffix.lower() == SUFFIX]


def _remote_shards(url: str) -> list[str]:
    if urlsplit(url).path.lower().endswith(SUFFIX) and not glob.has_magic(urlsplit(url).path):
        return [url]
    with _talking(url):
        system, path = _system(url)
        listed = system.glob(path) if glob.has_magic(url) else system.ls(path, detail=False)
        found = sorted({str(p) for p in listed if str(p).lower().endswith(SUFFIX)})
        urls = [system.unstrip_protocol(p) for p in found]
    if not urls:
        raise NediffError(f"{url} lists no {SUFFIX} files; at a URL, data are read from shards.")
    return urls


def shard_files(urls: Sequence[str], axes: str | None, store: Store) -> list[ImageFile]:
    """The images of all shards, named after shard and member, in the order of the shards."""
    twice = {url for url in urls if urls.count(url) > 1} if len(set(urls)) < len(urls) else set()
    if twice:
        raise NediffError(f"{min(twice)} is named twice; name every shard once.")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        indices = list(pool.map(lambda url: _index(url, axes), urls))
    names = _short_names(urls)
    files: list[ImageFile] = []
    for name, index in zip(names, indices, strict=True):
        for member, header in index:
            kind = FORMATS[PurePosixPath(member.name).suffix.lower()]
            files.append(
                ShardFile(f"{name}/{member.name}", None, kind, header, store, None, member)
            )
    if not files:
        raise NediffError(f"There are no images in {urls[0]}; the formats read are {_ENDINGS}.")
    return files


def prepare(files: Iterable[ImageFile], wait: bool = True) -> None:
    """Fetch those that are in shards, many at a time; one by one, each would be waited for."""
    futures: list[Future[Path]] = [
        _pool().submit(file.fetch) for file in set(files) if isinstance(file, ShardFile)
    ]
    if wait:
        for future in futures:
            future.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="shards")


def public_name(source: str) -> str:
    """What may be written down of a URL: without what follows a question mark, or a password."""
    if "://" not in source:
        return source
    parts = urlsplit(source)
    return parts._replace(query="", netloc=parts.netloc.rpartition("@")[2]).geturl()


def _short_names(urls: Sequence[str]) -> list[str]:
    """Without what they have in common, and without what follows a question mark."""
    plain = [url.split("?")[0] for url in urls]
    folders = [name.split("/")[:-1] for name in plain]
    common = 0
    while len(parts := {tuple(folder[: common + 1]) for folder in folders}) == 1:
        if len(next(iter(parts))) <= common:
            break
        common += 1
    return ["/".join(name.split("/")[common:]) for name in plain]


# --- what is in a shard -------------------------------------------------------------------------

Index = list[tuple[Member, Header]]


def _index(url: str, axes: str | None) -> Index:
    """Where the images of a shard are, and their headers; looked up if it was looked through."""
    changed = _changed(url)
    text = json.dumps([_INDEX_VERSION, url, changed, axes])
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    path = cache_folder() / "index" / f"{digest}.json"
    if changed is not None and path.is_file():
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))
            return [(Member(url, *row[:3]), _header(row[3])) for row in rows]
        except (ValueError, TypeError, KeyError):
            pass  # cut short: made again
    index = [(member, _header_of(member, start, axes)) for member, start in _looked_through(url)]
    if changed is not None:
        rows = [[m.name, m.offset, m.size, _plain(header)] for m, header in index]
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(rows), encoding="utf-8")
    return index


def _plain(header: Header) -> dict[str, Any]:
    return asdict(header) | {"dtype": header.dtype.str}


def _header(values: dict[str, Any]) -> Header:
    layout = Layout(values["layout"]["axes"], tuple(values["layout"]["shape"]))
    return Header(**(values | {"layout": layout, "dtype": np.dtype(values["dtype"])}))


def _looked_through(url: str) -> Iterator[tuple[Member, bytes]]:
    """(member, how it begins) for the images of a shard; anything odd is refused."""
    where, seen = public_name(url), set[str]()
    with _stream(url) as (stream, size):
        try:
            tar = tarfile.TarFile(fileobj=_Careful(stream, where), mode="r")  # type: ignore[arg-type]
            for info in tar:
                name = _checked_name(info, size, where)
                if name is None:
                    continue
                if name in seen:
                    raise NediffError(f"{where} has two members called {name}; remove one.")
                seen.add(name)
                stream.seek(info.offset_data)
                start = stream.read(min(info.size, _BEGINNING))
                yield Member(url, name, info.offset_data, info.size), start
            stream.seek(tar.offset)
            end = stream.read(512)
        except (tarfile.TarError, ValueError, OverflowError) as error:
            raise _damaged(where, str(error)) from error
    if not end:
        raise _damaged(where, "it is cut short")
    if end.strip(b"\0"):
        raise _damaged(where, f"byte {tar.offset} begins no member")


def _checked_name(info: tarfile.TarInfo, size: int, where: str) -> str | None:
    """The name of an image, None for what is none; hostile members are refused."""
    path = PurePosixPath(info.name)
    if path.is_absolute() or ".." in path.parts or "\0" in info.name or "\\" in info.name:
        raise NediffError(f"{where} has a member {info.name!r}, whose name leads out of it.")
    if info.isdir():
        return None
    if not info.isreg() or info.issparse():
        raise NediffError(
            f"{where} has a member {info.name!r} that is no plain file but a link, a device or "
            "the like; pack the files themselves."
        )
    if info.size < 0 or info.offset_data + info.size > size:
        raise NediffError(
            f"{where} is cut short, or {info.name!r} claims more bytes ({info.size}) than there "
            "are."
        )
    kind = FORMATS.get(path.suffix.lower())
    if kind in (None, HDF5, ZARR) or path.name.startswith("."):
        return None
    return path.as_posix()


def _header_of(member: Member, start: bytes, axes: str | None) -> Header:
    """From the beginning of the file where that is enough, as if the rest were zeros."""
    suffix = PurePosixPath(member.name).suffix.lower()
    kind, where = FORMATS[suffix], f"{public_name(member.url)}/{member.name}"
    whole = len(start) == member.size
    if not whole and kind in _FROM_BEGINNING:
        try:
            return _with_file(start, member.size, suffix, lambda path: kind.header(path, axes))
        except Exception:  # the header is longer than that, or damaged: the whole file tells
            pass
    content = start if whole else member.content()
    with reading(where, kind.name):
        return _with_file(content, member.size, suffix, lambda path: kind.header(path, axes))


def _with_file(content: bytes, size: int, suffix: str, read: Callable[[Path], T]) -> T:
    with tempfile.TemporaryDirectory(prefix="nediff-") as folder:
        path = Path(folder, f"image{suffix}")
        path.write_bytes(content)
        os.truncate(path, size)
        return read(path)


class _Careful:
    """A stream of which a tar file's own headers, long names and such, may not take too much."""

    def __init__(self, stream: Any, where: str) -> None:
        self._stream, self._where = stream, where
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, count: int) -> bytes:
        """Like the stream's."""
        if count > _LONGEST_NAME:
            raise NediffError(f"{self._where} claims a name or header of {count} bytes.")
        content: bytes = self._stream.read(count)
        return content


def _damaged(where: str, why: str) -> NediffError:
    return NediffError(
        f"{where} cannot be read as a tar file ({why}); shards must be whole and not compressed: "
        "pack it again."
    )


# --- where shards are ---------------------------------------------------------------------------


@cache
def _system(url: str) -> tuple[Any, str]:
    """The file system of fsspec that has it, and its name there."""
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url)
    return system, str(path)


@contextmanager
def _talking(url: str) -> Iterator[None]:
    """Say what goes wrong on the way in a sentence."""
    where = public_name(url)
    try:
        yield
    except NediffError:
        raise
    except FileNotFoundError as error:
        raise NediffError(f"{where} does not exist.") from error
    except ImportError as error:
        raise NediffError(
            f"{where} needs a package that is not installed ({error}): pip install nediff[shards]."
        ) from error
    except Exception as error:  # any file system of fsspec has errors of its own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise NediffError(f"{where} cannot be read: {reason}.") from error


@cache
def _changed(url: str) -> str | None:
    """What changes with the contents of a shard; None if nothing says so."""
    with _talking(url):
        system, path = _system(url)
        known = system.info(path)
        marks = [known.get(key) for key in ("ETag", "mtime", "LastModified", "last_modified")]
        mark = next((m for m in marks if m is not None), None)
        return None if mark is None else f"{known['size']} {mark}"


@contextmanager
def _stream(url: str) -> Iterator[tuple[Any, int]]:
    """The shard as a file to seek in, and its size."""
    with _talking(url):
        system, path = _system(url)
        size = system.info(path).get("size")
        if size is None:
            raise NediffError(f"{public_name(url)}: its server does not say how large it is.")
        local = "file" in system.protocol
        how = {} if local else {"block_size": _BEGINNING, "cache_type": "readahead"}
        with system.open(path, "rb", **how) as stream:
            yield stream, int(size)


def _bytes(url: str, start: int, count: int) -> bytes:
    """Some bytes of a shard; the network is tried again, a few times."""
    for attempt in range(_TRIES):
        try:
            with _talking(url):
                system, path = _system(url)
                content: bytes = system.cat_file(path, start=start, end=start + count)
            break
        except NediffError as error:
            if attempt == _TRIES - 1 or isinstance(error.__cause__, FileNotFoundError):
                raise
            time.sleep(2.0**attempt)
    if len(content) != count:
        raise NediffError(
            f"{public_name(url)}: {count} bytes were asked for and {len(content)} came; the "
            "shard changed, or its server does not give parts of files (range requests)."
        )
    return content


_ENDINGS = ", ".join(s for s, kind in FORMATS.items() if kind not in (HDF5, ZARR))
