"""The page of `nediff evaluate`: one HTML file with everything inside."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from nediff.data import Measurements, atomic_path
from nediff.evaluation import Evaluation
from nediff.evaluation.metrics import psnr
from nediff.losses import decibels
from nediff.randomness import derive_key
from nediff.report import charts
from nediff.report.html import COVERAGE_TEXT, RELIABILITY_TEXT, figure
from nediff.report.pictures import heat, to_picture
from nediff.report.style import STYLE
from nediff.restorer import Restorer

Array = NDArray[np.floating]
MOST = 3
"""Images that are shown …"""
SIDE = 256
"""… or their middles of at most this side, where any part of an image is one."""


@dataclass(frozen=True)
class Shown:
    """One image (C, H, W) as it is looked at; samples (n, C, H, W), none of them or two at least.

    ``first`` is what was measured or, of instruments that do not measure pixels, a first guess.
    """

    name: str
    first: Array
    estimate: Array
    samples: Array
    truth: Array | None

    @property
    def sd(self) -> Array:
        """Of the samples: the error bar of each pixel."""
        sd: Array = self.samples.std(0, ddof=1)
        return sd


@dataclass(frozen=True)
class Judged:
    """All that the page shows."""

    run: str
    source: str
    kind: str
    """What the instrument does (`Problem.kind`)."""
    evaluation: Evaluation
    images: list[Shown]
    caution: str = ""
    """What is to be known before the numbers are believed."""


def write_judged(judged: Judged, path: Path) -> None:
    """Write the page, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(_page(judged), encoding="utf-8")


def images_to_show(
    restorer: Restorer, noisy: Measurements, clean: Measurements | None, samples: int, seed: int
) -> list[Shown]:
    """The first, the last and one between, restored and sampled."""
    chosen = sorted({0, len(noisy) // 2, len(noisy) - 1})[:MOST]
    return [_shown(restorer, noisy, clean, i, samples, seed) for i in chosen]


def _shown(
    restorer: Restorer,
    noisy: Measurements,
    clean: Measurements | None,
    i: int,
    samples: int,
    seed: int,
) -> Shown:
    """One of them; what is random in it is a function of the seed and its name."""
    place, whole = _middle(noisy, i, restorer), restorer.problem
    y, sigma = noisy.crop(i, *place), noisy.sigma_of(i, whole.sigma)
    operator = whole.operator.window(*place).to("cpu")
    problem = whole.with_operator(operator)

    def picture(image: Array) -> Array:
        """(..., C, H, W) in the frame of the measurement; of complex images the magnitude."""
        framed = operator.frame(torch.from_numpy(np.asarray(image)), *place[2:]).numpy()
        if whole.kind == "mri":
            return np.asarray(np.sqrt(np.square(framed).sum(axis=-3, keepdims=True)))
        return np.asarray(restorer.range.straight(framed))

    key = derive_key("report", seed, noisy.name(i))
    estimate = restorer.restore(y, sigma)
    drawn = restorer.sample(y, samples, key, sigma) if samples >= 2 else estimate[None][:0]
    guess = operator.fill(problem.lift(torch.from_numpy(y)[None]))[0].numpy()
    truth = None
    if clean is not None:
        x = clean.crop(i, *place) if place[2:] != noisy.size(i) else clean.image(i)
        truth = picture(operator.as_image(torch.from_numpy(x)[None])[0].numpy())
    return Shown(noisy.name(i), picture(guess), picture(estimate), picture(drawn), truth)


def _middle(noisy: Measurements, i: int, restorer: Restorer) -> tuple[int, int, int, int]:
    """(top, left, height, width) of what is shown of an image."""
    height, width = noisy.size(i)
    if restorer.problem.kind != "denoising":
        return 0, 0, height, width
    high, wide = min(height, SIDE), min(width, SIDE)
    return (height - high) // 2, (width - wide) // 2, high, wide


def _page(judged: Judged) -> str:
    title = f"{judged.source}, restored by {judged.run}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>
<h1>{escape(title)}</h1>
{f"<p><b>{escape(judged.caution)}</b></p>" if judged.caution else ""}
{_numbers(judged)}
<h2>Some of the images</h2>
{_PICTURES_TEXT}
{_examples(judged)}
{_charts(judged.evaluation)}
<footer>Made by nediff evaluate.</footer>
</main></body></html>
"""


def _numbers(judged: Judged) -> str:
    found, blind = judged.evaluation, judged.evaluation.blind
    cards = [(f"{found.images}", "image(s)")]
    if judged.kind == "denoising":
        cards.append(
            (f"{decibels(found.sigma**2):.2f} dB", f"PSNR of the noise, σ = {found.sigma:.4g}")
        )
    if found.levels:
        own = found.levels[-1]
        cards.append((f"{own.psnr:.2f} dB", f"PSNR restored, by the truth (SSIM {own.ssim:.4f})"))
    if blind.noise_overstated:
        why = "σ is too large for these images, or many pixels are cut off"
        cards.append(("none", f"PSNR without truth: {why}"))
    else:
        low, high = blind.interval
        words = f"PSNR restored, estimated without truth; {low:.2f} to {high:.2f} (95 %)"
        cards.append((f"{blind.estimated_psnr:.2f} dB", words))
    if blind.pairs is not None:
        ratio = f"{blind.pairs.ratio:.2f} ± {blind.pairs.ratio_error:.2f}"
        cards.append(
            (ratio, "error²/variance without truth: 1 is right, above error bars are too narrow")
        )
    if found.spread is not None:
        ratio = f"{found.spread.error2_over_variance:.2f}"
        cards.append((ratio, "error²/variance by the truth"))
    inner = "".join(f"<div><strong>{a}</strong><span>{escape(b)}</span></div>" for a, b in cards)
    return f'<section class="numbers">{inner}</section>'


_PICTURES_TEXT = """<p><b>Measured</b> is all the method gets. The <b>restored</b> image is the
average of everything the image could have been, and so a little smooth. A <b>sample</b> is one
image that could have been. The <b>error bar</b> is the standard deviation of the samples: dark
pixels are certain, bright ones are not.</p>"""


def _examples(judged: Judged) -> str:
    sampled = [image.sd for image in judged.images if len(image.samples)]
    top = max((float(np.quantile(sd, 0.995)) for sd in sampled), default=1.0)
    return "\n".join(_example(image, top) for image in judged.images)


def _example(image: Shown, top: float) -> str:
    def quality(picture: Array) -> str:
        return "" if image.truth is None else f"{psnr(picture, image.truth):.2f} dB"

    figures = [
        figure("measured", quality(image.first), to_picture(image.first)),
        figure("restored", quality(image.estimate), to_picture(image.estimate)),
    ]
    if len(image.samples):
        figures.append(figure("sample", quality(image.samples[0]), to_picture(image.samples[0])))
        figures.append(figure("error bar", f"black 0, white {top:.3f}", heat(image.sd, top)))
    if image.truth is not None:
        figures.append(figure("truth", "", to_picture(image.truth)))
    return f'<h3>{escape(image.name)}</h3>\n<div class="grid">{"".join(figures)}</div>'


def _charts(found: Evaluation) -> str:
    parts = []
    if found.blind.pairs is not None:
        parts.append((charts.revealed_curve(found.blind.pairs), _REVEALED_TEXT))
    if found.spread is not None:
        parts.append((charts.coverage_curve(found.spread), COVERAGE_TEXT))
        parts.append((charts.reliability_curve(found.spread), RELIABILITY_TEXT))
    if not parts:
        return ""
    inner = "".join(f'<div class="chart">{svg}<p>{text}</p></div>' for svg, text in parts)
    return f'<h2>Can the error bars be believed?</h2>\n<div class="charts">{inner}</div>'


_REVEALED_TEXT = """The calibration plot, from noisy images alone. Pixels are sorted by the error
that samples predict, and the error they have is judged by a second measurement, made of the same
image by splitting its noise. On the line, an error bar is worth what it says; above it, error bars
are too narrow."""
