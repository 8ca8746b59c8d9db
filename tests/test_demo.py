"""`nediff demo`, made small: what it leaves behind, and what it leaves alone."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from PIL import Image

from nediff.cli import demo
from nediff.errors import NediffError
from nediff.runs import load_config
from nediff.training.fitting import Plan
from tests.command import tree


def tiny_plan(minutes: float, seed: int) -> Plan:
    """The demo's plan with three steps in place of minutes."""
    return Plan(steps=3, size="tiny", crop=24, batch=2, seed=seed)


def _no_network(*_: object, **__: object) -> NoReturn:
    raise AssertionError("the demo must not go to the network")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds in place of minutes, and without any way out to the network."""
    monkeypatch.setattr(demo, "SIDE", 48)
    monkeypatch.setattr(demo, "SAMPLES", 2)
    monkeypatch.setattr(demo, "TRAIN", demo.TRAIN[:2])
    monkeypatch.setattr(demo, "Plan", tiny_plan)
    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, _no_network)
    monkeypatch.setattr(socket, "getaddrinfo", _no_network)


@pytest.fixture
def done(tmp_path: Path) -> Path:
    out = tmp_path / "new" / "demo"
    demo.run_demo(out, 1.0, tmp_path / "asked.json")
    return out


def test_what_the_demo_leaves_behind(done: Path) -> None:
    assert sorted(p.name for p in done.iterdir()) == [
        "figures.json",
        "overview.jpg",
        "report.html",
        "run",
        "truth",
    ]
    with Image.open(done / "overview.jpg") as picture:
        assert picture.format == "JPEG"
        assert np.asarray(picture).std() > 5  # a picture, not an empty sheet
    figures = json.loads((done / "figures.json").read_text())
    assert json.loads((done.parents[1] / "asked.json").read_text()) == figures  # --json
    assert len(figures["levels"]) == 6
    assert all(np.isfinite(level["psnr"]) for level in figures["levels"])
    config = load_config(done / "run")
    assert (config.data.images, config.data.channels) == (2, 3)
    assert config.data.sigma == config.data.simulate == demo.SIGMA
    assert (done / "run" / "model.safetensors").is_file()
    for name in demo.HELD_OUT:
        with Image.open(done / "truth" / name) as square:
            assert (square.mode, square.size) == ("RGB", (48, 48))


def test_the_report_says_what_was_done(done: Path) -> None:
    report = (done / "report.html").read_text(encoding="utf-8")
    assert "2 colour photographs were corrupted once with white Gaussian noise" in report
    assert f"σ = {demo.SIGMA}" in report
    assert "it never saw a clean one" in report
    for name in demo.HELD_OUT:
        assert Path(name).stem.capitalize() in report
    for address in ('src="http', 'href="http', "url(http", "@import"):
        assert address not in report  # it is read without a network too


def test_demo_says_where_the_report_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    demo.run_demo(tmp_path, 1.0)
    said = "".join(capfd.readouterr())
    assert all(f"{k}/4" in said for k in range(1, 5))
    assert str(tmp_path / "report.html") in "".join(said.split("\n"))


def test_demo_again_replaces_its_own_run(done: Path) -> None:
    before = {name: (done / name).read_bytes() for name in ("figures.json", "run/config.yaml")}
    (done / "run" / "stale").write_text("of the run before")
    demo.run_demo(done, 1.0)
    assert not (done / "run" / "stale").exists()
    assert {name: (done / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("kind", ["notes", "other run", "broken run", "file"])
def test_demo_never_deletes_what_is_not_its_own(done: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    if kind == "file":
        (out / "run").write_text("a file of that name")
    else:
        (out / "run").mkdir()
        (out / "run" / "thesis.txt").write_text("years of work")
    config = (done / "run" / "config.yaml").read_text()
    if kind == "other run":
        dropped = ("  source:", "# sha256")  # the checksum of what is changed here
        lines = [line for line in config.splitlines() if not line.startswith(dropped)]
        lines.insert(lines.index("data:") + 1, "  source: my/own/images")
        (out / "run" / "config.yaml").write_text("\n".join(lines))
        assert load_config(out / "run").data.source == "my/own/images"
    elif kind == "broken run":
        (out / "run" / "config.yaml").write_text(config[: len(config) // 2] + "\n: [")
    before = tree(out)
    with pytest.raises(NediffError, match="run") as caught:
        demo.run_demo(out, 1.0)
    assert str(out / "run") in str(caught.value)
    assert tree(out) == before
