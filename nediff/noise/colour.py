"""The colour of correlated noise: its spectrum, told from noisy images alone.

Nothing but flatness tells red noise from texture: both fall with the frequency. In the flattest
places what is measured is noise, but cameras filter and compress just there, so it is less than
elsewhere; all places together have the noise as it is, and texture. So we take the lower quartile
of all places, but no more than twice the power of the flattest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn

from nediff.data import Measurements
from nediff.errors import NediffError
from nediff.noise.blocks import Floats, choose_images
from nediff.operators.coloured import Colour, Coloured
from nediff.randomness import derive_key, normal_field

SIDE = 16
"""Of a block, in pixels: larger than in blocks.py, to see noise that goes on for some pixels."""
FLAT = 0.05
"""The share of the blocks that is taken as flat."""
LEAST_BLOCKS = 200
"""Of an image, to say anything of it."""
MOST_BLOCKS = 4000
MOST_IMAGES = 64
MOST_SIDE = 4096
"""Of the part of a large image that its level is told by."""
QUARTER, OF_QUARTER = 25, 0.10153
"""The lower quartile of the energies of a coefficient in all blocks, and that of χ² with one
degree of freedom: noise in so few of them that texture hardly matters."""
MOST = 2.0
"""Times the power in the flattest places. Chosen on ten photographs whose noise is known: there the
noise in the flattest places had a quarter to nine tenths of the power of that of all."""
_TOO_SMALL = (
    f"No image has {LEAST_BLOCKS} places of {SIDE} × {SIDE} pixels without a cut-off value, to "
    "tell the noise by; give --sigma."
)
_SMALL = 0.1
"""Times σ, to take a derivative by."""
_LEAST_LEFT = 0.05
"""Of noise, what a denoiser takes away: less says nothing of σ."""
_ROUNDS = 4  # of finding the colour and the levels, each by the other

_ROWS, _COLUMNS = np.indices((SIDE, SIDE))
_EVEN = (_ROWS + _COLUMNS) % 2 == 0
_INDEX: Floats = np.hypot(_ROWS, _COLUMNS)
_MEASURED = np.minimum(_ROWS, _COLUMNS) >= 1  # a slope across the block has no such coefficients
_EDGES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.5, 9.0, 11.0, 13.0, 15.0, 18.0, 22.0)
_RINGS = [_MEASURED & (np.digitize(_INDEX, _EDGES) == k) for k in range(1, len(_EDGES))]


@dataclass(frozen=True)
class ColouredNoise:
    """The colour of the noise of all images, and the level of each, in unit intensities."""

    colour: Colour
    sigmas: tuple[float, ...]


def estimate_colour(measurements: Measurements, seed: int = 0) -> ColouredNoise:
    """One spectrum for all images but for its strength; in a big set, told by some of them.

    It is the median over the images, and the level of each the median over the frequencies; an
    image that says nothing gets the median level.
    """
    chosen = choose_images(measurements, seed, MOST_IMAGES)
    axes = _axes([_blocks(measurements.image(i)) for i in chosen])
    found = {i: _spectrum(_blocks(measurements.image(i)), axes) for i in chosen}
    spectra = np.array([s for s in found.values() if s is not None])
    if not len(spectra):
        raise NediffError(_TOO_SMALL)
    levels = _strength(spectra).mean(axis=1)
    for _ in range(_ROUNDS):
        common = np.median(spectra / levels[:, None, None, None], axis=0)
        levels = np.median(_strength(spectra) / _strength(common), axis=1)
    frequency = np.array([_INDEX[ring].mean() for ring in _RINGS]) / (2 * SIDE)
    colour, variance = Colour.of(frequency, axes @ common @ axes.T)
    sigmas = []
    for i in range(len(measurements)):
        one = found[i] if i in found else _spectrum(_blocks(measurements.image(i)), axes)
        level = levels if one is None else _strength(one) / _strength(common)
        sigmas.append(math.sqrt(float(np.median(level)) * variance))
    return ColouredNoise(replace(colour, estimated=True), tuple(sigmas))


def levels_by_colour(measurements: Measurements, colour: Colour) -> tuple[float, ...]:
    """σ of each image whose noise has this colour, in unit intensities.

    So new images of the instrument of a run are told their levels by the run's own spectrum. An
    image too small to tell gets the median level of the others.
    """
    frequency = np.array([_INDEX[ring].mean() for ring in _RINGS]) / (2 * SIDE)
    strength = _strength(colour.power)
    expected = np.interp(frequency, colour.frequency, strength)
    found: list[float | None] = []
    for i in range(len(measurements)):
        blocks = _blocks(middle_of(measurements, i))
        spectrum = _spectrum(blocks, _axes([blocks])) if len(blocks) >= LEAST_BLOCKS else None
        found.append(None if spectrum is None else float(np.median(_strength(spectrum) / expected)))
    told = [level for level in found if level is not None]
    if not told:
        raise NediffError(_TOO_SMALL)
    median = float(np.median(told))
    return tuple(math.sqrt(median if level is None else level) for level in found)


def level_by_restoring(
    restore: Callable[[NDArray[np.float32]], NDArray[np.float32]],
    y: NDArray[np.float32],
    colour: Colour,
    sigma: float,
    seed: int = 0,
) -> float:
    """σ of an image y (C, H, W) by a denoiser D that looks for itself how noisy y is.

    Of noise of covariance σ²K, and the posterior mean D, y − D(y) = −σ²K∇log p and J_D = I +
    σ²K∇∇log p, so that E‖y − D(y)‖² = σ² E[n·(n − J_D n)] with n of covariance K. ``sigma``, about
    σ, is what the derivative is taken by. A denoiser that was trained for one σ gives that back,
    whatever y is; it must have learned to restore noise of any strength (operators/doubtful.py).
    """
    white = normal_field([derive_key("level", seed)], *y.shape)
    n = Coloured(colour).noise(white)[0].numpy().astype(np.float32)
    clear = restore(y)
    along = (restore(y + _SMALL * sigma * n) - clear) / (_SMALL * sigma)
    left = float((n * (n - along)).mean())
    return math.sqrt(float(np.square(y - clear).mean()) / max(left, _LEAST_LEFT))


def middle_of(measurements: Measurements, i: int, most: int = MOST_SIDE) -> NDArray[np.float32]:
    """An image, or as much of a large one as is looked at without filling the memory."""
    height, width = measurements.size(i)
    high, wide = min(height, most), min(width, most)
    return measurements.crop(i, (height - high) // 2, (width - wide) // 2, high, wide)


def _strength(spectrum: Floats) -> Floats:
    """(..., K, C, C) → (..., K): the mean variance of the components."""
    mean: Floats = np.trace(spectrum, axis1=-2, axis2=-1) / spectrum.shape[-1]
    return mean


def _blocks(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cosine coefficients (n, C, 16, 16) of blocks without a value at an end of the image's."""
    channels, height, width = image.shape
    if min(height, width) < SIDE:
        return np.empty((0, channels, SIDE, SIDE), np.float32)
    places = (height - SIDE + 1) * (width - SIDE + 1)
    stride = max(1, math.ceil(math.sqrt(places / MOST_BLOCKS)))
    stride += stride % 8 == 0  # no multiple of JPEG's eight pixels
    view = np.lib.stride_tricks.sliding_window_view(image, (SIDE, SIDE), axis=(1, 2))
    chosen = view[:, ::stride, ::stride].transpose(1, 2, 0, 3, 4)
    blocks = chosen.reshape(-1, channels, SIDE, SIDE)
    low, high = image.min(axis=(1, 2)), image.max(axis=(1, 2))
    inside = (blocks.min(axis=(2, 3)) > low) & (blocks.max(axis=(2, 3)) < high)
    kept: NDArray[np.float32] = dctn(blocks[inside.all(axis=1)], axes=(2, 3), norm="ortho")
    return kept


def _axes(images: list[NDArray[np.float32]]) -> Floats:
    """(C, C): orthonormal mixtures of the channels, such as brightness and two colours.

    Texture is mostly in one of them, and the noise of the others is told far better without it.
    """
    total = np.zeros((images[0].shape[1],) * 2)
    for blocks in images:
        values = blocks[:, :, _MEASURED].astype(np.float64)
        total += np.einsum("nik,njk->ij", values, values) / max(
            float(np.square(values).sum()), 1e-30
        )
    axes: Floats = np.linalg.eigh(total)[1]
    return axes


def _spectrum(blocks: NDArray[np.float32], axes: Floats) -> Floats | None:
    """(K, C, C): the covariance of the components in each ring of frequencies."""
    if len(blocks) < LEAST_BLOCKS:
        return None
    mixed = np.einsum("ic,nihw->nchw", axes, blocks.astype(np.float64))
    energy = np.square(mixed)
    everywhere = np.percentile(energy, QUARTER, axis=0) / OF_QUARTER
    relative = energy / np.maximum(np.median(energy, axis=0), 1e-12)
    out = np.empty((len(_RINGS), len(axes), len(axes)))
    for k, ring in enumerate(_RINGS):
        flat = np.array([_in_flat(energy[:, c], relative[:, c], k) for c in range(len(axes))])
        deviation = np.sqrt(np.minimum(everywhere[:, ring].mean(axis=1), MOST * flat))
        out[k] = _correlation(mixed, relative, k) * np.outer(deviation, deviation)
    return out


def _in_flat(energy: Floats, relative: Floats, k: int) -> float:
    """The mean energy of a component (n, 16, 16) in ring k of the blocks flattest about there.

    Coefficients of even u + v are measured in the blocks chosen by all others, and vice versa.
    """
    total, count = 0.0, 0
    for parity in (_EVEN, ~_EVEN):
        flat = _flattest(relative[:, _told_by(k, parity)].mean(axis=1))
        values = energy[flat][:, _RINGS[k] & parity]
        total, count = total + float(values.sum()), count + values.size
    return total / max(count, 1)


def _correlation(mixed: Floats, relative: Floats, k: int) -> Floats:
    """(C, C): of the components in ring k of the blocks that are flat in all of them."""
    channels = mixed.shape[1]
    total = np.zeros((channels, channels))
    for parity in (_EVEN, ~_EVEN):
        flat = _flattest(relative[:, :, _told_by(k, parity)].mean(axis=(1, 2)))
        values = mixed[flat][:, :, _RINGS[k] & parity]
        total += np.einsum("nik,njk->ij", values, values)
    deviation = np.sqrt(np.maximum(np.diag(total), 1e-30))
    correlation: Floats = total / np.outer(deviation, deviation)
    return correlation


def _told_by(k: int, parity: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The coefficients about ring k that are not measured with this parity."""
    near = (_EDGES[k] - 2.5 < _INDEX) & (_EDGES[k + 1] + 1 > _INDEX) & (_INDEX > 0)
    told: NDArray[np.bool_] = near & ~(_MEASURED & parity)
    return told


def _flattest(texture: Floats) -> NDArray[np.intp]:
    number = max(1, round(FLAT * len(texture)))
    return np.argpartition(texture, number - 1)[:number]
