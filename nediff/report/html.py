"""The report: one HTML file with everything inside."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage

from nediff.data import atomic_path
from nediff.evaluation.evaluate import Evaluation
from nediff.evaluation.metrics import psnr
from nediff.report import charts
from nediff.report.pictures import data_uri, heat, montage, to_picture
from nediff.report.style import STYLE

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Example:
    """One held-out image: (C, H, W) each, samples (n, C, H, W)."""

    name: str
    noisy: Array
    estimate: Array
    samples: Array
    truth: Array

    @property
    def sd(self) -> Array:
        """Per-pixel standard deviation of the samples."""
        sd: Array = self.samples.std(0, ddof=1)
        return sd


@dataclass(frozen=True)
class Report:
    """All that the report shows."""

    title: str
    intro: str
    examples: list[Example]
    evaluation: Evaluation
    training: list[tuple[int, float]]
    """(step, estimated PSNR)."""
    footer: str


def write_report(report: Report, path: Path) -> None:
    """Write the page, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(_page(report), encoding="utf-8")


def tiles(example: Example, top: float) -> list[tuple[str, str, PILImage.Image]]:
    """(title, small print, picture): noisy, estimate, four samples, spread, truth."""
    truth = example.truth

    def quality(image: Array) -> str:
        return f"{psnr(image, truth):.2f} dB"

    rows = [
        ("noisy", quality(example.noisy), to_picture(example.noisy)),
        ("MMSE estimate", quality(example.estimate), to_picture(example.estimate)),
    ]
    for k, sample in enumerate(example.samples[:4]):
        rows.append((f"sample {k + 1}", quality(sample), to_picture(sample)))
    rows.append(("standard deviation", f"black 0, white {top:.3f}", heat(example.sd, top)))
    rows.append(("truth", "never seen in training", to_picture(truth)))
    return rows


def overview(report: Report) -> PILImage.Image:
    """The same pictures on one sheet, for a README."""
    top = spread_scale(report.examples)
    rows = []
    for example in report.examples:
        kept = [t for t in tiles(example, top) if t[0] not in ("sample 3", "sample 4")]
        rows.append([(_caption(title, small), picture) for title, small, picture in kept])
    return montage(rows)


def _caption(title: str, small: str) -> str:
    return f"{title}  {small}" if small.endswith("dB") else title


def spread_scale(examples: list[Example]) -> float:
    """The standard deviation drawn as white: the 99.5th percentile of all examples."""
    return float(max(np.quantile(e.sd, 0.995) for e in examples))


def figure(title: str, small: str, picture: PILImage.Image) -> str:
    """A picture with its title, and in smaller letters what else there is to say."""
    return (
        f'<figure><img src="{data_uri(picture)}" alt="{escape(title)}">'
        f"<figcaption><b>{escape(title)}</b> {escape(small)}</figcaption></figure>"
    )


def _page(report: Report) -> str:
    examples = "\n".join(_example(e, spread_scale(report.examples)) for e in report.examples)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(report.title)}</title><style>{STYLE}</style></head><body><main>
<h1>{escape(report.title)}</h1>
<p class="lead">{escape(report.intro)}</p>
{_numbers(report.evaluation)}
<h2>Restored images</h2>
{_WHAT_PICTURES_MEAN}
{examples}
<h2>How good, and can the error bars be believed?</h2>
{_charts(report)}
<footer>{escape(report.footer)}</footer>
</main></body></html>
"""


def _example(example: Example, top: float) -> str:
    figures = "\n".join(figure(*tile) for tile in tiles(example, top))
    return f'<h3>{escape(example.name)}</h3>\n<div class="grid">{figures}</div>'


def _numbers(evaluation: Evaluation) -> str:
    level = evaluation.levels[-1]
    gain = level.psnr - level.psnr_noisy
    cards = [
        (f"{level.psnr:.2f} dB", f"PSNR after restoring, {gain:+.1f} dB over the noisy images"),
        (
            f"{evaluation.blind.estimated_psnr:.2f} dB",
            "the same, estimated without any truth (SURE)",
        ),
    ]
    if evaluation.spread is not None:
        cards += [
            (
                f"{evaluation.spread.error2_over_variance:.2f}",
                "squared error ÷ predicted variance; 1 means honest error bars",
            ),
            (
                f"{evaluation.spread.psnr_drop_db:.2f} dB",
                "a sample lies this far below the estimate; theory says 3.01",
            ),
        ]
    inner = "".join(f"<div><strong>{a}</strong><span>{escape(b)}</span></div>" for a, b in cards)
    return f'<section class="numbers">{inner}</section>'


_WHAT_PICTURES_MEAN = """<p><b>Noisy</b> is all the method gets. The <b>MMSE estimate</b> is the
average of everything the image could have been: the smallest error one can make, and therefore a
little smooth. Each <b>sample</b> is one image that could have been, and should look as sharp as
the truth: samples differ from each other wherever the noise has destroyed the answer. The
<b>standard deviation</b> of the samples says where that is: dark pixels are certain, bright ones
are not. The <b>truth</b> was used only to write this report. Numbers are PSNR against it.</p>"""


def _charts(report: Report) -> str:
    evaluation = report.evaluation
    parts = [(charts.psnr_curve(evaluation.levels), _CURVE_TEXT)]
    if evaluation.spread is not None:
        parts.append((charts.coverage_curve(evaluation.spread), COVERAGE_TEXT))
        parts.append((charts.reliability_curve(evaluation.spread), RELIABILITY_TEXT))
    if report.training:
        steps, estimated = zip(*report.training, strict=True)
        parts.append((charts.training_curve(steps, estimated), _TRAINING_TEXT))
    inner = "".join(f'<div class="chart">{svg}<p>{text}</p></div>' for svg, text in parts)
    return f'<div class="charts">{inner}</div>'


_CURVE_TEXT = """The data were noisy at one level only. Sampling needs a denoiser for every lower
level too. It was learned if the blue curve stays well above the grey one to the left, although
no image of this size that clean was ever seen."""
COVERAGE_TEXT = """The calibration plot. For each pixel the samples give an interval that promises
to hold the truth with a certain probability. On the line, it does just that; below it, the
intervals are too narrow; above, too wide."""
RELIABILITY_TEXT = """Pixels are sorted by the error the samples predict, and the error they
really have is measured. On the line, an error bar is worth what it says, for certain and for
uncertain pixels alike."""
_TRAINING_TEXT = """Stein's unbiased risk estimate on noisy images kept out of training. This is how
the best weights were chosen: no clean image was needed."""
