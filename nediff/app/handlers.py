"""What the buttons of the restoring page do, for one session; no Gradio here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nediff.app.drawing import message, progress_bar
from nediff.app.models import Model, largest_sigma
from nediff.app.opening import Level, Opened, estimated_sigma, open_image, plus_minus
from nediff.app.pictures import save_noisy, save_pictures
from nediff.app.probing import Region, answer, histogram, probe
from nediff.app.restoring import Desk, Result, Settings, start, write_files
from nediff.app.sessions import Session
from nediff.app.work import Cancelled
from nediff.errors import NediffError

URL = "gradio_api/file="
UNSURE = 0.2
"""A relative error of σ above which the user is told."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Arrived:
    """What an upload changes on the page."""

    words: str
    viewer: Json | None
    sigma: float | None
    pages: int


@dataclass(frozen=True)
class Step:
    """What the page shows while an image is restored; None leaves things as they are."""

    progress: str
    viewer: Json | None = None
    files: list[str] | None = None
    words: str | None = None
    running: bool = True


def url(path: Path | None) -> str | None:
    """Where the browser finds a file of its session."""
    return None if path is None else f"{URL}{path.as_posix()}"


def arrive(session: Session, model: Model, file: Path, page: int = 0) -> Arrived:
    """Open an image and look at its noise; raises what is wrong with it."""
    session.opened = session.result = None
    opened = open_image(file, page, model.range)
    restorer = model.restorer(opened)
    most = largest_sigma(restorer)
    known = model.estimable and model.needs_sigma
    found = estimated_sigma(opened, model.colour) if known else None
    sigma = model.sigma if found is None or model.sigma is not None else min(found.value, most)
    session.opened = opened
    words = f"{opened.words}; intensity range {opened.range_chosen}. "
    words += _noise_words(opened, model, found, most)
    folder = session.new_folder()
    _, height, width = opened.values.shape
    viewer = _viewer(folder, opened, (height, width)) | {"noisy": url(save_noisy(opened, folder))}
    return Arrived(words, viewer, None if sigma is None else round(sigma, 5), opened.pages)


def _noise_words(opened: Opened, model: Model, found: Level | None, most: float) -> str:
    if not model.needs_sigma:
        return "The noise is known by the signal, as the run was trained."
    if found is None:
        if not model.estimable:
            return "σ cannot be told from images of this kind; it is that of the training."
        return "How strong the noise is cannot be told from this image; please say it."
    in_data = f"{found.value * opened.range.scale:.3g} in the data's units"
    data = f"σ = {plus_minus(found.value, found.error)} of the range ({in_data})"
    words = f"The noise of this image seems to have {data}."
    if found.error > UNSURE * found.value:
        words += " That is not sure: there may be no place in it without texture."
    if model.sigma is not None:
        words = f"The run was trained at σ = {model.sigma:.4g}. {words}"
    if found.value > most:
        words += f" That is more than this model can take, {most:.3g}."
    if not found.white and model.colour is None:
        words += (
            " It goes on from pixel to pixel, as in pictures that were compressed, resized or "
            "developed by a camera; made for white noise, this model will leave some of it, and "
            "its error bars will be too narrow."
        )
    return words


def _viewer(folder: Path, opened: Opened, size: tuple[int, int]) -> Json:
    nothing: Json = {"noisy": None, "restored": None, "samples": [], "sd": None, "top": ""}
    identity = f"{folder.parent.name}-{opened.name}-{opened.page}-{size}"
    return nothing | {"id": identity, "name": opened.name, "height": size[0], "width": size[1]}


def restore(session: Session, model: Model, desk: Desk, settings: Settings) -> Iterator[Step]:
    """Start the work and show how it goes; errors and cancelling end in a sentence."""
    if session.opened is None:
        raise NediffError("Drop an image first.")
    session.cancel()
    work = session.work = start(model, session.opened, settings, desk)
    session.result = None
    estimate: Result | None = None
    yield Step(progress_bar(0, "starting"), files=[])
    try:
        for update in work.updates():
            if update.done:
                assert update.result is not None
                yield _finished(session, update.result)
            elif update.result is not None and estimate is None:
                estimate = update.result  # there long before the samples
                yield Step(progress_bar(update.share, update.words), _shown(session, update.result))
            else:
                yield Step(progress_bar(update.share, update.words))
    except Cancelled:
        if estimate is None:
            yield Step("", words=message("Cancelled."), running=False)
            return
        kept = replace(estimate, settings=replace(settings, samples=0))
        words = message("Cancelled; the restored image is kept, without samples.")
        yield replace(_finished(session, kept), words=words)


def _finished(session: Session, result: Result) -> Step:
    session.result = result
    viewer = _shown(session, result)
    place = Path(viewer["folder"])
    files = [str(path) for path in write_files(result, place)]
    count = len(result.samples)
    words = f"Restored with {result.model}, σ = {result.sigma:.4g} of the range; "
    if (sd := result.sd) is not None:
        typical = float(np.sqrt(np.square(sd, dtype=np.float64).mean()))
        words += f"{count} samples, typical uncertainty {typical:.3g} in the data's units. "
        words += "Click into a picture to ask how sure it is."
    else:
        words += "draw two samples or more for error bars."
    return Step("", viewer, files, message(words), running=False)


def _shown(session: Session, result: Result) -> Json:
    folder = session.new_folder()
    pictures = save_pictures(result, folder)
    return _viewer(folder, result.opened, result.restored.shape[-2:]) | {
        "folder": str(folder),
        "noisy": url(pictures.noisy),
        "restored": url(pictures.restored),
        "samples": [url(path) for path in pictures.samples],
        "sd": url(pictures.sd),
        "top": f"{pictures.top:.3g}",
    }


def ask(session: Session, region: Region) -> tuple[str, str]:
    """(the answer in words, the histogram) for a pixel or region of the result at hand."""
    if session.result is None:
        raise NediffError("Restore an image first, with samples.")
    found = probe(session.result, region)
    return message(answer(found)), histogram(found)
