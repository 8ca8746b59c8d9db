"""`nediff restore`."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from nediff import __version__
from nediff.cli.console import Pulse, bar, counting, refuse_json_folder, say, write_json
from nediff.cli.correlated import with_estimated_levels
from nediff.cli.inputs import load_run, refuse_misfits
from nediff.cli.large import LargeFile, out_of_memory, use_less_memory
from nediff.cli.launch import use_all_devices
from nediff.cli.ledger import Ledger, key_of
from nediff.cli.levels import Level, sigmas_of
from nediff.cli.pretrained import estimated, pretrained_for
from nediff.data import (
    ImageFile,
    Scan,
    Sheet,
    Sigmas,
    StabilisedRange,
    Units,
    about_result,
    claimed,
    float_form,
    form_like,
    list_files,
    open_measurements,
    scan,
    would_read,
    write_form,
)
from nediff.data.settle import magnitude
from nediff.data.stabilise import Watch
from nediff.data.write import Form
from nediff.errors import NediffError
from nediff.processes import ALONE, Processes, joined, one_host
from nediff.restorer import Restorer
from nediff.runs import make_folder
from nediff.sampling import PAPER_SETTINGS

Page = NDArray[np.floating]

MUCH_THE_SAME = 1.05
"""Times the largest noise level of the training: more is worth a word."""


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
    tile: int | None = None
    json_file: Path | None = None
    pretrained: bool = False
    """Instead of ``run``, which is then found by the images."""
    range: tuple[float, float] | None = None
    """With ``pretrained``: that of the images, which other images in the folder would change."""

    @property
    def key(self) -> str:
        """What a file that was restored like this is known by."""
        asked = (self.samples, self.steps, self.solver, self.seed, self.axes, self.sigma)
        by_images = () if self.range is None else (self.range,)
        return key_of(self.run, *asked, self.units, self.tile, *by_images)


def run_restore(request: RestoreRequest) -> None:
    """Restore every file; all inputs and outputs are checked before the first is written.

    The same command again goes on with what is missing. Several processes share the files, and
    the parts of a large one.
    """
    refuse_json_folder(request.json_file)
    use_all_devices()
    processes = joined()
    if request.out.exists() and not request.out.is_dir():
        raise NediffError(f"{request.out} is a file, not a folder; choose another --out.")
    with claimed(request.out):
        _run_restore(request, processes)


def _run_restore(request: RestoreRequest, processes: Processes) -> None:
    request, restorer = _with_restorer(request)
    settings = PAPER_SETTINGS if request.solver == "paper" else restorer.sampler
    steps = request.steps or settings.steps
    restorer.sampler = replace(settings, solver=request.solver, steps=steps)
    restorer.tile = request.tile or restorer.tile
    ledger = Ledger(request.out, request.key)
    files = _agreed_files(restorer, request, ledger, processes)
    if not files:
        say(
            f"All of these files were restored into {request.out} before, by the same command; "
            "--overwrite does it again"
        )
        if processes.main:
            ledger.tidy()
        write_json(_summary(restorer, request, []), request.json_file)
        return
    _warn_of_no_correction(restorer, request)
    sigmas = _levels(restorer, request, files)
    make_folder(request.out)
    together, mine = _shared_out(restorer, files, processes)
    units = sum(f.n_images for f in (*together, *mine)) * (1 + request.samples)
    with bar() as progress:
        task = progress.add_task("restoring", total=units, note="")
        pulse, done = Pulse("restoring"), 0.0

        def advance(file: ImageFile, amount: float) -> None:
            nonlocal done
            done += amount
            progress.update(task, advance=amount, note=file.name)
            pulse(done, units)

        for file in together:  # first: all must cut them into the same parts
            _restore_file(restorer, file, request, sigmas, ledger, advance, processes)
        for file in mine:
            _restore_file(restorer, file, request, sigmas, ledger, advance)
    processes.wait()
    say(f"{len(files)} file(s) restored into {request.out}")
    if processes.main:
        ledger.tidy()
        write_json(_summary(restorer, request, files), request.json_file)


def _summary(
    restorer: Restorer, request: RestoreRequest, files: list[ImageFile]
) -> dict[str, object]:
    """What was done, for programs; files that were there before are not listed."""
    settings = restorer.sampler
    done = [
        {
            "name": file.name,
            "images": file.n_images,
            "outputs": {k: str(p) for k, p in _outputs(restorer, file, request).items()},
        }
        for file in files
    ]
    return {
        "run": str(request.run),
        "out": str(request.out),
        "samples": request.samples,
        "solver": settings.solver,
        "steps": settings.steps,
        "seed": request.seed,
        "calibrated": _corrected(restorer, request),
        "files": done,
    }


def _corrected(restorer: Restorer, request: RestoreRequest) -> bool:
    """Whether there are samples, and of the kind that `nediff calibrate` was asked about."""
    correction = restorer.correction
    return request.samples > 0 and correction is not None and correction.sampler == restorer.sampler


def _warn_of_no_correction(restorer: Restorer, request: RestoreRequest) -> None:
    correction = restorer.correction
    if request.samples and correction is not None and not _corrected(restorer, request):
        found = correction.sampler
        say(
            f"Careful: the error bars of {request.run} were calibrated for samples by --solver "
            f"{found.solver} --steps {found.steps}; these are drawn otherwise, and left as they "
            "are."
        )


def _agreed_files(
    restorer: Restorer, request: RestoreRequest, ledger: Ledger, processes: Processes
) -> list[ImageFile]:
    """What is to do, found out by the main process before any writes."""
    found: list[ImageFile] = []

    def look() -> list[str]:
        found.extend(_checked_files(restorer, request, ledger))
        return [file.name for file in found]

    names = processes.told(look)
    if processes.main:
        return found
    seen = {file.name: file for file in list_files(request.images, request.axes)} if names else {}
    if missing := [name for name in names if name not in seen]:
        raise NediffError(
            f"The machine {platform.node()} does not see {missing[0]}, which the main process "
            "does; name images that all machines have."
        )
    return [seen[name] for name in names]


def _shared_out(
    restorer: Restorer, files: list[ImageFile], processes: Processes
) -> tuple[list[ImageFile], list[ImageFile]]:
    """(files that all restore together part by part, files that this process restores).

    Parts go through files, which the processes of one machine see alike at once; those of
    several machines may not, and then each large file is left to one of them.
    """
    together = []
    if processes.several and one_host():
        together = [f for f in files if restorer.in_parts(restorer.problem, f.size())]
    return together, list(processes.share([f for f in files if f not in together]))


def _with_restorer(request: RestoreRequest) -> tuple[RestoreRequest, Restorer]:
    """What restores, and the request with its folder and, if it came along, its noise level."""
    if not request.pretrained:
        return request, load_run(request.run, request.images)
    run, restorer, images = pretrained_for(request.images, request.axes)
    request = replace(request, run=run, range=(restorer.range.low, restorer.range.high))
    if request.sigma is None:
        request = replace(request, sigma=estimated(images, restorer), units="fraction")
    return request, restorer


def _levels(restorer: Restorer, request: RestoreRequest, files: list[ImageFile]) -> Sigmas | None:
    """The noise levels that were given for these images, or estimated; None for that of the run."""
    recorded, largest = restorer.config.data.sigmas, restorer.problem.sigma
    if request.sigma is not None and isinstance(restorer.range, StabilisedRange):
        raise NediffError(
            f"{request.run} knows the noise by the signal (gain {restorer.range.noise.gain:g}); "
            "leave --sigma out. Images of another gain need a run of their own."
        )
    if request.sigma is None and restorer.config.operator.coloured:
        with counting("reading images") as report:
            images = open_measurements(
                request.images, range=restorer.range, axes=request.axes, progress=report
            )
        sigmas = with_estimated_levels(images, restorer).sigmas
        assert sigmas is not None
        return _checked_levels(restorer, sigmas)
    if request.sigma is None:
        if recorded is not None and recorded.least < largest:
            raise NediffError(
                f"{request.run} was trained on images with noise from {recorded.least:g} to "
                f"{largest:g} of the intensity range; say how noisy these are with --sigma (a "
                "number, or a CSV file with a row for each image)."
            )
        return None
    return _checked_levels(restorer, sigmas_of(request.sigma, request.units, restorer.range, files))


def _checked_levels(restorer: Restorer, sigmas: Sigmas) -> Sigmas:
    """Levels that the run can take; more noise than it has seen is said to be."""
    largest = restorer.problem.sigma
    restorer.levels(1, sigmas.least)
    restorer.levels(1, sigmas.largest)
    if sigmas.largest > largest * MUCH_THE_SAME:
        say(
            f"Careful: these images are up to {sigmas.largest / largest:.2g} times as noisy as "
            "those of the training; they are restored as images of less contrast."
        )
    return sigmas


def _checked_files(restorer: Restorer, request: RestoreRequest, ledger: Ledger) -> list[ImageFile]:
    """The inputs that are to do, all of them whole, and all with a free place to write to."""
    files = list_files(request.images, request.axes)
    channels = restorer.config.data.channels
    for file in files:
        if file.channels != channels:
            raise NediffError(
                f"{file.name} has {file.channels} channel(s); this run was trained on {channels}."
            )
    _refuse_read_again(restorer, files, request)
    files = _unfinished(restorer, files, request, ledger)
    if not files:
        return files
    _refuse_collisions(restorer, files, request, ledger)
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


def _refuse_read_again(restorer: Restorer, files: list[ImageFile], request: RestoreRequest) -> None:
    """Results must neither replace noisy images nor lie among them, to be read as such."""
    advice = "choose another --out, outside of the data."
    images = Path(request.images).expanduser()
    if images.is_dir() and request.out.resolve() == images.resolve():
        raise NediffError(f"--out {request.out} is the folder of the noisy images; {advice}")
    for file in files:
        for path in _outputs(restorer, file, request).values():
            if path.exists() and file.place is not None and path.samefile(file.place):
                raise NediffError(
                    f"The restored {file.name} would replace the noisy one; choose another --out."
                )
            if would_read(request.images, path):
                raise NediffError(
                    f"{path} would lie among the noisy images, and {request.images} would read it "
                    f"as one the next time; {advice}"
                )


def _unfinished(
    restorer: Restorer, files: list[ImageFile], request: RestoreRequest, ledger: Ledger
) -> list[ImageFile]:
    """Those that the same command has not finished before."""
    if request.overwrite:
        return files
    left = [f for f in files if not ledger.finished(f, _outputs(restorer, f, request).values())]
    if left and len(left) < len(files):
        say(f"{len(files) - len(left)} file(s) were restored before; going on with the others")
    return left


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


def _refuse_collisions(
    restorer: Restorer, files: list[ImageFile], request: RestoreRequest, ledger: Ledger
) -> None:
    """Two inputs must not write one output, and nothing is overwritten unasked."""
    seen: dict[Path, str] = {}
    for file in files:
        for path in _outputs(restorer, file, request).values():
            if path in seen:
                raise NediffError(
                    f"{seen[path]} and {file.name} would both be written to {path}; restore them "
                    "into different folders."
                )
            if path.exists() and not (request.overwrite or ledger.work(file).exists()):
                raise NediffError(
                    f"{path} exists already; choose another --out or add --overwrite."
                )
            seen[path] = file.name


def _restore_file(
    restorer: Restorer,
    file: ImageFile,
    request: RestoreRequest,
    sigmas: Sigmas | None,
    ledger: Ledger,
    advance: Callable[[ImageFile, float], None],
    processes: Processes = ALONE,
) -> None:
    """All pages of one file, in smaller parts for as long as memory is short."""
    paths = _outputs(restorer, file, request)
    ledger.begin(file)
    for path in paths.values():
        make_folder(path.parent)
    while True:
        try:
            _restore_once(restorer, file, request, sigmas, ledger, paths, advance, processes)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            if processes.several:
                raise NediffError(
                    f"There is not enough memory for {processes.count} squares of "
                    f"{restorer.tile} pixels of {file.name} at a time; give a smaller --tile, or "
                    "launch fewer processes."
                ) from error
        else:
            if processes.main:
                ledger.finish(file)
            return
        use_less_memory(restorer, file)
        shutil.rmtree(ledger.work(file), ignore_errors=True)  # of other parts
        ledger.begin(file)


def _restore_once(
    restorer: Restorer,
    file: ImageFile,
    request: RestoreRequest,
    sigmas: Sigmas | None,
    ledger: Ledger,
    paths: dict[str, Path],
    advance: Callable[[ImageFile, float], None],
    processes: Processes,
) -> None:
    """Every output is written whole or not at all."""
    if restorer.in_parts(restorer.problem, file.size()):
        forms = _forms(restorer, file, request, sigmas, paths)
        large = LargeFile(
            restorer,
            file,
            forms,
            paths,
            request.samples,
            request.seed,
            sigmas,
            ledger.work(file),
            processes,
        )
        large.restore(lambda amount: advance(file, amount))
    else:
        _restore_small(restorer, file, request, sigmas, ledger, paths, advance)


def _forms(
    restorer: Restorer,
    file: ImageFile,
    request: RestoreRequest,
    sigmas: Sigmas | None,
    paths: Iterable[str],
) -> dict[str, Form]:
    """How each output of a file is stored, and what is written about it."""
    restored, about = _form(restorer, file), _about(restorer, file, request, sigmas)
    layout = restored.header.layout
    floats = float_form(file.n_images, (layout.channels, *layout.size))
    forms = dict.fromkeys(paths, floats) | {"restored": restored}
    return {
        name: replace(form, header=replace(form.header, about=about | {"holds": name}))
        for name, form in forms.items()
    }


def _about(
    restorer: Restorer, file: ImageFile, request: RestoreRequest, sigmas: Sigmas | None
) -> dict[str, object]:
    """As the web page tells it: the model by the name of its folder, and how it was asked."""
    names = [file.page_name(page) for page in range(file.n_images)]
    levels = [restorer.problem.sigma if sigmas is None else sigmas.of(name) for name in names]
    settings: dict[str, object] = {"samples": request.samples, "seed": request.seed}
    if request.samples:
        settings |= {"solver": restorer.sampler.solver, "steps": restorer.sampler.steps}
    model = "pretrained" if request.pretrained else request.run.resolve().name
    name = Path(file.name).name
    return about_result(__version__, model, name, restorer.range, levels, settings)


def _restore_small(
    restorer: Restorer,
    file: ImageFile,
    request: RestoreRequest,
    sigmas: Sigmas | None,
    ledger: Ledger,
    paths: dict[str, Path],
    advance: Callable[[ImageFile, float], None],
) -> None:
    """Image by image; those of a stack are on the disk as soon as they are there."""
    forms = _forms(restorer, file, request, sigmas, paths)
    pages = (
        _restored_page(restorer, file, page, request, sigmas, advance)
        for page in range(file.n_images)
    )
    if file.n_images == 1:
        for name, image in next(pages).items():
            write_form(forms[name], paths[name], [image])
        return
    work = ledger.work(file)
    sheets = {name: Sheet(form, work / name.replace(" ", "-")) for name, form in forms.items()}
    for number, images in enumerate(pages):
        for name, image in images.items():
            height, width = image.shape[-2:]
            sheets[name].put(number, slice(0, height), slice(0, width), image)
    for name, sheet in sheets.items():
        sheet.finish(paths[name])


def _restored_page(
    restorer: Restorer,
    file: ImageFile,
    page: int,
    request: RestoreRequest,
    sigmas: Sigmas | None,
    advance: Callable[[ImageFile, float], None],
) -> dict[str, Page]:
    """What comes of one image, by the names of the outputs."""
    r, y = restorer.range, restorer.range.to_unit(file.read(page))
    file.forget()
    sigma = None if sigmas is None else sigmas.of(file.page_name(page))
    estimate = _framed(restorer, file, restorer.restore(y, sigma))
    out: dict[str, Page] = {"restored": r.from_unit(estimate)}
    advance(file, 1)
    if not request.samples:
        return out
    samples = restorer.sample(y, request.samples, request.seed, sigma)
    drawn: Page = r.from_unit(_framed(restorer, file, samples)).astype(np.float32)
    advance(file, request.samples)
    out |= {"mean": drawn.mean(0)} | {f"sample {k}": drawn[k] for k in range(len(drawn))}
    return out | ({"sd": drawn.std(0, ddof=1)} if len(drawn) >= 2 else {})


def _framed(restorer: Restorer, file: ImageFile, image: Page) -> Page:
    """The part of the image that lies over the input, so that pixels can be compared.

    The image behind a blurred one is larger than it by what the kernel reaches beyond its
    border, where little is known; that border is cut off.
    """
    framed: Page = restorer.problem.operator.frame(torch.from_numpy(image), *file.size()).numpy()
    return framed
