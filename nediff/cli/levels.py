"""Noise levels from the command line: one number, or a CSV file with one for each image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nediff.cli.console import say
from nediff.data import (
    ImageFile,
    IntensityRange,
    Measurements,
    Sigmas,
    StabilisedRange,
    Units,
    read_sigmas,
    sigma_to_unit,
)
from nediff.errors import NediffError, did_you_mean

if TYPE_CHECKING:
    from nediff.noise import Estimate
    from nediff.noise.whiteness import Whiteness

Level = float | Path
Told = Level | Literal["auto", "learn", "correlated"]
"""What --sigma of a training may be: "auto" and "correlated" are estimated from the data, white
noise of one level, or correlated noise of a level for each image; "learn" is learned first."""
UNTOLD = ("auto", "learn", "correlated")

Simulated = Level | Literal["photons"]
"""What --simulate may be: a level, or the noise of --gain and --read-noise."""


def parse_level(text: str | None, option: str) -> Level | None:
    """What was given for --sigma or --simulate: a number, or the path of a CSV file."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        path = Path(text).expanduser()
    if path.suffix.lower() != ".csv":
        raise NediffError(
            f"{option} {text} is neither a number nor a CSV file with a noise level for each image"
            f"{'; only train estimates it' if text in UNTOLD else ''}.{_meant(text)}"
        )
    if not path.is_file():
        raise NediffError(f"{option}: there is no file {path}.")
    return path


def _meant(text: str) -> str:
    """Another word for it, or a decimal comma."""
    with suppress(ValueError):
        return f" Write {float(text.replace(',', '.')):g}, with a point."
    return "" if text in UNTOLD else did_you_mean(text, UNTOLD)


def parse_told(text: str | None) -> Told | None:
    """What was given for --sigma of a training."""
    if text == "auto":
        return "auto"
    if text == "learn":
        return "learn"
    if text == "correlated":
        return "correlated"
    return parse_level(text, "--sigma")


def parse_simulated(text: str | None) -> Simulated | None:
    """What was given for --simulate."""
    return "photons" if text == "photons" else parse_level(text, "--simulate")


def estimated_level(images: Measurements, kind: str) -> Estimate:
    """σ in unit range, told from the noisy images themselves; says how sure that is."""
    from nediff.diagnosis.advice import images_in_words
    from nediff.noise import typical_level
    from nediff.noise.level import level_of
    from nediff.noise.variation import by_image

    if kind not in ("denoising", "blur"):
        raise NediffError(
            f"--sigma auto needs complete images, and those of {kind} are not; measure the noise "
            "where the instrument sees nothing but noise, and give --sigma; or, with a mask, try "
            "--sigma learn."
        )
    noise = typical_level(images)
    found = noise.sigma if noise.signal.dependent else level_of(noise.blocks).sigma
    if not found.value > 0:
        raise NediffError(
            "No white noise was found in these images; if theirs is correlated (`nediff diagnose` "
            "says so), train with --sigma correlated, else give --sigma."
        )
    white = noise.whiteness.white or images.simulated is not None
    if not white:  # the white part of it is surer than how much noise there is
        apart = found.value - noise.sigma.value
        doubt = math.hypot(found.doubt, noise.sigma.total_error, apart)
        found = replace(found, doubt=doubt)
    _say_found(found, "`nediff diagnose` says whether it is white and the same everywhere")
    if not white:
        _say_correlated(noise.whiteness)
    if noise.signal.grows:
        say(
            "Careful: it grows with the signal, and this is its middle; --gain auto instead of "
            "--sigma takes that into account."
        )
    images_differ = by_image(noise.blocks, noise.measure)
    if images_differ.varies:
        say(f"Careful: {' '.join(images_in_words(images_differ, images.range))}")
    warn_if_doubtful(found)
    return found


def middle_level(images: Measurements) -> float:
    """σ in unit range for a network made for white noise, whatever the noise is."""
    from nediff.noise import typical_level

    noise = typical_level(images)
    if not noise.sigma.value > 0:
        raise NediffError(
            "No noise was found in these images. If there is some, a camera may have smoothed it "
            "(`nediff diagnose` says so), and a run of your own, `nediff train --sigma "
            "correlated`, is made for that; else give --sigma."
        )
    _say_found(noise.sigma, "--sigma says it better if you know it")
    kinds = [
        "correlated between neighbours" if not noise.whiteness.white else "",
        "not the same in dark and bright places" if noise.signal.dependent else "",
    ]
    if any(kinds):
        say(
            f"Careful: the noise is {' and '.join(k for k in kinds if k)}, and this network is "
            "made for white noise of one strength; a run of your own does better: see `nediff "
            "diagnose`."
        )
    warn_if_doubtful(noise.sigma)
    return noise.sigma.value


def warn_if_correlated(images: Measurements, kind: str) -> None:
    """A word where the noise that is said to be white is not; of few or small images, silence.

    It is looked at as `nediff diagnose` does, so that the two never contradict each other.
    """
    from nediff.noise import typical_level
    from nediff.noise.blocks import SIDE

    curved = isinstance(images.range, StabilisedRange)
    if kind != "denoising" or curved or images.remote or images.min_size < 4 * SIDE:
        return
    found = typical_level(images).whiteness
    if not found.white:
        _say_correlated(found)


def _say_correlated(found: Whiteness) -> None:
    across, down = found.neighbours
    say(
        f"Careful: the noise of neighbouring pixels seems to be correlated ({across:+.2f} "
        f"across, {down:+.2f} down), and is taken for white: part of it will stay, and what is "
        "estimated without truth will look better than it is. --sigma correlated takes it as "
        "it is; `nediff diagnose` tells more."
    )


def _say_found(sigma: Estimate, rest: str) -> None:
    value, error = f"{sigma.value:.4g}", f"{sigma.total_error:.2g}"
    say(f"noise estimated from the data: σ = {value} ± {error} of the range; {rest}")


def warn_if_doubtful(found: Estimate) -> None:
    """A word where σ is not sure."""
    if found.total_error > DOUBTFUL * found.value:
        say(
            "Careful: the estimate of σ is not sure. There may be no place in the images without "
            "texture; measure the noise of the instrument and give --sigma if you can."
        )


DOUBTFUL = 0.1
"""A relative error above which the user is warned: it costs a few tenths of a dB."""


def in_words(level: Simulated | Told | None) -> str:
    """As it was typed."""
    return f"{level:g}" if isinstance(level, float) else str(level)


def image_names(files: Sequence[ImageFile]) -> Iterable[tuple[str, str]]:
    """(name of the file, name of the image) of every page."""
    return ((f.name, f.page_name(page)) for f in files for page in range(f.n_images))


def sigmas_of(
    level: Level,
    units: Units,
    range: IntensityRange,
    files: Sequence[ImageFile],
    every_row: bool = False,
) -> Sigmas:
    """The noise level of every image of ``files``, in unit range."""
    if isinstance(level, float):
        if level > 1 and units == "fraction" and level < range.scale:
            raise NediffError(
                f"The noise level σ = {level:g} is larger than the intensity range {range.low:g} "
                f"to {range.high:g}; if it is in the units of the pixels, say --units data."
            )
        sigma = sigma_to_unit(level, units, range)
        return Sigmas({name: sigma for _, name in image_names(files)})
    scale = 1.0 if units == "fraction" else range.scale
    return read_sigmas(level, image_names(files), scale, every_row)


def with_levels(
    images: Measurements, level: Level | None, units: Units, every_row: bool = False
) -> Measurements:
    """The images with the noise levels that were given for them, if any were."""
    if level is None:
        return images
    return images.with_sigmas(sigmas_of(level, units, images.range, images.files, every_row))
