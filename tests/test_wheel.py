"""The wheel that is built installs and works outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from nediff import __version__
from tests.command import float_folder

ROOT = Path(__file__).parents[1]


def run(*command: object, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and beneath it the dependencies of this one."""
    if find_spec("hatchling") is None:
        pytest.skip("building a wheel needs hatchling (the dev extra)")
    folder = tmp_path_factory.mktemp("wheel")
    build = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    run(sys.executable, *build, ROOT, cwd=folder)
    (wheel,) = folder.glob("nediff-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "nediff/py.typed" in names
    assert "nediff/napari.yaml" in names
    assert not [n for n in names if n.startswith(("tests", "benchmarks", "docs"))]
    venv.create(folder / "env", with_pip=False)
    paths = sysconfig.get_paths(vars={"base": str(folder / "env")})
    site = Path(paths["purelib"])
    beneath = [p for p in sys.path if p.endswith("-packages")]
    (site / "beneath.pth").write_text("\n".join(beneath) + "\n")
    python = Path(paths["scripts"]) / "python"
    install = ("-m", "pip", "--python", python, "install", "--no-deps", "--force-reinstall")
    run(sys.executable, *install, "--quiet", wheel, cwd=folder)
    return folder


def test_the_installed_command_trains_and_restores(installed: Path) -> None:
    scripts = installed / "env" / Path(sysconfig.get_path("scripts")).name
    elsewhere = installed / "elsewhere"
    elsewhere.mkdir()
    where = run(scripts / "python", "-c", "import nediff; print(nediff.__file__)", cwd=elsewhere)
    assert Path(where.strip()).is_relative_to(installed / "env")
    assert run(scripts / "nediff", "--version", cwd=elsewhere).strip() == f"nediff {__version__}"
    float_folder(elsewhere / "data")
    tiny = ("--size", "tiny", "--batch", 2, "--crop", 24, "--steps", 2, "--quiet")
    run(scripts / "nediff", "train", "data", "--sigma", 0.1, "--out", "run", *tiny, cwd=elsewhere)
    run(scripts / "nediff", "restore", "run", "data", "--out", "restored", cwd=elsewhere)
    assert len(list((elsewhere / "restored" / "restored").iterdir())) == 3


def test_one_version_everywhere() -> None:
    """pyproject.toml, the package, the citation and the newest heading of the changes agree."""
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{__version__}"' in project
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    newest = next(s for s in (ROOT / "CHANGELOG.md").read_text().splitlines() if s[:3] == "## ")
    assert newest.split()[1] == __version__
