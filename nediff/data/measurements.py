"""The measurements as training sees them: numbered images in the unit range, read lazily."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nediff.data.cache import DEFAULT_CACHE_BYTES
from nediff.data.files import ImageFile
from nediff.data.ranges import IntensityRange, choose_range
from nediff.data.scan import Progress, Scan, check_channels, scan
from nediff.data.shards import ShardFile, prepare
from nediff.data.sigmas import Sigmas
from nediff.data.simulate import SimulatedNoise, SimulatedPhotons
from nediff.data.sources import Source, list_files
from nediff.data.stabilise import PhotonNoise, StabilisedRange, Watch, choose_stabilised
from nediff.errors import NediffError

MOST_OF_SHARDS = 2048
"""So many images of shards are looked at before training; the others when they are needed."""


@dataclass(frozen=True)
class Window:
    """A rectangle of one page of a file; ``whole`` if it is all of it."""

    file: ImageFile
    page: int
    top: int
    left: int
    height: int
    width: int

    @property
    def source_name(self) -> str:
        """The name of the image it is cut from, which its noise belongs to."""
        return self.file.page_name(self.page)

    @property
    def name(self) -> str:
        """Unique: says which rows and columns unless it is the whole image."""
        if (self.height, self.width) == self.file.size(self.page):
            return self.source_name
        rows = f"{self.top}:{self.top + self.height}"
        return f"{self.source_name}[{rows},{self.left}:{self.left + self.width}]"


class Instrument(Protocol):
    """What simulated measurements are made with; a Problem is one (see problem.py)."""

    def measured_channels(self, channels: int) -> int:
        """How many a picture with so many channels is measured in."""

    def measured_size(self, height: int, width: int) -> tuple[int, int]:
        """The size of the measurement of a picture of this size."""

    def measure(
        self,
        read: Callable[[int, int, int, int], NDArray[np.float32]],
        top: int,
        left: int,
        height: int,
        width: int,
    ) -> NDArray[np.float32]:
        """A window of the noise-free measurement of the picture that ``read`` reads windows of."""

    def mask(self, noise: NDArray[np.float32], top: int, left: int) -> NDArray[np.float32]:
        """Zero where nothing is measured; the window is at (top, left)."""


class Measurements:
    """Images of equally many channels and any sizes, in the unit range.

    With ``noise``, the files are clean and what comes out is clean + noise; with an
    ``instrument`` too, it is what the instrument measures of them, A clean + noise, and sizes
    and crops are those of the measurement.
    ``within_variance`` is that of the images as they come out, in unit range;
    ``range_chosen`` says in one line how ``range`` was chosen. ``sigmas`` are the noise levels
    of the images where each has its own; None where one σ holds for all.
    """

    def __init__(
        self,
        windows: Sequence[Window],
        range: IntensityRange,
        range_chosen: str,
        within_variance: float,
        noise: SimulatedNoise | SimulatedPhotons | None = None,
        instrument: Instrument | None = None,
        sigmas: Sigmas | None = None,
    ) -> None:
        self.windows = windows
        self.range = range
        self.range_chosen = range_chosen
        self.within_variance = within_variance
        self.noise = noise
        self.instrument = instrument
        self.sigmas = sigmas
        stored = windows[0].file.channels
        self.channels = stored if instrument is None else instrument.measured_channels(stored)

    def __repr__(self) -> str:
        sizes = {self.size(i) for i in range(len(self))}
        height, width = sizes.pop()
        pixels = "several sizes" if sizes else f"{width} × {height} pixels"
        noise = "" if self.simulated is None else f", simulated noise of σ = {self.simulated:.4g}"
        return (
            f"<Measurements: {len(self)} image(s) of {pixels}, {self.channels} channel(s), range "
            f"{self.range.low:g} to {self.range.high:g}{noise}>"
        )

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, i: int) -> NDArray[np.float32]:
        return self.image(i)

    @property
    def clean(self) -> Measurements | None:
        """The images without the simulated noise; None where the noise is real."""
        if self.noise is None:
            return None
        variance = max(self.within_variance - self.noise.mean_square, 0.0)
        return Measurements(self.windows, self.range.of_means(), self.range_chosen, variance)

    @property
    def simulated(self) -> float | None:
        """The (largest) σ of the simulated noise, unit range; None where the noise is real."""
        return None if self.noise is None else self.noise.sigma

    @property
    def simulate_seed(self) -> int:
        """The seed of the simulated noise; 0 where it is real."""
        return 0 if self.noise is None else self.noise.seed

    def simulate(
        self, sigma: float | ArrayLike | Sigmas, seed: int, instrument: Instrument | None = None
    ) -> Measurements:
        """These images, taken as clean, measured with white noise of ``sigma`` drawn once.

        σ is in unit range: one number, or one for each image. The noise of a value is a function
        of (seed, image name, position) alone. Without an ``instrument`` the images themselves
        are measured.
        """
        sigmas = None
        if isinstance(sigma, Sigmas) or np.ndim(sigma) > 0:
            sigmas = self._levels(sigma)
            sigma = sigmas.largest
        level = float(sigma)  # type: ignore[arg-type]
        if not (math.isfinite(level) and level > 0):
            raise NediffError(f"The noise to simulate must be a positive number, not {level}.")
        noise = SimulatedNoise(level, seed, sigmas)
        variance = self.within_variance + noise.mean_square
        return self._with(
            within_variance=variance, noise=noise, instrument=instrument, sigmas=sigmas
        )

    def simulate_photons(self, seed: int, instrument: Instrument | None = None) -> Measurements:
        """These images, taken as clean, measured once with the noise their range stabilises.

        The noise is drawn in data units, by (seed, image name, position) and the clean value.
        An ``instrument`` must be a mask, which commutes with noise and map of each pixel.
        """
        if not isinstance(self.range, StabilisedRange):
            raise NediffError(
                "Photon noise is simulated in a stabilised range: open the images with photons=…"
            )
        noise = SimulatedPhotons(self.range.of_measurements(), seed)
        variance = self.within_variance + noise.mean_square
        return self._with(
            range=noise.range, within_variance=variance, noise=noise, instrument=instrument
        )

    def with_sigmas(self, sigmas: float | ArrayLike | Sigmas) -> Measurements:
        """The same data with the noise level (unit range) of each image, or one for all."""
        return self._with(sigmas=self._levels(sigmas))

    def _levels(self, sigmas: float | ArrayLike | Sigmas) -> Sigmas:
        """By the names of the images, from numbers in their order."""
        names = [window.source_name for window in self.windows]
        if isinstance(sigmas, Sigmas):
            if missing := [name for name in names if name not in sigmas.by_name]:
                raise NediffError(f"There is no noise level for {missing[0]}.")
            return sigmas
        values = np.asarray(sigmas, dtype=np.float64)
        if values.ndim > 1 or values.size not in (1, len(self)):
            raise NediffError(
                f"{len(self)} images need as many noise levels, not an array of shape "
                f"{values.shape}."
            )
        return Sigmas(dict(zip(names, np.broadcast_to(values, len(self)).tolist(), strict=True)))

    def sigma_of(self, i: int, otherwise: float) -> float:
        """The noise level of an image (or of that it is cut from), or the one of all."""
        return otherwise if self.sigmas is None else self.sigmas.of(self.windows[i].source_name)

    @property
    def files(self) -> list[ImageFile]:
        """The files the images are read from."""
        return list(dict.fromkeys(window.file for window in self.windows))

    @property
    def fingerprint(self) -> str:
        """A short text that changes with the names, the order or the sizes of the images."""
        listing = "\n".join(f"{w.name} {w.height} {w.width}" for w in self.windows)
        return hashlib.blake2b(listing.encode(), digest_size=8).hexdigest()

    @property
    def remote(self) -> bool:
        """Whether images must be fetched first: they are in shards."""
        return isinstance(self.windows[0].file, ShardFile)

    @property
    def min_size(self) -> int:
        """The smallest side of any image."""
        return min(min(self.size(i)) for i in range(len(self)))

    def name(self, i: int) -> str:
        """A stable, unique name: ``cells.tif``, or ``cells.tif#3`` for page 3 (from 0)."""
        return self.windows[i].name

    def size(self, i: int) -> tuple[int, int]:
        """(H, W), without reading pixels."""
        size = self.windows[i].height, self.windows[i].width
        return size if self.instrument is None else self.instrument.measured_size(*size)

    def image(self, i: int) -> NDArray[np.float32]:
        """The whole image, (C, H, W)."""
        return self.crop(i, 0, 0, *self.size(i))

    def prepare(self, images: Iterable[int], wait: bool = True) -> None:
        """Fetch images that are far away, many at a time, before they are asked for."""
        prepare((self.windows[i].file for i in images), wait)

    def crop(self, i: int, top: int, left: int, height: int, width: int) -> NDArray[np.float32]:
        """A window (C, height, width), equal to the same slice of ``image(i)``."""
        window = self.windows[i]
        whole = self.size(i)
        if min(top, left) < 0 or top + height > whole[0] or left + width > whole[1]:
            raise IndexError(f"crop beyond the edge of {window.name}")
        if self.instrument is None:
            values = self._stored(window, top, left, height, width)
        else:
            values = self.instrument.measure(
                lambda *place: self._stored(window, *place), top, left, height, width
            )
        if isinstance(self.noise, SimulatedNoise):
            top, left = window.top + top, window.left + left
            name, channels = window.source_name, len(values)
            noise = self.noise.window(name, channels, height, width, top, left)
            if self.instrument is not None:
                noise = self.instrument.mask(noise, top, left)
            values = values + noise
        return values

    def _stored(
        self, window: Window, top: int, left: int, height: int, width: int
    ) -> NDArray[np.float32]:
        place = (window.top + top, window.left + left, height, width)
        if isinstance(self.noise, SimulatedPhotons):
            file, page = window.file, window.page
            whole = (file.channels, *file.size(page))
            read = partial(file.read_crop, page)
            return self.noise.window(window.source_name, read, whole, place)
        return self.range.to_unit(window.file.read_crop(window.page, *place))

    def with_range(self, range: IntensityRange, chosen: str, variance: float) -> Measurements:
        """The same data in another unit range.

        ``variance`` (within images) is in data units, or what the range makes of them.
        """
        sigmas = self.sigmas and self.sigmas.scaled(self.range.scale / range.scale)
        within = variance / range.span**2
        return self._with(range=range, range_chosen=chosen, within_variance=within, sigmas=sigmas)

    def with_windows(self, windows: Sequence[Window]) -> Measurements:
        """The same data, other parts of it."""
        return self._with(windows=windows)

    def _with(self, **changes: Any) -> Measurements:
        kept: dict[str, Any] = {
            "windows": self.windows,
            "range": self.range,
            "range_chosen": self.range_chosen,
            "within_variance": self.within_variance,
            "noise": self.noise,
            "instrument": self.instrument,
            "sigmas": self.sigmas,
        }
        return Measurements(**(kept | changes))

    def select(self, indices: Iterable[int]) -> Measurements:
        """A view on some of the images, in the order given."""
        return self.with_windows([self.windows[i] for i in indices])


def open_measurements(
    source: Source,
    *,
    range: tuple[float, float] | IntensityRange | None = None,
    axes: str | None = None,
    simulate: float | None = None,
    seed: int = 0,
    photons: PhotonNoise | None = None,
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    progress: Progress | None = None,
    warn: Callable[[str], object] = warnings.warn,
) -> Measurements:
    """Find the images of ``source``, look at all of them once, and settle their range.

    With ``simulate`` the images are taken as clean, and white noise of that standard
    deviation (unit range) is added wherever they are read, by ``seed``. With ``photons`` the
    noise depends on the signal, and the unit range is curved so that it is white there;
    ``warn`` hears of pixels for which that cannot be right.
    """
    files = list_files(source, axes, cache_bytes)
    if range is None:
        _check_types(files)
    elif not isinstance(range, IntensityRange):
        range = IntensityRange(*(float(v) for v in range))
    looked_at = _some(files)
    if photons is None and not isinstance(range, StabilisedRange):
        found = scan(looked_at, progress)
        extremes = (found.minimum, found.maximum)
        chosen, how = choose_range(found.sample, files[0].dtype, range, extremes)
    else:
        found, chosen, how = _stabilised(looked_at, range, photons, progress, warn)
    variance = found.within_variance / chosen.span**2
    clean = Measurements(_all_windows(files), chosen, how, variance)
    return clean if simulate is None else clean.simulate(simulate, seed)


def _stabilised(
    files: Sequence[ImageFile],
    range: IntensityRange | None,
    photons: PhotonNoise | None,
    progress: Progress | None,
    warn: Callable[[str], object],
) -> tuple[Scan, StabilisedRange, str]:
    """What there is in stabilised units, the range, and how it was chosen."""
    settled = range if isinstance(range, StabilisedRange) else None
    noise = photons if settled is None else settled.noise
    assert noise is not None
    transform = noise.stabilise if settled is None else settled.transform
    watch = Watch(noise, transform)
    found = scan(files, progress, watch)
    for sentence in watch.warnings():
        warn(sentence)
    if settled is not None:
        return found, settled, "as given"
    given = None if range is None else (range.low, range.high)
    return found, *choose_stabilised(noise, found.sample, given)


def _some(files: Sequence[ImageFile]) -> Sequence[ImageFile]:
    """What to look at before training: everything, but of many shards some images of each."""
    if not isinstance(files[0], ShardFile) or len(files) <= MOST_OF_SHARDS:
        return files
    check_channels(files)
    chosen = np.linspace(0, len(files) - 1, MOST_OF_SHARDS).astype(int)
    return [files[i] for i in chosen]


def _all_windows(files: Sequence[ImageFile]) -> list[Window]:
    return [
        Window(file, page, 0, 0, *file.size(page))
        for file in files
        for page in range(file.n_images)
    ]


def _check_types(files: Sequence[ImageFile]) -> None:
    """Files of different types hardly share a scale; only the user can know that they do."""
    first = files[0]
    for file in files:
        if file.dtype != first.dtype:
            raise NediffError(
                f"{first.name} is of type {first.dtype} but {file.name} of {file.dtype}; convert "
                "them to one type, or give the intensity range they share."
            )
