"""Restore one image and draw samples of it, with progress; the result as TIFF files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import torch
from numpy.typing import NDArray

from nediff import __version__
from nediff.app.models import Model
from nediff.app.opening import Opened
from nediff.app.work import Work
from nediff.data import StabilisedRange, about_result, atomic_path
from nediff.data.settle import magnitude
from nediff.errors import NediffError
from nediff.operators import Coloured
from nediff.restorer import Restorer
from nediff.sampling import PAPER_SETTINGS, SamplerSettings

Values = NDArray[np.float32]
MOST_SAMPLES = 64
MOST_VALUES = 2**29
"""Of all samples of an image together: two GiB."""
MASKED = ("inpainting", "demosaicing")
"""Kinds of instruments that measure some pixels (or colours of them) and others not."""


@dataclass(frozen=True)
class Settings:
    """What the user chose; ``sigma`` in unit range, None for that of the run."""

    sigma: float | None
    samples: int = 8
    solver: str = "dpm2m"
    steps: int = 10
    seed: int = 0

    @property
    def sampler(self) -> SamplerSettings:
        """How to walk down from σ."""
        base = PAPER_SETTINGS if self.solver == "paper" else SamplerSettings()
        return replace(base, solver=self.solver, steps=self.steps)


@dataclass(frozen=True)
class Result:
    """Images (C, H, W), and ``samples`` (n, C, H, W), in the data's units.

    ``sd`` is None with fewer than two samples. ``noisy`` is what was measured, as a picture of
    the same kind (k-space as the image it gives at first).
    """

    opened: Opened
    settings: Settings
    sigma: float
    """In unit range; that of the stabilised values where the noise depends on the signal."""
    model: str
    noisy: Values
    restored: Values
    samples: Values
    white: bool = True
    """Whether the noise of neighbouring pixels is independent."""
    kind: str = "denoising"
    """What the instrument does (`Problem.kind`)."""
    measured: NDArray[np.bool_] | None = None
    """Which values of ``restored`` were themselves measured, where some were not."""

    def noise_variance(self, restored: Values) -> float:
        """The mean over a part of ``restored`` of the variance of what is measured there.

        In the data's units squared; with photon noise gain · (x − offset) + read² of each x.
        """
        r = self.opened.range
        if not isinstance(r, StabilisedRange):
            return (self.sigma * r.scale) ** 2
        light = np.maximum(restored.astype(np.float64) - r.noise.offset, 0.0)
        return float(r.noise.gain * light.mean() + r.noise.read_noise**2)

    @property
    def sd(self) -> Values | None:
        """The standard deviation of the samples."""
        if len(self.samples) < 2:
            return None
        spread: Values = self.samples.std(axis=0, ddof=1, dtype=np.float64).astype(np.float32)
        return spread


class Desk:
    """Where visitors queue: one image is restored at a time, for each would slow the other."""

    def __init__(self) -> None:
        self._free = threading.Lock()

    @contextmanager
    def turn(self, work: Work[Any]) -> Iterator[None]:
        """Wait for one's turn, in a way that can be cancelled."""
        while not self._free.acquire(timeout=0.2):
            work.report(0.0, "waiting: an image of another visitor is being restored")
        try:
            yield
        finally:
            self._free.release()


def prepare(model: Model, opened: Opened, settings: Settings, desk: Desk) -> Work[Result]:
    """The work, ready to start; its first result has no samples yet."""
    restorer = model.restorer(opened)
    _check(restorer, opened, settings)

    def task(work: Work[Result]) -> Result:
        with desk.turn(work):
            return _restore(restorer, model.name, opened, settings, work)

    return Work(task)


def _check(restorer: Restorer, opened: Opened, settings: Settings) -> None:
    """Refuse at once what would fail late."""
    if not 0 <= settings.samples <= MOST_SAMPLES:
        raise NediffError(f"Draw 0 to {MOST_SAMPLES} samples here, not {settings.samples}.")
    if settings.samples * opened.values.size > MOST_VALUES:
        most = MOST_VALUES // opened.values.size
        raise NediffError(f"So many samples of so large an image need too much memory; {most} fit.")
    if not 2 <= settings.steps <= 1000:
        raise NediffError(f"Sampling takes 2 to 1000 steps, not {settings.steps}.")
    restorer.levels(1, settings.sigma)


def _restore(
    restorer: Restorer, name: str, opened: Opened, settings: Settings, work: Work[Result]
) -> Result:
    work.report(0.0, "restoring")
    y, r = opened.unit, restorer.range

    def in_data_units(image: Values) -> Values:
        framed = restorer.problem.operator.frame(torch.from_numpy(image), *y.shape[-2:])
        return _visible(r.from_unit(framed.numpy()).astype(np.float32), restorer)

    def restoring(done: int, total: int) -> None:
        if done < total:  # what is finished is kept, whatever was clicked meanwhile
            work.report(done / total, "restoring")

    estimate = in_data_units(restorer.restore(y, settings.sigma, restoring))
    none = np.empty((0, *estimate.shape), np.float32)
    sigma = restorer.problem.sigma if settings.sigma is None else settings.sigma
    noisy = _noisy(restorer, opened)
    white = not isinstance(restorer.problem.operator, Coloured)
    kind, measured = restorer.problem.kind, _measured(restorer, y)
    result = Result(opened, settings, sigma, name, noisy, estimate, none, white, kind, measured)
    if settings.samples == 0:
        return result

    def progress(done: int, total: int) -> None:
        number = min(settings.samples, 1 + done * settings.samples // total)
        work.report(done / total, f"drawing sample {number} of {settings.samples}", result)

    progress(0, 1)
    drawn = restorer.sample(
        y, settings.samples, settings.seed, settings.sigma, settings.sampler, progress
    )
    return replace(result, samples=in_data_units(drawn))


def _visible(image: Values, restorer: Restorer) -> Values:
    """The complex images of MRI by their magnitude, others as they are."""
    if restorer.problem.kind != "mri":
        return image
    size: Values = np.sqrt(np.square(image).sum(axis=-3, keepdims=True))
    return size


def _measured(restorer: Restorer, y: Values) -> NDArray[np.bool_] | None:
    """Which values of the image were measured, for instruments that leave some out."""
    if restorer.problem.kind not in MASKED:
        return None
    measurement, here = restorer.measured(y)
    known: NDArray[np.bool_] = here.operator.known(measurement)[0].cpu().numpy() > 0
    return known


def _noisy(restorer: Restorer, opened: Opened) -> Values:
    if restorer.problem.kind == "mri":
        return (
            magnitude(opened.values, restorer.problem)
            .astype(np.float32)
            .reshape(1, *opened.values.shape[-2:])
        )
    return opened.values.astype(np.float32)


# --- files ----------------------------------------------------------------------------------------


def metadata_of(result: Result) -> dict[str, Any]:
    """What has to be known of a result to make it again."""
    opened = result.opened
    settings = {k: v for k, v in asdict(result.settings).items() if k != "sigma"}
    pages = {"page": opened.page + 1, "pages": opened.pages}  # counted as the page shows it
    known = (result.model, opened.name, opened.range, [result.sigma])
    return about_result(__version__, *known, pages | settings)


def write_files(result: Result, folder: Path) -> list[Path]:
    """restored in the type of the input; mean, sd and samples as float32. All in data units.

    Pages of a stack have names of their own, so that one does not replace the other in a folder.
    """
    stem = Path(result.opened.name).stem + result.opened.page_ending
    about, dtype = metadata_of(result), result.opened.values.dtype
    images: dict[str, NDArray[Any]] = {"restored": _as(result.restored, dtype)}
    if len(result.samples):
        images |= {"mean": result.samples.mean(axis=0), "samples": result.samples}
    if (sd := result.sd) is not None:
        images["sd"] = sd
    paths = []
    for what, image in images.items():
        paths.append(folder / f"{stem}-{what}.tif")
        _write_tiff(paths[-1], image, about | {"holds": what})
    return paths


def _as(image: Values, dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind == "f":
        return image.astype(dtype)
    info = np.iinfo(dtype)
    return np.clip(np.rint(image.astype(np.float64)), info.min, info.max).astype(dtype)


def _write_tiff(path: Path, image: NDArray[Any], about: dict[str, Any]) -> None:
    """An image (C, H, W) or a stack of them, channels last where they are colours."""
    axes = "ICYX"[4 - image.ndim :]
    rgb = image.shape[-3] == 3
    if rgb:
        image, axes = np.moveaxis(image, -3, -1), axes.replace("C", "") + "S"
    elif image.shape[-3] == 1:
        image, axes = image.squeeze(-3), axes.replace("C", "")
    colours = {"photometric": "rgb" if rgb else "minisblack"}
    known = {"axes": axes, "nediff": about}
    with atomic_path(path) as temporary:
        tifffile.imwrite(temporary, image, metadata=known, compression="zlib", **colours)
