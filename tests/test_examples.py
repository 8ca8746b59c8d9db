"""The scripts of the gallery, and the notebooks from top to bottom."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize("name", ["posterior", "invariances"])
def test_a_script_makes_the_figure_of_the_site(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / f"{name}.svg"
    monkeypatch.setattr(sys, "argv", [name, "--out", str(out)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert out.read_text().lstrip().startswith("<?xml")
    assert (ROOT / "docs" / "images" / out.name).is_file()


def test_the_samples_of_the_figure_are_of_the_posterior() -> None:
    """Share of the upper peak, the mean, and the spread within the peak, against the exact ones.

    With n = 4,000 the standard error of a share p is √(p(1−p)/n) < 0.008, so four of them are
    0.032, and half as much for the mean of two values half a unit apart. That of the spread of
    some 2,200 values is 1.5 %; four of them, 6 %.
    """
    example = runpy.run_path(str(EXAMPLES / "posterior.py"))
    drawn, x = example["samples"](4000), torch.linspace(0, 1.1, 4000)
    density = example["density"](x)
    upper = x > 0.5
    share = float(torch.trapezoid(density[upper], x[upper]))
    assert abs(float((drawn > 0.5).float().mean()) - share) < 0.032
    mean = float(torch.trapezoid(density * x, x))
    assert abs(float(drawn.mean()) - mean) < 0.032 * 0.5
    peak = density * upper / share
    centre = float(torch.trapezoid(peak * x, x))
    spread = float(torch.trapezoid(peak * (x - centre) ** 2, x)) ** 0.5
    assert abs(float(drawn[drawn > 0.5].std()) / spread - 1) < 0.06


@pytest.mark.parametrize("name", ["microscope", "deepinv"])
def test_a_notebook_runs_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs nediff[notebooks]")
    nbformat = pytest.importorskip("nbformat", reason="needs nediff[notebooks]")
    pytest.importorskip("ipykernel", reason="needs nediff[notebooks]")
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")], "clear the outputs"
    client = nbclient.NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    figures = [o for c in notebook.cells for o in c.get("outputs", []) if "data" in o]
    assert figures or name == "deepinv"
