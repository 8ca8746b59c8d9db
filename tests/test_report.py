"""The report: everything inside one file, and pictures that show what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tifffile

from nediff.evaluation.evaluate import Blind, Evaluation, Level, Spread
from nediff.report import Example, Report, write_report
from nediff.report.html import overview
from nediff.report.pictures import heat, to_picture
from tests.command import SIGMA, TINY, float_folder, nediff, smooth, succeeded


@pytest.fixture
def report() -> Report:
    rng = np.random.default_rng(0)
    truth = rng.uniform(size=(3, 20, 30))
    example = Example(
        "A <b>name</b>",
        truth + 0.1 * rng.normal(size=truth.shape),
        truth + 0.02,
        truth + 0.05 * rng.normal(size=(5, *truth.shape)),
        truth,
    )
    spread = Spread(
        5, 1.05, 2.9, [(0.33, 0.3), (0.67, 0.66)], [(0.01, 0.011, 0.5), (0.1, 0.09, 0.5)]
    )
    levels = [Level(0.02, 34.0, 36.0, 0.95), Level(0.1, 20.0, 28.0, 0.8)]
    evaluation = Evaluation(1, 0.1, Blind(28.1, (28.0, 28.2), 28.0, [(0.5, 0.1)]), levels, spread)
    return Report("Title", "Words.", [example], evaluation, [(10, 20.0), (20, 25.0)], "Footer")


def test_report_is_self_contained_and_complete(report: Report, tmp_path: Path) -> None:
    write_report(report, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    sources = re.findall(r'<img src="([^"]{0,40})', page)
    assert len(sources) == 8  # noisy, estimate, four samples, sd, truth
    assert all(s.startswith("data:image/png;base64,") for s in sources)
    assert not re.search(r'(?:src|href)="https?:', page)
    assert page.count("<svg") == 4  # PSNR curve, coverage, reliability, training
    for words in ("MMSE estimate", "sample 4", "standard deviation", "truth", "calibration"):
        assert words in page
    assert "A &lt;b&gt;name&lt;/b&gt;" in page
    assert "1.05" in page
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_evaluate_writes_a_page_with_what_noisy_images_say_and_what_the_truth_says(
    tmp_path: Path,
) -> None:
    """Of the first image, the one in the middle and the last; large ones by their middle."""
    data, run, page = float_folder(tmp_path / "data", 4), tmp_path / "run", tmp_path / "page.html"
    clean = tmp_path / "clean"
    clean.mkdir()
    for k in range(4):
        tifffile.imwrite(clean / f"a{k}.tif", smooth(k).astype(np.float32))
    succeeded("train", data, "--sigma", SIGMA, "--range", 0, 1, "--out", run, "--steps", 4, *TINY)
    evaluate = ("evaluate", run, data, "--html", page, "--json", tmp_path / "figures.json")
    for options, pictures, charts in (
        (("--samples", 4), ("measured", "restored", "sample", "error bar"), 1),
        (("--samples", 0), ("measured", "restored"), 0),
        (("--samples", 4, "--clean", clean), ("measured", "error bar", "truth"), 3),
    ):
        told = succeeded(*evaluate, *options)
        assert f"The page is at {page}" in told.err
        text = page.read_text(encoding="utf-8")
        assert "names and sizes of those that the run was trained on" in text
        for name in pictures:
            assert text.count(f'alt="{name}"') == 3, name
        assert ('alt="sample"' in text) == ("sample" in pictures or "truth" in pictures)
        assert text.count("<svg") == charts
        assert not re.search(r'(?:src|href)="https?:', text)
        figures = json.loads((tmp_path / "figures.json").read_text())
        low, high = figures["blind"]["interval"]
        assert f"{figures['blind']['estimated_psnr']:.2f} dB" in text
        assert f"{low:.2f} to {high:.2f} (95 %)" in text
    assert f"{figures['levels'][-1]['psnr']:.2f} dB" in text
    others = float_folder(tmp_path / "others", 3)
    succeeded("evaluate", run, others, "--html", page, "--samples", 0)
    assert "trained on" not in page.read_text(encoding="utf-8")
    refused = nediff("evaluate", run, data, "--html", data)
    assert refused.code == 2
    assert "give --html the name of a file" in refused.err


def test_pictures_show_the_values(report: Report) -> None:
    ramp = np.linspace(-0.5, 1.5, 5)[None, None, :]
    assert np.asarray(to_picture(ramp)).tolist() == [[0, 0, 128, 255, 255]]
    colour = np.zeros((3, 1, 1))
    colour[1] = 1.0
    assert np.asarray(to_picture(colour)).tolist() == [[[0, 255, 0]]]
    hot = np.asarray(heat(np.array([[[0.0, 0.1]]]), top=0.1)).sum(-1)[0]
    assert hot[0] < 20
    assert hot[1] > 600
    sheet = overview(report)
    assert sheet.width > 6 * 200
