"""`nediff diagnose`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nediff.cli.console import (
    console,
    counting,
    refuse_json_folder,
    refuse_page_folder,
    results,
    say,
    write_json,
)
from nediff.data import open_measurements
from nediff.diagnosis import Diagnosis, diagnose
from nediff.noise.signal import LEAST_CLASSES

ALIKE = 0.3
"""Levels that differ by no more than this share of the largest look the same."""


@dataclass(frozen=True)
class DiagnoseRequest:
    """What the user asked for."""

    data: str
    json_file: Path | None
    html_file: Path | None
    range: tuple[float, float] | None
    axes: str | None
    seed: int


def run_diagnose(request: DiagnoseRequest) -> None:
    """Look, print, and write the files asked for."""
    refuse_json_folder(request.json_file)
    refuse_page_folder(request.html_file)
    with counting("reading images") as report:
        images = open_measurements(
            request.data, range=request.range, axes=request.axes, progress=report
        )
    with console.status("looking at the images"):
        found = diagnose(images, request.data, request.axes, request.seed)
    write_json(found.to_dict(), request.json_file)
    if request.html_file is not None:
        from nediff.report.diagnosis import write_diagnosis

        write_diagnosis(found, request.data, request.html_file)
    for line in lines_of(found):
        say(line, results)
    if request.html_file is not None:
        say(f"\nThe page is at {request.html_file.resolve()}")


def lines_of(found: Diagnosis) -> Iterator[str]:
    """The report as text."""
    yield from _data(found)
    yield ""
    yield from _noise(found)
    yield ""
    yield from _images(found)
    yield ""
    yield from _outlook(found)
    for warning in found.warnings:
        yield f"Warning ({warning.code}): {warning.what}"
        yield f"  → {warning.do}"
    if not found.warnings:
        yield "No warnings."
    yield ""
    yield f"Next: {found.command}"


def _data(found: Diagnosis) -> Iterator[str]:
    summary = found.summary
    small, large = (f"{width} × {height}" for height, width in summary.sizes)
    size = small if small == large else f"{small} to {large}"
    yield (
        f"{summary.images} image(s) of {size} pixels, {summary.channels} channel(s), "
        f"{summary.dtype} ({', '.join(summary.formats)})"
    )
    yield f"intensity range: {summary.range_chosen}"


def _noise(found: Diagnosis) -> Iterator[str]:
    noise, scale = found.noise, found.summary.range[1] - found.summary.range[0]
    sigma, error = noise.sigma.value, noise.sigma.total_error
    in_data = "" if scale == 1 else f" = {sigma * scale:.3g} in data units"
    yield f"noise: σ = {sigma:.4f} ± {error:.4f} of the range{in_data}"
    if len(noise.channels.sigmas) > 1:
        values = ", ".join(f"{s.value:.4f}" for s in noise.channels.sigmas)
        yield f"  by channel: {values} ({'they differ' if noise.channels.varies else 'the same'})"
    places = [s.value for s in noise.positions.sigmas]
    if len(places) > 1:
        verdict = "it differs" if noise.positions.varies else _unvaried(places)
        yield f"  by place: {min(places):.4f} to {max(places):.4f} ({verdict})"
    images = [s.value for s in noise.images.sigmas]
    if len(images) > 1:
        verdict = "they differ" if noise.images.varies else _unvaried(images)
        yield f"  by image: {min(images):.4f} to {max(images):.4f} ({verdict})"
    signal = noise.signal
    if signal.dependent:
        line = f"{signal.gain:.4g} × value {signal.constant:+.4g}"
        yield f"  it depends on the signal: variance = {line} in data units"
    elif len(signal.means) < LEAST_CLASSES:
        yield "  whether it depends on the signal cannot be seen"
    else:
        yield "  it does not depend on the signal, as far as can be seen"
    if not noise.whiteness.known:
        yield "  whether it is white cannot be told: it does not stand out of the texture"
        return
    across, down = noise.whiteness.neighbours
    verdict = noise.whiteness.verdict
    yield f"  {verdict}: correlation of neighbours {across:+.2f} across, {down:+.2f} down"


def _unvaried(sigmas: list[float]) -> str:
    """What to say of levels of which none is surely another than the others."""
    alike = max(sigmas) - min(sigmas) <= ALIKE * max(sigmas)
    return (
        "the same, as far as can be seen" if alike else "they may be the same: too unsure to tell"
    )


def _images(found: Diagnosis) -> Iterator[str]:
    contrast = found.contrast
    if contrast.score is None:
        yield "contrasts: lost in the noise"
    else:
        verdict = "as assumed" if contrast.plausible else "fewer than assumed"
        yield (
            f"contrasts: score {contrast.score:.2f} ± {contrast.error:.2f}, like an even spread "
            f"over {contrast.decades:.1f} decades ({verdict})"
        )
    if not found.scales:
        yield "coarser images: not compared, since averages of correlated noise are not known"
    for scale in found.scales:
        name = f"averaged over {scale.factor} × {scale.factor}"
        if scale.score is None:
            yield f"{name}: too little is left to compare"
            continue
        verdict = "look alike, safe" if scale.safe else "look different"
        differ = f"spectra differ by {scale.deviation:.1f} dB"
        yield f"{name}: score {scale.score:.2f}, {differ} ({verdict})"


def _outlook(found: Diagnosis) -> Iterator[str]:
    expected = found.expectation
    if expected is None:
        if not found.noise.whiteness.white:
            yield (
                "PSNR: not foretold for correlated noise. σ above is that of flat places, where "
                "cameras smooth most; `train --sigma correlated` looks at all places and may find "
                "more"
            )
        return
    yield (
        f"PSNR: noisy {expected.noisy:.1f} dB; simple filters {expected.wiener:.1f} to "
        f"{expected.adaptive:.1f} dB; likely after training {expected.likely:.1f} ± 1 dB"
    )
    yield (
        f"images: {expected.squares} squares of 64 × 64 pixels; about {expected.enough} are likely "
        "enough"
    )
