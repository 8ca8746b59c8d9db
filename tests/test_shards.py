"""Data sets in tar files, from a disk and over HTTP: the same images, in any order."""

from __future__ import annotations

import io
import os
import re
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
import tifffile
import torch

from nediff.config import RunConfig
from nediff.data import Measurements, list_files, open_measurements, shards
from nediff.data.kept import Kept, kept_members
from nediff.errors import NediffError
from nediff.problem import Problem
from nediff.training.batches import BatchSource
from nediff.training.fitting import Plan, plan_run, run_training, start_folder
from tests.command import SIGMA, nediff, noisy
from tests.test_resume import assert_same_run, stop_after


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every test begins with nothing kept."""
    monkeypatch.setenv("NEDIFF_CACHE", str(tmp_path / "cache"))
    for kept in (shards._changed, shards._system, kept_members):
        kept.cache_clear()
    yield tmp_path / "cache"
    shards._changed.cache_clear()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images of three formats, in a folder."""
    folder = tmp_path_factory.mktemp("images") / "flat"
    folder.mkdir()
    for i in range(6):
        values = (60000 * np.clip(noisy(i, 40 + 8 * i, 48), 0, 1)).astype(np.uint16)
        if i % 3 == 0:
            tifffile.imwrite(folder / f"{i}.tif", values, compression="deflate")
        elif i % 3 == 1:
            np.save(folder / f"{i}.npy", values)
        else:
            (folder / f"{i}.png").write_bytes(imagecodecs.png_encode(values))
    return folder


@pytest.fixture(scope="module")
def packed(images: Path) -> Path:
    """The same in two shards, among other things."""
    folder = images.parent / "shards"
    folder.mkdir()
    for k in range(2):
        with tarfile.open(folder / f"train-{k:03d}.tar", "w") as tar:
            add(tar, f"{k}/about.json", b"{}")
            for path in sorted(images.iterdir())[3 * k : 3 * k + 3]:
                add(tar, f"{k}/{path.name}", path.read_bytes())
                add(tar, f"{k}/{path.stem}.cls", b"7")
    return folder


def add(tar: tarfile.TarFile, name: str, content: bytes, **changes: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in changes.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(content) if info.isreg() else None)


class Server(ThreadingHTTPServer):
    """Gives parts of the files of a folder, and counts what it gave."""

    daemon_threads = True

    def __init__(self, folder: Path, ranges: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.ranges, self.given = folder, ranges, 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        path = server.folder / self.path.split("?")[0].strip("/")
        if path.is_dir():
            links = "".join(f'<a href="{p.name}">{p.name}</a>\n' for p in sorted(path.iterdir()))
            self._answer(200, links.encode(), {"Content-Type": "text/html"})
        elif not path.is_file():
            self._answer(404, b"", {})
        else:
            self._file(path.read_bytes(), server)

    def _file(self, content: bytes, server: Server) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        headers = {"ETag": f'"{hash(content)}"'}
        if asked and server.ranges:
            first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            content = content[first : last + 1]
        elif server.ranges:
            headers["Accept-Ranges"] = "bytes"
        server.given += len(content) if self.command == "GET" else 0
        self._answer(206 if "Content-Range" in headers else 200, content, headers)

    def _answer(self, code: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture
def server(packed: Path) -> Iterator[Server]:
    pytest.importorskip("aiohttp", reason="HTTP needs nediff[shards]")
    with Server(packed) as running:
        yield running
        running.shutdown()


def batches(measurements: Measurements) -> BatchSource:
    return BatchSource(measurements, Problem.denoising(SIGMA), 16, 4, (1, 2), (0.5, 0.5), seed=3)


def assert_same_images(one: Measurements, other: Measurements) -> None:
    assert len(one) == len(other)
    assert one.range == other.range
    assert one.within_variance == pytest.approx(other.within_variance, rel=1e-12)
    for i in range(len(one)):
        assert np.array_equal(one.image(i), other.image(i))
    for step in range(3):
        for (a, x), (b, y) in zip(
            batches(one).groups(step), batches(other).groups(step), strict=True
        ):
            assert a == b
            assert torch.equal(x.y, y.y)


@pytest.mark.parametrize("name", ["", "/*.tar", "/train-{000..001}.tar", "/train-{000,001}.tar"])
def test_shards_on_a_disk_are_a_folder_of_images(images: Path, packed: Path, name: str) -> None:
    found = open_measurements(f"{packed}{name}")
    assert [found.name(i) for i in range(6)] == [
        f"train-00{i // 3}.tar/{i // 3}/{path.name}"
        for i, path in enumerate(sorted(images.iterdir()))
    ]
    assert_same_images(found, open_measurements(images))


@pytest.mark.parametrize("name", ["/", "/*.tar", "/train-{000..001}.tar?token=1"])
def test_shards_at_a_url_are_the_same(images: Path, server: Server, name: str) -> None:
    found = open_measurements(server.url + name)
    assert "token" not in found.name(0)
    assert_same_images(found, open_measurements(images))


def test_what_was_fetched_and_looked_through_is_kept(server: Server, own_cache: Path) -> None:
    name = f"{server.url}/train-{{000..001}}.tar"
    first = open_measurements(name)
    given = server.given
    assert given > 0
    again = open_measurements(name)
    assert server.given == given
    assert again.fingerprint == first.fingerprint
    for index in own_cache.glob("index/*.json"):  # cut short, as after a crash of the machine
        index.write_text(index.read_text()[:-20])
    assert open_measurements(name).fingerprint == first.fingerprint
    assert server.given > given


def test_a_run_over_http_is_resumed_exactly_in_the_middle_of_an_epoch(
    server: Server, tmp_path: Path
) -> None:
    """An epoch would be 5 images of several crops each; it stops after 5 crops."""

    def planned() -> tuple[RunConfig, Measurements]:
        data = open_measurements(f"{server.url}/train-{{000..001}}.tar")
        plan = Plan(steps=8, size="tiny", crop=16, batch=1, recipe="sure")
        return plan_run(data, Problem.denoising(SIGMA), plan, "shards"), data

    for name, stops in (("a", ()), ("b", (5,))):
        config, data = planned()
        start_folder(tmp_path / name, config)
        for stop in stops:
            run_training(config, data, tmp_path / name, stop=stop_after(stop))
            config, data = planned()
        run_training(config, data, tmp_path / name)
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_the_folder_of_copies_stays_small_and_loses_nothing(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept", limit=10_000)
    fetched = []

    def fetch(k: int) -> Callable[[], bytes]:
        def content() -> bytes:
            fetched.append(k)
            return bytes([k]) * 1000

        return content

    for k in (*range(40), 39, 0):
        path = kept.get(f"{k:04d}.x", 1000, fetch(k))
        assert path.read_bytes() == bytes([k]) * 1000
        assert sum(p.stat().st_size for p in kept.folder.rglob("*.x")) <= 10_000 + 1000
    assert fetched == [*range(40), 0]  # 39 was still there, 0 had made room
    path.write_bytes(b"cut")
    assert kept.get("0000.x", 1000, fetch(0)).read_bytes() == bytes(1000)


def test_more_images_than_are_kept(
    packed: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every copy is removed before it is wanted again; nothing but time is lost."""
    monkeypatch.setenv("NEDIFF_CACHE_GB", "1e-8")
    assert_same_images(open_measurements(packed, cache_bytes=1), open_measurements(images))


def restored(archive: bytes | Path, tmp_path: Path) -> str:
    """What `nediff train` says of a hostile shard."""
    path = archive if isinstance(archive, Path) else tmp_path / "bad.tar"
    if isinstance(archive, bytes):
        path.write_bytes(archive)
    outcome = nediff("train", path, "--sigma", 0.1, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert not (tmp_path / "run").exists()
    return outcome.err


def archive(*members: tuple[str, bytes, dict[str, object]]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, data, changes in members:
            add(tar, name, data, **changes)
    return content.getvalue()


PNG = imagecodecs.png_encode(np.arange(64, dtype=np.uint8).reshape(8, 8))
HUGE = archive(("a.png", PNG, {})).replace(f"{len(PNG):011o}".encode(), b"77777777777", 1)


@pytest.mark.parametrize(
    ("hostile", "words"),
    [
        (archive(("../../evil.png", PNG, {})), "leads out of it"),
        (archive(("/etc/evil.png", PNG, {})), "leads out of it"),
        (archive(("a.png", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})), "a link"),
        (archive(("a.png", b"", {"type": tarfile.LNKTYPE, "linkname": "b.png"})), "a link"),
        (archive(("a.png", b"", {"type": tarfile.CHRTYPE})), "a device"),
        (archive(("a.png", b"", {"type": tarfile.FIFOTYPE})), "a device"),
        (archive(("a.png", PNG, {}), ("a.png", PNG, {})), "two members"),
        (archive(("a.txt", PNG, {})), "no images"),
        (archive(("a.png", b"not a picture", {})), "cannot be read as PNG"),
        (archive(("a.png", PNG, {}))[:512], "cut short"),
        (archive(("a.png", PNG, {}))[:1024], "cut short"),
        (archive(("a.png", PNG, {}), ("b.png", PNG, {}))[:1024] + b"\1" * 2048, "begins no member"),
        (b"\x1f\x8b" + bytes(1000), "not compressed"),
        (b"", "cannot be read as a tar"),
    ],
)
def test_hostile_shards_end_in_a_sentence(tmp_path: Path, hostile: bytes, words: str) -> None:
    assert words in " ".join(restored(hostile, tmp_path).split())


def test_absurd_sizes_end_in_a_sentence(tmp_path: Path) -> None:
    """Of a member, and of a long name, which would be read into memory."""
    info = tarfile.TarInfo("a.png")
    info.size = 8**11 - 1
    assert "claims more bytes" in restored(info.tobuf() + bytes(1024), tmp_path)
    info = tarfile.TarInfo("././@LongLink")
    info.size, info.type = 8**10, tarfile.GNUTYPE_LONGNAME
    assert "claims a name or header" in restored(info.tobuf() + bytes(1024), tmp_path)


def test_what_cannot_be_fetched_is_said(server: Server, tmp_path: Path) -> None:
    outcome = nediff("train", f"{server.url}/no.tar", "--sigma", 0.1, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert "no.tar does not exist" in outcome.err
    server.ranges = False
    found = nediff(
        "train", f"{server.url}/train-000.tar", "--sigma", 0.1, "--out", tmp_path / "run"
    )
    assert found.code == 2
    assert "Traceback" not in found.err


def test_braces() -> None:
    assert shards.expand_braces("a-{008..010}.tar") == [f"a-{n:03d}.tar" for n in (8, 9, 10)]
    assert shards.expand_braces("{a,b}/{1..2}.tar") == ["a/1.tar", "a/2.tar", "b/1.tar", "b/2.tar"]
    assert shards.expand_braces("a{b}c.png") == ["a{b}c.png"]
    with pytest.raises(NediffError, match="million"):
        shards.expand_braces("{0..99999999}.tar")


def test_secrets_of_a_url_are_not_written_down() -> None:
    assert shards.public_name("https://me:pass@host:80/a.tar?key=1") == "https://host:80/a.tar"
    assert shards.public_name("what?/a.tar") == "what?/a.tar"


def test_shards_and_images_are_not_mixed(images: Path, packed: Path) -> None:
    with pytest.raises(NediffError, match="not both"):
        list_files([packed / "train-000.tar", images / "0.tif"])
    assert os.environ["NEDIFF_CACHE"]
