"""Small charts and words of the training page, as HTML that takes its colours from the page."""

from __future__ import annotations

from html import escape

import numpy as np
from numpy.typing import NDArray

from nediff.app.training import Look, State
from nediff.diagnosis.diagnose import Noise
from nediff.losses import NO_ERROR
from nediff.report.pictures import data_uri, to_picture

Image = NDArray[np.float32]


def curve(state: State, width: int = 560, height: int = 220) -> str:
    """The estimated PSNR against the steps, as SVG."""
    known = [row for row in state.rows if row[2] < NO_ERROR]
    if not known:
        return (
            '<p class="nediff-note">The curve begins with the first check on held-out images.</p>'
            if not state.rows
            else '<p class="nediff-note">These images cannot tell how good it is: their noise is '
            "less than it was said to be, or many pixels are cut off.</p>"
        )
    steps = [row[0] for row in known]
    values = [row[2] for row in known]
    left, right, top, bottom = 46, width - 14, 12, height - 34
    low, high = min(values), max(values)
    margin = max(0.1 * (high - low), 0.1)
    low, high = low - margin, high + margin
    last = max(state.steps, steps[-1])

    def place(step: int, value: float) -> str:
        x = left + step / last * (right - left)
        return f"{x:.1f},{bottom - (value - low) / (high - low) * (bottom - top):.1f}"

    points = [place(*pair) for pair in zip(steps, values, strict=True)]
    dots = "".join('<circle cx="{}" cy="{}" r="3.2"/>'.format(*p.split(",")) for p in points)
    grid = "".join(
        f'<line x1="{left}" x2="{right}" y1="{y}" y2="{y}" class="axis"/>'
        f'<text x="{left - 6}" y="{float(y) + 4}" text-anchor="end">{value:.1f}</text>'
        for value in np.linspace(low + margin, high - margin, 3)
        for y in [place(0, float(value)).split(",")[1]]
    )
    label = (
        f"Estimated PSNR on held-out noisy images: {values[-1]:.2f} dB after {steps[-1]} of "
        f"{last} steps, at best {max(values):.2f} dB."
    )
    return (
        f'<svg class="nediff-curve" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{label}">{grid}<polyline points="{" ".join(points)}"/>{dots}'
        f'<text x="{left}" y="{height - 14}">0</text>'
        f'<text x="{right}" y="{height - 14}" text-anchor="end">{last} steps</text>'
        f'<text x="{(left + right) / 2}" y="{height - 14}" text-anchor="middle">estimated PSNR in '
        "dB</text></svg>"
    )


def progress_bar(share: float, words: str) -> str:
    """A bar that screen readers know."""
    percent = round(100 * min(max(share, 0.0), 1.0))
    return (
        f'<div class="nediff-progress" role="progressbar" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{percent}" aria-label="{escape(words)}"><i style="width:{percent}%"></i>'
        f"</div><p class='nediff-note'>{escape(words)} · {percent} %</p>"
    )


def message(words: str, bad: bool = False) -> str:
    """A sentence; a bad one is read out at once."""
    if not words:
        return ""
    role = "alert" if bad else "status"
    return (
        f'<p class="nediff-message{" nediff-bad" if bad else ""}" role="{role}">{escape(words)}</p>'
    )


def previews(images: list[tuple[str, Image]]) -> str:
    """Captioned pictures in a row."""
    figures = "".join(
        f'<figure><img src="{data_uri(to_picture(image))}" alt="{escape(name)}">'
        f"<figcaption>{escape(name)}</figcaption></figure>"
        for name, image in images
    )
    return f'<div class="nediff-previews">{figures}</div>'


def diagnosis(looked: Look, command: str) -> str:
    """What was found, the warnings, and what would be typed for a training like that."""
    found = looked.found
    noise, summary, expected = found.noise, found.summary, found.expectation
    sigma, scale = noise.sigma, summary.range[1] - summary.range[0]
    where = "" if noise.whiteness.white else " in flat places"
    facts = [
        (
            f"{sigma.value:.4f}",
            f"σ of the noise{where}, of the range; {sigma.value * scale:.3g} in the "
            f"data's units, ± {sigma.total_error / max(sigma.value, 1e-12):.1%}",
        ),
        (noise.whiteness.verdict, "noise of neighbouring pixels"),
        (_by_signal(noise), "noise in bright and dark places"),
    ]
    if expected is not None:
        facts.append(
            (
                f"{expected.likely:.1f} dB",
                f"likely PSNR after training; now {expected.noisy:.1f} dB",
            )
        )
    cards = "".join(f"<div><dt>{escape(b)}</dt><dd>{escape(a)}</dd></div>" for a, b in facts)
    items = "".join(
        f"<li><b>{escape(w.code.replace('_', ' '))}.</b> {escape(w.what)} "
        f"<i>{escape(w.do)}</i></li>"
        for w in found.warnings
    )
    warned = f"<h4>Warnings</h4><ul>{items}</ul>" if items else "<p>No warnings.</p>"
    smallest, largest = (f"{w} × {h}" for h, w in summary.sizes)
    size = smallest if smallest == largest else f"{smallest} to {largest}"
    return (
        f'<div class="nediff-diagnosis"><p>{summary.images} image(s) of {size} pixels, '
        f"{summary.channels} channel(s), {escape(summary.dtype)}; intensity range "
        f"{escape(summary.range_chosen)}.</p><dl>{cards}</dl>{warned}"
        f"<p>The same in a terminal: <code>{escape(command)}</code></p></div>"
    )


def _by_signal(noise: Noise) -> str:
    """Whether it depends on the signal, and whether photons explain that."""
    if not noise.signal.dependent:
        return "the same"
    return "grows, as that of photons" if noise.of_photons else "depends on the signal"
