"""Every block of shell or Python in README and docs is run; the site builds without a warning."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tifffile
from markdown_it import MarkdownIt
from numpy.typing import NDArray

from nediff import interop
from nediff.problem import Problem
from tests.command import nediff, smooth

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    p.relative_to(ROOT).as_posix()
    for p in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))
    if p.name not in ("changes.md", "contributing.md")  # which include pages that are here
)
NOT_RUN = "# not run by the tests"
MOST_NOT_RUN = 10
QUICK = ("--size", "tiny", "--batch", "2", "--crop", "24", "--steps", "2")
SIGMA, SIDE = 0.075, 48


class Block(NamedTuple):
    """A fenced block: its language, text and line."""

    language: str
    text: str
    line: int

    @property
    def runs(self) -> bool:
        return self.language in ("bash", "python") and not self.text.startswith(NOT_RUN)


def blocks(page: str) -> Iterator[Block]:
    for token in MarkdownIt().parse((ROOT / page).read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block"):
            language = token.info.split()[0] if token.info else "(indented)"
            yield Block(language, token.content, token.map[0] + 1 if token.map else 0)


# --- a world in which the commands of the pages make sense ----------------------------------------


def clean(k: int, side: int = SIDE) -> NDArray[np.float64]:
    return smooth(k, side, side)


def noisy(k: int, side: int = SIDE) -> NDArray[np.float64]:
    return clean(k, side) + SIGMA * np.random.default_rng(k).standard_normal((side, side))


def write(folder: Path, images: list[NDArray[np.float64]]) -> None:
    folder.mkdir()
    for k, image in enumerate(images):
        tifffile.imwrite(folder / f"{k}.tif", image.astype(np.float32))


def measured(problem: Problem, channels: int = 1, side: int = SIDE) -> list[NDArray[np.float64]]:
    """Four images seen by an instrument, as its files would hold them."""
    import torch

    physics, out = interop.ProblemPhysics(problem), []
    for k in range(4):
        x = torch.as_tensor(clean(k, side)).float().expand(1, channels, -1, -1)
        y = physics(x)[0].double()
        out.append((y.sum(0) if problem.raw else y).squeeze().numpy())
    return out


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders that the pages speak of, and the runs that pages begin with."""
    folder = tmp_path_factory.mktemp("world")
    write(folder / "microscope", [noisy(k) for k in range(5)])
    for name in ("more", "more-from-the-same-microscope"):
        write(folder / name, [noisy(k) for k in range(10, 15)])
    tifffile.imwrite(folder / "other.tif", noisy(60).astype(np.float32))
    tifffile.imwrite(folder / "slide.tif", noisy(61, 96).astype(np.float32))
    _instruments(folder)
    rows = [f"{k}.tif,{level}" for k, level in enumerate((0.075, 0.06, 0.07, 0.075, 0.075))]
    (folder / "sigmas.csv").write_text("name,sigma\n" + "\n".join(rows) + "\n")
    import zarr

    plate = zarr.open_array(str(folder / "plate.zarr"), mode="w", shape=(96, 96), dtype="f4")
    plate[:] = noisy(62, 96)
    for name, recipe in (("cells", "default"), ("paper", "paper")):
        data, out = folder / "microscope", folder / "runs" / name
        command = ("train", data, "--sigma", SIGMA, "--out", out, "--recipe", recipe)
        assert nediff(*command, *QUICK).code == 0
    return folder


def _instruments(folder: Path) -> None:
    random = np.random.default_rng(1)
    mask = (random.random((SIDE, SIDE)) < 0.7).astype(np.uint8)
    tifffile.imwrite(folder / "mask.tif", 255 * mask)
    np.save(folder / "mask.npy", mask)
    from PIL import Image

    Image.fromarray(255 * mask).save(folder / "mask.png")
    kernel = np.outer([1, 2, 1], [1, 2, 1]) / 16
    np.save(folder / "psf.npy", kernel)
    columns = np.zeros(SIDE)
    columns[::3] = columns[SIDE // 2 - 3 : SIDE // 2 + 3] = 1
    np.save(folder / "kspace.npy", columns)
    mosaic = Problem.demosaicing(SIGMA, raw=True)
    for more in ("", "more-"):
        write(folder / f"{more}holes", measured(Problem.inpainting(mask, SIGMA)))
        write(folder / f"{more}mosaics", measured(mosaic, 3))
    write(folder / "blurred", measured(Problem.blur(kernel, SIGMA)))
    write(folder / "coarse", measured(Problem.super_resolution(2, SIGMA), side=2 * SIDE))
    for name in ("scans", "more-scans"):
        (folder / name).mkdir()
        for k, scan in enumerate(measured(Problem.mri(columns, SIGMA), 2)):
            np.save(folder / name / f"{k}.npy", scan.astype(np.float32))
    counts = [random.poisson(200 * clean(k, 128)) * 2.1 + 100 for k in range(5)]
    write(folder / "photons", [c + 3.4 * random.standard_normal(c.shape) for c in counts])


# --- the tests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page: str, world: Path, tmp_path: Path, monkeypatch: object) -> None:
    """In order, in one folder; trainings of minutes become trainings of two steps."""
    import shutil

    todo = [block for block in blocks(page) if block.runs]
    if not todo:
        return
    place = tmp_path / "here"
    shutil.copytree(world, place)
    assert isinstance(monkeypatch, pytest.MonkeyPatch)
    monkeypatch.chdir(place)
    if any("--clean" in block.text for block in todo):
        _with_truth(place)
    names: dict[str, object] = {}
    for block in todo:
        if block.language == "python":
            text = re.sub(r"minutes=[\d.]+", 'steps=2, size="tiny", crop=24', block.text)
            exec(compile("\n" * block.line + text, page, "exec"), names)
            continue
        for line in block.text.splitlines():
            _run(line, f"{page}:{block.line}")


def _with_truth(place: Path) -> None:
    """As many pairs as intervals need that are checked by clean images."""
    from nediff.evaluation.calibrate import fewest_pairs

    pairs = range(100, 100 + 2 * fewest_pairs())
    for k in pairs:
        tifffile.imwrite(place / "more" / f"{k}.tif", noisy(k, 32).astype(np.float32))
    for path in (place / "more").glob("?.tif"):
        path.unlink()
    write(place / "clean", [])
    for k in pairs:
        tifffile.imwrite(place / "clean" / f"{k}.tif", clean(k, 32).astype(np.float32))


def _run(line: str, where: str) -> None:
    words = shlex.split(line, comments=True)
    if not words:
        return
    assert words[0] == "nediff", f"{where}: only nediff is run, not {words[0]}; mark the block"
    if words[1] == "train":
        if "--minutes" in words:
            at = words.index("--minutes")
            del words[at : at + 2]
        words += QUICK
        out = Path(words[words.index("--out") + 1])
        if out.exists():  # made beforehand, for pages that begin with a run
            import shutil

            shutil.rmtree(out)
    outcome = nediff(*words[1:])
    assert outcome.code == 0, f"{where}: {line}\n{outcome.err}"


def test_no_block_escapes() -> None:
    """Blocks are fenced, in a language that is run or is no program; few are marked as not run."""
    allowed = ("bash", "python", "text")
    marked = 0
    for page in PAGES:
        for block in blocks(page):
            where = f"{page}:{block.line} ({block.language})"
            assert block.language in allowed or block.language.startswith("{"), where
            if block.language in ("bash", "python") and not block.runs:
                marked += 1
                assert re.match(rf"{NOT_RUN}[^:]*: \w+", block.text), f"{where}: say why"
    assert 0 < marked <= MOST_NOT_RUN


def test_a_block_that_fails_is_noticed(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)
    with pytest.raises(AssertionError, match="No such option"):
        _run("nediff info runs/cells --jsn", "page:1")


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    for needed in ("sphinx", "myst_parser", "furo"):
        if find_spec(needed) is None:
            pytest.skip(f"the site needs {needed} (the docs extra)")
    build = (sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html")
    done = subprocess.run(
        [*build, ROOT / "docs", tmp_path / "html", "-d", tmp_path / "trees"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "html" / "index.html").read_text(encoding="utf-8")
    assert "tutorial.html" in page
    # nothing is fetched when it is read either
    for html in (tmp_path / "html").glob("*.html"):
        found = re.findall(r'(?:src|href)="(https?:[^"]+\.(?:js|css|woff2?))"', html.read_text())
        assert not found, html.name
