"""The wheel that is built installs and works outside the repository."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import packages_distributions
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


EXTRAS = {
    "app": "nediff/app/",
    "eval": "nediff/evaluation/library.py",
    "hub": "nediff/hub.py",
    "napari": "nediff/viewer.py",
    "shards": "nediff/data/shards.py",
}
"""Where what an extra brings may be imported."""


def imported(source: str) -> set[str]:
    """The modules that a file imports when it runs, but for those it can do without."""
    found: set[str] = set()

    def look(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                look(other)
            return
        if isinstance(node, ast.Try) and any(
            h.type is not None and "ImportError" in ast.unparse(h.type) for h in node.handlers
        ):
            return  # it says by itself what is missing
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).partition(".")[0])
        for child in ast.iter_child_nodes(node):
            look(child)

    look(ast.parse(source))
    return found - set(sys.stdlib_module_names) - {"nediff"}


def plain(name: str) -> str:
    """As names of distributions are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required(wheel: zipfile.ZipFile) -> dict[str, set[str]]:
    """What the wheel asks for, by extra; "" for what it always does."""
    (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    out: dict[str, set[str]] = {}
    for line in wheel.read(metadata).decode().split("\n\n")[0].splitlines():
        if line.startswith("Requires-Dist: "):
            name = re.match(r"[\w.-]+", line.removeprefix("Requires-Dist: "))
            extra = re.search(r"extra == ['\"]([\w-]+)", line)
            assert name is not None
            out.setdefault(extra[1] if extra else "", set()).add(plain(name[0]))
    return out


def missing(wheel: zipfile.ZipFile, needed: dict[str, set[str]]) -> set[tuple[str, str]]:
    """(file, module) of what is imported there and not asked for."""
    homes = packages_distributions()
    out = set()
    for file in (name for name in wheel.namelist() if name.endswith(".py")):
        here = {""} | {extra for extra, place in EXTRAS.items() if file.startswith(place)}
        there = set().union(*(needed[extra] for extra in here))
        for module in imported(wheel.read(file).decode()):
            names = {plain(name) for name in homes.get(module, [module])}
            if not names & there:
                out.add((file, module))
    return out


def test_the_wheel_asks_for_all_that_it_imports(installed: Path) -> None:
    """The environment above borrows what is installed here; so a name that is forgotten shows."""
    (path,) = installed.glob("nediff-*.whl")
    with zipfile.ZipFile(path) as wheel:
        needed = required(wheel)
        assert missing(wheel, needed) == set()
        forgotten = needed | {"": needed[""] - {"filelock", "pyyaml"}, "app": {"gradio"}}
        noticed = {module for _, module in missing(wheel, forgotten)}
    assert noticed == {"filelock", "yaml", "starlette"}


def test_one_version_everywhere() -> None:
    """pyproject.toml, the package, the citation and the newest heading of the changes agree."""
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{__version__}"' in project
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    newest = next(s for s in (ROOT / "CHANGELOG.md").read_text().splitlines() if s[:3] == "## ")
    assert newest.split()[1] == __version__
