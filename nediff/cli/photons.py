"""Noise that depends on the signal, from the command line: told, or to be estimated."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nediff.cli.console import say
from nediff.data import Measurements, PhotonNoise, StabilisedRange
from nediff.data.stabilise import TOO_DARK
from nediff.errors import NediffError


@dataclass(frozen=True)
class UntoldPhotons:
    """`--gain auto`: gain and read noise are to be estimated; the offset may be known."""

    offset: float | None


def photons_of(
    gain: str | None, read_noise: float | None, offset: float | None
) -> PhotonNoise | UntoldPhotons | None:
    """The noise that --gain, --read-noise and --offset say, if they say any."""
    if gain is None:
        for name, value in (("--read-noise", read_noise), ("--offset", offset)):
            if value is not None:
                raise NediffError(
                    f"{name} belongs to noise that depends on the signal; give --gain too."
                )
        return None
    if gain == "auto":
        if read_noise is not None:
            raise NediffError("--gain auto estimates the read noise too; leave --read-noise out.")
        return UntoldPhotons(offset)
    try:
        number = float(gain)
    except ValueError:
        raise NediffError(
            f"--gain {gain} is neither a number (data units per photon) nor auto."
        ) from None
    return PhotonNoise(number, read_noise or 0.0, offset or 0.0)


LOOKED_AT = 16
"""Images whose pixels are looked at, of large sets."""


def refuse_too_dark(images: Measurements) -> None:
    """Data that would be cut off: all that is darker than the noise allows becomes one value."""
    assert isinstance(images.range, StabilisedRange)
    every = -(-len(images) // LOOKED_AT)
    shares = [images.range.too_dark(images.image(i)) for i in range(0, len(images), every)]
    share, noise = sum(shares) / len(shares), images.range.noise
    if share > TOO_DARK:
        raise NediffError(
            f"{share:.0%} of the pixels are darker than {noise.darkest:.4g}, which noise with "
            f"--gain {noise.gain:.4g} --read-noise {noise.read_noise:.4g} --offset "
            f"{noise.offset:.4g} cannot make; all they show would be lost. Check the offset; "
            "images of several instruments or settings are not of one gain: train on one at a "
            "time, or with --sigma."
        )


def estimated_photons(images: Measurements, untold: UntoldPhotons, kind: str) -> PhotonNoise:
    """Gain and read noise, told from the noisy images themselves; says how sure that is."""
    from nediff.noise import estimate_signal_dependence

    if kind != "denoising":
        raise NediffError(
            f"--gain auto needs complete images, and those of {kind} are not; measure the noise "
            "of the instrument and give --gain and --read-noise."
        )
    found = estimate_signal_dependence(images)
    if not found.grows:
        line = f"{found.gain:.3g} ± {found.gain_error:.2g} × value {found.constant:+.3g}"
        seen = f" (variance = {line})" if math.isfinite(found.gain_error) else ""
        raise NediffError(
            "The noise of these images does not grow with their signal, as far as can be "
            f"seen{seen}; try --sigma auto, and `nediff diagnose` for more."
        )
    noise = found.photons(untold.offset)
    words = f"--gain {noise.gain:.4g} --read-noise {noise.read_noise:.3g}"
    say(
        f"noise estimated from the data: variance = {found.gain:.4g} (± {found.gain_error:.2g}) "
        f"× value {found.constant:+.4g} (± {found.constant_error:.2g}), as {words} --offset "
        f"{noise.offset:.4g}; `nediff diagnose` says whether it is white"
    )
    return noise
