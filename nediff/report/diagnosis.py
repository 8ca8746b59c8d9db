"""The page of `nediff diagnose`: one HTML file with everything inside."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from nediff.data import atomic_path
from nediff.diagnosis import Diagnosis
from nediff.diagnosis.contrast import EDGES
from nediff.report.charts import BLUE, GREY, INK, ORANGE, _axes, _svg
from nediff.report.pictures import data_uri, to_picture
from nediff.report.style import STYLE

_GREEN = "#059669"


def write_diagnosis(found: Diagnosis, source: str, path: Path) -> None:
    """Write the page, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(_page(found, source), encoding="utf-8")


def _page(found: Diagnosis, source: str) -> str:
    title = f"A look at {source}"
    summary = found.summary
    lead = (
        f"{summary.images} image(s), {summary.channels} channel(s), {summary.dtype}; intensity "
        f"range {summary.range_chosen}."
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
{_numbers(found)}
<h2>Warnings</h2>
{_warnings(found)}
<h2>What to type next</h2>
<pre><code>{escape(found.command)}</code></pre>
<h2>Some of the images</h2>
{_examples(found)}
<h2>The findings in detail</h2>
{_charts(found)}
<footer>Made by nediff diagnose, from the noisy images alone.</footer>
</main></body></html>
"""


def _numbers(found: Diagnosis) -> str:
    sigma, expected = found.noise.sigma, found.expectation
    score = "none" if found.contrast.score is None else f"{found.contrast.score:.2f}"
    cards = [
        (f"{sigma.value:.4f}", f"σ of the noise, of the range, ± {sigma.total_error:.4f}"),
        (found.noise.whiteness.verdict, "noise of neighbouring pixels"),
        (score, "contrast score: from 0.55 the images come at many contrasts"),
    ]
    for scale in found.scales:
        value = "none" if scale.score is None else f"{scale.score:.2f}"
        words = f"scale score, {scale.factor} × {scale.factor} pixels averaged: from 0.5 alike"
        cards.append((value, words))
    if expected is not None:
        words = f"likely PSNR after training, ± 1; the noisy images have {expected.noisy:.1f} dB"
        cards.append((f"{expected.likely:.1f} dB", words))
    inner = "".join(
        f"<div><strong>{escape(a)}</strong><span>{escape(b)}</span></div>" for a, b in cards
    )
    return f'<section class="numbers">{inner}</section>'


def _warnings(found: Diagnosis) -> str:
    if not found.warnings:
        return "<p>None.</p>"
    items = (
        f"<li><b>{escape(warning.code.replace('_', ' '))}.</b> {escape(warning.what)} "
        f"<i>{escape(warning.do)}</i></li>"
        for warning in found.warnings
    )
    return f"<ul>{''.join(items)}</ul>"


def _examples(found: Diagnosis) -> str:
    figures = (
        f'<figure><img src="{data_uri(to_picture(image))}" alt="{escape(name)}">'
        f"<figcaption>{escape(name)}</figcaption></figure>"
        for name, image in found.examples
    )
    return f'<div class="grid">{"".join(figures)}</div>'


def _charts(found: Diagnosis) -> str:
    parts = [
        (_signal(found), _SIGNAL_TEXT),
        (_correlation(found), _CORRELATION_TEXT),
        (_contrasts(found), _CONTRAST_TEXT),
        (_places(found), _PLACES_TEXT),
    ]
    if found.spectra:
        parts.insert(3, (_spectra(found), _SPECTRA_TEXT))
    inner = "".join(f'<div class="chart">{svg}<p>{text}</p></div>' for svg, text in parts)
    return f'<div class="charts">{inner}</div>'


def _signal(found: Diagnosis) -> str:
    signal = found.noise.signal
    figure, axes = _axes("Noise against brightness", "mean, data units", "variance of the noise")
    if signal.means:
        x = np.array(signal.means)
        axes.errorbar(x, signal.variances, signal.errors, fmt="o", color=BLUE, markersize=4.5)
        line = signal.gain * x + signal.constant
        axes.plot(x, line, color=ORANGE, label=f"{signal.gain:.3g} × mean {signal.constant:+.3g}")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=9)
    return _svg(figure)


def _correlation(found: Diagnosis) -> str:
    whiteness = found.noise.whiteness
    figure, axes = _axes("Correlation of the noise", "distance in pixels", "correlation")
    white = whiteness.white  # then only the nearest lags are known well
    shown = whiteness.nearest if white else whiteness.correlation
    errors = whiteness.nearest_errors if white else whiteness.errors
    lags = np.arange(len(shown))
    for values, bars, colour, words, shift in (
        (shown[0], errors[0], BLUE, "across", -0.04),
        (shown[:, 0], errors[:, 0], ORANGE, "down", 0.04),
    ):
        told = np.isfinite(values) & np.isfinite(bars)
        axes.errorbar(
            (lags + shift)[told],
            values[told],
            bars[told],
            fmt="o-",
            color=colour,
            markersize=4.5,
            label=words,
        )
    axes.axhline(0, color=GREY, linewidth=1)
    axes.set_xticks(lags)
    axes.legend(frameon=False, fontsize=9)
    return _svg(figure)


def _contrasts(found: Diagnosis) -> str:
    contrast = found.contrast
    figure, axes = _axes("Contrast of 8 × 8 patches", "contrast, of the range", "share of patches")
    axes.stairs(contrast.histogram, 10.0**EDGES, color=BLUE, fill=True, alpha=0.6)
    axes.set_xscale("log")
    if contrast.limit > 0:
        axes.axvline(contrast.limit, color=ORANGE, linestyle=":")
        _note(axes, f"{contrast.below:.0%} of the patches\nare lost in the noise", contrast.limit)
    return _svg(figure)


def _note(axes: Any, words: str, x: float) -> None:
    axes.annotate(
        words,
        (x, axes.get_ylim()[1]),
        xytext=(-6, -4),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=8.5,
        color=ORANGE,
    )


def _spectra(found: Diagnosis) -> str:
    figure, axes = _axes("The images at other scales", "frequency in the patch", "energy, dB")
    for spectrum, colour in zip(found.spectra, (INK, BLUE, _GREEN), strict=False):
        values = 10 * np.log10(np.array(spectrum.rings))
        if np.isfinite(values).any():
            f = spectrum.factor
            words = "as they are" if f == 1 else f"averaged over {f} × {f}"
            shown = values - np.nanmean(values)
            axes.plot(np.arange(1, len(values) + 1), shown, "o-", color=colour, label=words, ms=4)
    if axes.has_data():
        axes.legend(frameon=False, fontsize=9)
    return _svg(figure)


def _places(found: Diagnosis) -> str:
    figure, axes = _axes("Noise by place", "column", "row")
    values = np.array([s.value for s in found.noise.positions.sigmas])
    side = round(np.sqrt(len(values)))
    shown = axes.imshow(values.reshape(side, side), cmap="magma", vmin=0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    figure.colorbar(shown, ax=axes, label="σ")
    return _svg(figure)


_SIGNAL_TEXT = """Noise in flat patches, by their brightness. Training assumes a level line; a
rising one is that of photons, a falling one that of a camera's tone curve."""
_CORRELATION_TEXT = """White noise has no correlation beyond distance 0. Interpolated, filtered or
compressed images have."""
_CONTRAST_TEXT = """Training learns weaker noise from images of weaker contrast. The wider this
spreads, over powers of ten, the better. Noise is taken out; below the dotted line it hides what
there is."""
_SPECTRA_TEXT = """Averaging pixels gives cleaner measurements of coarser images, and training
learns from them. Curves of one shape mean that these look like the images. Noise is taken out, and
points it hides are missing."""
_PLACES_TEXT = """The noise on a coarse grid over the image. It should be the same everywhere, but
for a few percent of chance."""
