"""`nediff restore`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from nediff.cli.console import bar, counting, say
from nediff.cli.inputs import refuse_misfits
from nediff.cli.levels import Level, sigmas_of
from nediff.data import (
    ImageFile,
    Scan,
    Sigmas,
    StabilisedRange,
    Units,
    form_like,
    list_files,
    scan,
    write_form,
    write_tiff,
)
from nediff.data.settle import magnitude
from nediff.data.stabilise import Watch
from nediff.data.write import Form
from nediff.errors import NediffError
from nediff.restorer import Restorer
from nediff.runs import make_folder
from nediff.sampling import PAPER_SETTINGS

Page = NDArray[np.floating]


@dataclass(frozen=True)
class RestoreRequest:
    """What the user asked for."""

    run: Path
    images: str
    out: Path
    samples: int
    steps: int | None
    solver: str
    seed: int
    axes: str | None
    overwrite: bool
    sigma: Level | None = None
    units: Units = "fraction"


def run_restore(request: RestoreRequest) -> None:
    """Restore every file; all inputs and outputs are checked before the first is written."""
    restorer = Restorer.load(request.run)
    settings = PAPER_SETTINGS if request.solver == "paper" else restorer.sampler
    steps = request.steps or settings.steps
    restorer.sampler = replace(settings, solver=request.solver, steps=steps)
    files = _checked_files(restorer, request)
    sigmas = _levels(restorer, request, files)
    make_folder(request.out)
    with bar() as progress:
        task = progress.add_task(
            "restoring", total=sum(f.n_images for f in files) * (1 + request.samples), note=""
        )

        def advance(file: ImageFile, amount: float) -> None:
            progress.update(task, advance=amount, note=file.name)

        for file in files:
            _restore_file(restorer, file, request, sigmas, advance)
    say(f"{len(files)} file(s) restored into {request.out}")


def _levels(restorer: Restorer, request: RestoreRequest, files: list[ImageFile]) -> Sigmas | None:
    """The noise levels that were given for these images; None for that of the run."""
    recorded, largest = restorer.config.data.sigmas, restorer.problem.sigma
    if request.sigma is not None and isinstance(restorer.range, StabilisedRange):
        raise NediffError(
            f"{request.run} knows the noise by the signal (gain {restorer.range.noise.gain:g}); "
            "leave --sigma out. Images of another gain need a run of their own."
        )
    if request.sigma is None:
        if recorded is not None and recorded.least < largest:
            raise NediffError(
                f"{request.run} was trained on images with noise from {recorded.least:g} to "
                f"{largest:g} of the intensity range; say how noisy these are with --sigma (a "
                "number, or a CSV file with a row for each image)."
            )
        return None
    sigmas = sigmas_of(request.sigma, request.units, restorer.range, files)
    restorer.levels(1, sigmas.least)
    restorer.levels(1, sigmas.largest)
    if sigmas.largest > largest * (1 + 1e-6):
        say(
            f"Careful: these images are up to {sigmas.largest / largest:.2g} times as noisy as "
            "those of the training; they are restored as images of less contrast."
        )
    return sigmas


def _checked_files(restorer: Restorer, request: RestoreRequest) -> list[ImageFile]:
    """The inputs, all of them whole, and all with a free place to write to."""
    if request.out.exists() and not request.out.is_dir():
        raise NediffError(f"{request.out} is a file, not a folder; choose another --out.")
    files = list_files(request.images, request.axes)
    channels = restorer.config.data.channels
    for file in files:
        if file.channels != channels:
            raise NediffError(
                f"{file.name} has {file.channels} channel(s); this run was trained on {channels}."
            )
    _refuse_collisions(restorer, files, request)
    r = restorer.range
    watch = Watch(r.noise, lambda values: values) if isinstance(r, StabilisedRange) else None
    with counting("reading images") as report:
        found = scan(files, report, watch)
    if watch is not None and restorer.problem.kind == "denoising":
        for sentence in watch.warnings():
            say(f"Careful: {sentence}")
    found = refuse_misfits(files, restorer.problem) or found
    _warn_of_other_units(restorer, _seen_extremes(restorer, files, found), request.sigma is None)
    return files


def _seen_extremes(restorer: Restorer, files: list[ImageFile], found: Scan) -> Scan:
    """For k-space, whose values say little of the intensities, those of its first image."""
    if restorer.problem.kind != "mri":
        return found
    values = magnitude(files[0].read(0), restorer.problem)
    return replace(found, minimum=float(values.min()), maximum=float(np.percentile(values, 99.9)))


def _warn_of_other_units(restorer: Restorer, found: Scan, same_noise: bool) -> None:
    """Images in other units than those of the training would be restored to nonsense.

    With ``same_noise`` they are also expected to vary as much as the noise of the training.
    """
    r, sigma = restorer.range, restorer.problem.sigma
    low, high = r.to_unit(np.array([found.minimum, found.maximum]))
    trained = f"This run was trained on the intensity range {r.low:g} to {r.high:g}"
    if high > 3 or low < -2:
        say(
            f"Careful: {trained}; these images go from {found.minimum:g} to {found.maximum:g}. "
            "Are they in the same units?"
        )
    elif (
        same_noise
        and not isinstance(r, StabilisedRange)
        and found.within_variance / r.scale**2 < 0.5 * sigma**2
    ):
        say(
            f"Careful: {trained} with noise of {sigma * r.scale:.3g}; these images vary less "
            "than that. Are they in the same units, and as noisy?"
        )


def _form(restorer: Restorer, file: ImageFile) -> Form:
    """How the restored file is stored: like the input, as far as that can hold it.

    What comes of k-space is an image and no k-space, so it is not like the input: always two
    channels of float32, the real and the imaginary part, in .npy or TIFF as the input is.
    """
    operator, size = restorer.problem.operator, file.size()
    image = torch.empty(1, *operator.image_size(*size), device="meta")
    height, width = operator.frame(image, *size).shape[-2:]
    shape = (restorer.problem.channels, height, width)
    return form_like(file, shape, as_float=restorer.problem.kind == "mri")


def _outputs(restorer: Restorer, file: ImageFile, request: RestoreRequest) -> dict[str, Path]:
    stem = Path(file.name).with_suffix("").as_posix()
    paths = {"restored": request.out / "restored" / _form(restorer, file).rename(file.name)}
    if request.samples >= 1:
        paths["mean"] = request.out / "mean" / f"{stem}.tif"
        for k in range(request.samples):
            paths[f"sample {k}"] = request.out / "samples" / f"{stem}_{k}.tif"
    if request.samples >= 2:
        paths["sd"] = request.out / "sd" / f"{stem}.tif"
    return paths


def _refuse_collisions(restorer: Restorer, files: list[ImageFile], request: RestoreRequest) -> None:
    """Two inputs must not write one output, and nothing is overwritten unasked."""
    seen: dict[Path, str] = {}
    for file in files:
        for path in _outputs(restorer, file, request).values():
            if path in seen:
                raise NediffError(
                    f"{seen[path]} and {file.name} would both be written to {path}; restore them "
                    "into different folders."
                )
            if path.exists() and file.path is not None and path.samefile(file.path):
                raise NediffError(
                    f"The restored {file.name} would replace the noisy one; choose another --out."
                )
            if path.exists() and not request.overwrite:
                raise NediffError(
                    f"{path} exists already; choose another --out or add --overwrite."
                )
            seen[path] = file.name


def _restore_file(
    restorer: Restorer,
    file: ImageFile,
    request: RestoreRequest,
    sigmas: Sigmas | None,
    advance: Callable[[ImageFile, float], None],
) -> None:
    """All pages of one file; every output is written whole or not at all."""
    r = restorer.range
    restored: list[Page] = []
    drawn: list[Page] = []
    for page in range(file.n_images):
        y = r.to_unit(file.read(page))
        sigma = None if sigmas is None else sigmas.of(file.page_name(page))
        restored.append(r.from_unit(_framed(restorer, file, restorer.restore(y, sigma))))
        advance(file, 1)
        if request.samples:
            samples = restorer.sample(y, request.samples, request.seed, sigma)
            drawn.append(r.from_unit(_framed(restorer, file, samples)).astype(np.float32))
            advance(file, request.samples)
    paths = _outputs(restorer, file, request)
    for path in paths.values():
        make_folder(path.parent)
    write_form(_form(restorer, file), paths["restored"], restored)
    if request.samples >= 1:
        write_tiff(paths["mean"], [samples.mean(0) for samples in drawn])
        for k in range(request.samples):
            write_tiff(paths[f"sample {k}"], [samples[k] for samples in drawn])
    if request.samples >= 2:
        write_tiff(paths["sd"], [samples.std(0, ddof=1) for samples in drawn])


def _framed(restorer: Restorer, file: ImageFile, image: Page) -> Page:
    """The part of the image that lies over the input, so that pixels can be compared.

    The image behind a blurred one is larger than it by what the kernel reaches beyond its
    border, where little is known; that border is cut off.
    """
    framed: Page = restorer.problem.operator.frame(torch.from_numpy(image), *file.size()).numpy()
    return framed
