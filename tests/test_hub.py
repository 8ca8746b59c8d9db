"""Publishing a run and fetching it again, against a stand-in of the hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from nediff.errors import NediffError
from nediff.hub import PUBLISHED, download_run
from nediff.restorer import Restorer
from tests.command import SIGMA, TINY, float_folder, noisy, succeeded
from tests.hub_server import Hub

pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    data = float_folder(folder / "secret-project" / "cells")
    command = ("train", data, "--sigma", SIGMA, "--steps", 2, "--out", folder / "run")
    succeeded(*command, *TINY)
    return folder / "run"


PUSH = """
import sys, nediff
print(nediff.load(sys.argv[1]).push_to_hub("you/cells", token="hf_none"))
"""
FETCH = """
import sys, numpy as np, nediff
restorer = nediff.Restorer.from_pretrained("you/cells", token=False)
np.save(sys.argv[2], restorer.restore(np.load(sys.argv[1])))
"""


def python(code: str, hub: Hub, home: Path, *arguments: object) -> str:
    """A new process, since the hub's address is read when its library is imported."""
    environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(home)}
    environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*"}
    environment.pop("HF_TOKEN", None)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_there_and_back(hub: Hub, run: Path, tmp_path: Path) -> None:
    """What comes back restores bit for bit alike, and only what is ours was sent or fetched."""
    import numpy as np

    address = python(PUSH, hub, tmp_path / "home", run)
    assert address == f"{hub.address}/you/cells"
    sent = hub.repos["you/cells"]
    assert {"config.json", "model.safetensors", "README.md"} <= set(sent) <= set(PUBLISHED)
    everything = b"".join(sent.values())
    assert b"secret-project" not in everything
    assert json.loads(sent["config.json"])["data"]["source"] == "cells"
    _, header, card = sent["README.md"].decode().split("---\n", 2)
    assert yaml.safe_load(header)["library_name"] == "nediff"
    assert 'from_pretrained("you/cells")' in card
    # somebody adds code to the repository: it is not even fetched
    sent["evil.py"] = sent["modeling.py"] = b"raise SystemExit('run')"
    sent["model.bin"] = b"\x80\x04."
    y = noisy(7).astype(np.float32)
    np.save(tmp_path / "y.npy", y)
    python(FETCH, hub, tmp_path / "other", tmp_path / "y.npy", tmp_path / "x.npy")
    assert set(hub.fetched) <= set(PUBLISHED)
    assert "model.safetensors" in hub.fetched
    assert np.array_equal(np.load(tmp_path / "x.npy"), Restorer.load(run).restore(y))


def test_a_folder_is_as_good(run: Path) -> None:
    assert Restorer.from_pretrained(run).config == Restorer.load(run).config


def test_a_damaged_download_is_said_so(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fetched"
    folder.mkdir()
    (folder / "config.json").write_text('{"version": "0.1.0", "auto_map": "evil.py"}')
    with pytest.raises(NediffError, match=r"config\.json is not a valid run"):
        Restorer.from_pretrained(folder)


def test_what_is_not_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NediffError, match="is no folder here, and could not be had"):
        download_run("you/not a name")


OFFLINE = """
import sys, nediff
try:
    nediff.load(sys.argv[1]).push_to_hub("you/cells", token="hf_none")
except nediff.NediffError as error:
    print(error)
"""


def test_without_the_hub_pushing_ends_in_a_sentence(hub: Hub, run: Path, tmp_path: Path) -> None:
    """Nobody listens at the address any more, as without a network."""
    hub.shutdown()
    hub.server_close()
    said = python(OFFLINE, hub, tmp_path / "home", run)
    assert said.startswith("you/cells was not published: ")
    assert len(said.splitlines()) == 1


def test_without_its_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(NediffError, match=r"nediff\[hub\]"):
        download_run("you/cells")
