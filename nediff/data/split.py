"""Images to train on and images held out."""

from __future__ import annotations

from dataclasses import replace

from nediff.data.measurements import Measurements

_STRIP = 0.15


def split(
    measurements: Measurements,
    seed: int,
    fraction: float = 0.1,
    at_most: int = 32,
    *,
    crop: int,
) -> tuple[Measurements, Measurements]:
    """(train, held out), decided by the seed and the names alone.

    Of a single image, a strip is held out; where it is too small for two parts of ``crop``
    pixels, both are the whole image.
    """
    from nediff.randomness import derive_key  # brings in torch

    count = len(measurements)
    if count == 1:
        return _split_one(measurements, crop)
    order = sorted(range(count), key=lambda i: derive_key("split", seed, measurements.name(i)))
    held = max(1, min(at_most, round(fraction * count), count - 1))
    train, rest = sorted(order[held:]), sorted(order[:held])
    return measurements.select(train), measurements.select(rest)


def _split_one(measurements: Measurements, crop: int) -> tuple[Measurements, Measurements]:
    """Cut the only image across its longer side; the end of it is held out."""
    (window,) = measurements.windows
    length = max(window.height, window.width)
    strip = max(round(_STRIP * length), crop)
    rest = length - strip
    if rest < crop:
        return measurements, measurements
    if window.height >= window.width:
        parts = (
            replace(window, height=rest),
            replace(window, top=window.top + rest, height=strip),
        )
    else:
        parts = replace(window, width=rest), replace(window, left=window.left + rest, width=strip)
    return measurements.with_windows([parts[0]]), measurements.with_windows([parts[1]])
