"""What the buttons of the restoring page do, for one session; no Gradio here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nediff.app.drawing import message, progress_bar
from nediff.app.models import Model, largest_sigma
from nediff.app.opening import Level, Opened, estimated_sigma, open_image, plus_minus
from nediff.app.pictures import save_noisy, save_pictures
from nediff.app.probing import Region, answer, histogram, probe, within
from nediff.app.restoring import Desk, Result, Settings, prepare, write_files
from nediff.app.sessions import Session
from nediff.app.work import Cancelled, Work
from nediff.data import StabilisedRange
from nediff.errors import NediffError

URL = "gradio_api/file="
UNSURE = 0.2
"""A relative error of σ above which the user is told."""
NO_IMAGE = "Drop an image first."
UNKNOWN = "How strong the noise is cannot be told from this image; please say it."
Json = dict[str, Any]


@dataclass(frozen=True)
class Arrived:
    """What an upload changes on the page."""

    words: str
    viewer: Json | None
    sigma: float | None
    """For the field; None empties it, for that of another image would be wrong."""
    page: int
    """Of the stack, from 1."""
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
    """Open an image and look at its noise; raises what is wrong with it.

    Whatever is still made of the image before is stopped.
    """
    session.drop()
    opened = open_image(file, page, model.range)
    restorer = model.restorer(opened)
    most = largest_sigma(restorer)
    known = model.estimable and model.needs_sigma
    found = estimated_sigma(opened, restorer) if known else None
    sigma = model.sigma
    if sigma is None and found is not None:
        sigma = _told(found, most)
    session.opened, session.told = opened, sigma
    session.too_narrow = model.white and found is not None and not found.white
    words = f"{opened.words}; intensity range {opened.range_chosen}. "
    words += _noise_words(opened, model, found, most)
    folder = session.new_folder()
    _, height, width = opened.values.shape
    viewer = _viewer(folder, opened, (height, width)) | {"noisy": url(save_noisy(opened, folder))}
    return Arrived(words, viewer, sigma, opened.page + 1, opened.pages)


def turn(session: Session, model: Model, page: int, sigma: float | None) -> Arrived:
    """Another page of the stack; a ``sigma`` of the field that the user typed stays there."""
    assert session.file is not None
    typed = sigma is not None and sigma != session.told
    new = arrive(session, model, session.file, page)
    return replace(new, sigma=sigma) if typed else new


def estimate(session: Session, model: Model) -> tuple[str, float]:
    """(words, σ) of the noise of the image at hand, at most what the model takes."""
    if session.opened is None:
        raise NediffError(NO_IMAGE)
    restorer = model.restorer(session.opened)
    found = estimated_sigma(session.opened, restorer)
    if found is None:
        raise NediffError(UNKNOWN)
    most = largest_sigma(restorer)
    kind = "white" if found.white else "correlated"
    words = f"σ = {plus_minus(found.value, found.error)} of the range; the noise looks {kind}."
    return words + _too_much(found, most), _told(found, most)


def _told(found: Level, most: float) -> float:
    return round(min(found.value, most), 5)


def _too_much(found: Level, most: float) -> str:
    return f" That is more than this model can take, {most:.3g}." if found.value > most else ""


def _noise_words(opened: Opened, model: Model, found: Level | None, most: float) -> str:
    if not model.needs_sigma:
        return "The noise is known by the signal, as the run was trained."
    if found is None:
        if model.estimable:
            return UNKNOWN
        known = "please say it" if model.sigma is None else "it is that of the training"
        return f"σ cannot be told from images of this kind; {known}."
    in_data = f"{found.value * opened.range.scale:.3g} in the data's units"
    data = f"σ = {plus_minus(found.value, found.error)} of the range ({in_data})"
    words = f"The noise of this image seems to have {data}."
    if found.error > UNSURE * found.value:
        words += " That is not sure: there may be no place in it without texture."
    if model.sigma is not None:
        words = f"The run was trained at σ = {model.sigma:.4g}. {words}"
    words += _too_much(found, most)
    if not found.white and model.white:
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
    """Start the work and show how it goes; errors and cancelling end in a sentence.

    The image may be replaced or cleared meanwhile: then nothing of it is shown any more.
    """
    opened = session.opened
    if opened is None:
        raise NediffError(NO_IMAGE)
    work = prepare(model, opened, settings, desk)
    session.begin(opened, work)
    work.start()
    yield Step(progress_bar(0, "starting"), files=[])
    try:
        for step in _steps(session, work):
            if not session.is_at(opened, work):
                break
            yield step
    except Exception:
        if session.is_at(opened, work):
            raise
    if session.work is not work:
        return  # the page shows another one, whose buttons these are
    if session.opened is not opened:
        work.cancel()
        yield Step("", running=False)


def _steps(session: Session, work: Work[Result]) -> Iterator[Step]:
    shown = False
    try:
        for update in work.updates():
            if update.done:
                assert update.result is not None
                yield _finished(session, work, update.result)
            elif update.result is not None and not shown:
                shown = True  # the estimate is there long before the samples
                yield Step(progress_bar(update.share, update.words), _shown(session, update.result))
            else:
                yield Step(progress_bar(update.share, update.words))
    except Cancelled:
        estimate = work.kept  # perhaps never shown: it may have come after the click
        if estimate is None:
            yield Step("", words=message("Cancelled."), running=False)
            return
        kept = replace(estimate, settings=replace(estimate.settings, samples=0))
        words = message("Cancelled; the restored image is kept, without samples.")
        yield replace(_finished(session, work, kept), words=words)


def _finished(session: Session, work: Work[Result], result: Result) -> Step:
    if not session.finish(result, work):
        return Step("", running=False)
    viewer = _shown(session, result)
    place = Path(viewer["folder"])
    files = [str(path) for path in write_files(result, place)]
    count = len(result.samples)
    words = f"Restored with {result.model}, {_noise_of(result)}; "
    if (sd := result.sd) is not None:
        typical = float(np.sqrt(np.square(sd, dtype=np.float64).mean()))
        words += f"{count} samples, typical uncertainty {typical:.3g} in the data's units. "
        words += "Click into a picture to ask how sure it is."
        if session.too_narrow:
            words += (
                " The noise of this image goes on from pixel to pixel, which this model does not "
                "know: its error bars are too narrow."
            )
    else:
        words += "draw two samples or more for error bars."
    return Step("", viewer, files, message(words), running=False)


def _noise_of(result: Result) -> str:
    r = result.opened.range
    if isinstance(r, StabilisedRange):
        return f"photon noise of gain {r.noise.gain:.4g}, read noise {r.noise.read_noise:.4g}"
    return f"σ = {result.sigma:.4g} of the range"


def _shown(session: Session, result: Result) -> Json:
    folder = session.new_folder()
    pictures = save_pictures(result, folder)
    session.shown = _viewer(folder, result.opened, result.restored.shape[-2:]) | {
        "folder": str(folder),
        "noisy": url(pictures.noisy),
        "restored": url(pictures.restored),
        "samples": [url(path) for path in pictures.samples],
        "sd": url(pictures.sd),
        "top": f"{pictures.top:.3g}",
    }
    return session.shown


def marked(session: Session, region: Region) -> Json | None:
    """What is shown, with a mark around the part of a region that lies in it; None if none does."""
    if session.result is None or session.shown is None:
        return None
    with suppress(NediffError):
        # the time: a region that is asked for again is marked again
        place = asdict(within(session.result, region)) | {"asked": time.monotonic()}
        return session.shown | {"mark": place}
    return None


def ask(session: Session, region: Region) -> tuple[str, str]:
    """(the answer in words, the histogram) for a pixel or region of the result at hand."""
    if session.result is None:
        raise NediffError("Restore an image first, with samples.")
    found = probe(session.result, region)
    return message(answer(found)), histogram(found)
