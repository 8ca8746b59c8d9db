"""The layout of the page, in Gradio; what it does is in the modules beside."""

# No `from __future__ import annotations`: Gradio looks at the types of `gr.Request` and
# `gr.EventData` of the functions it calls.

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import gradio as gr

from nediff.app import drawing, handlers
from nediff.app.complaint import complaint
from nediff.app.example import write_example
from nediff.app.models import Model
from nediff.app.probing import Region
from nediff.app.restoring import MOST_SAMPLES, Desk, Settings
from nediff.app.sessions import Session, Sessions
from nediff.app.training import Trainings
from nediff.app.training_page import training_tab
from nediff.errors import NediffError
from nediff.sampling import SamplerSettings

ENDINGS = [".tif", ".tiff", ".png", ".jpg", ".jpeg", ".webp", ".npy"]
SOLVERS = [
    ("dpm2m: one network call a step, the default", "dpm2m"),
    ("heun: two calls a step", "heun"),
    ("euler", "euler"),
    ("ancestral", "ancestral"),
    ("paper: Algorithm 1 as printed, with hardly any spread", "paper"),
]
Outputs = dict[Any, Any]


def static(name: str) -> str:
    """A file that comes with the page."""
    return (files("nediff.app") / "static" / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Visit:
    """What all visitors share, none of it changing: the model, the queue, the sessions."""

    model: Model
    sessions: Sessions
    desk: Desk

    def session(self, request: gr.Request) -> Session:
        """That of the page which asks."""
        return self.sessions.of(request.session_hash)


def build_page(
    model: Model, sessions: Sessions, trainings: Trainings | None, local: bool = False
) -> gr.Blocks:
    """The whole page; without ``trainings`` there is nothing to train on it.

    ``local`` if only this computer can reach it.
    """
    visit = Visit(model, sessions, Desk())
    with gr.Blocks(title="nediff", analytics_enabled=False, delete_cache=(600, 86400)) as page:
        gr.HTML(_heading(model, local), padding=False)
        if trainings is None:
            parts = _restoring(visit)
        else:
            with gr.Tab("Restore"):
                parts = _restoring(visit)
            with gr.Tab("Train"):
                training_tab(trainings)
        if model.sigma is None:  # an empty field is shown by Gradio as 0 until it is told again
            page.load(lambda: None, None, parts.sigma, show_progress="hidden")

        def leave(request: gr.Request) -> None:
            sessions.leave(request.session_hash)

        page.unload(leave)
    return page


def _heading(model: Model, local: bool) -> str:
    by = f"the run “{model.name}”" if model.run is not None else "the pretrained network"
    note = ""
    if model.run is None:
        note = (
            " It knows photographs with white Gaussian noise, and its error bars are about right "
            "on average over such; for your instrument, train on your own images."
        )
    where = "Images are sent to the computer that serves this page."
    if local:
        where = "Nothing leaves this computer."
    return (
        f'<header class="nediff-head"><h1>nediff</h1><p>Restored images with error bars, by {by}.'
        f"{note} {where}</p></header>"
    )


class _Restoring:
    """The components of the restoring page, made in the order of their focus."""

    def __init__(self, model: Model) -> None:
        with gr.Row(elem_classes="nediff-columns"):
            with gr.Column(scale=1, min_width=280):
                self._inputs(model)
            with gr.Column(scale=3, min_width=320):
                self.words = gr.HTML(elem_id="nediff-words", padding=False)
                self.progress = gr.HTML(elem_id="nediff-progress", padding=False)
                self.viewer = gr.HTML(
                    value=None,
                    html_template=static("viewer.html"),
                    css_template="",
                    js_on_load=static("viewer.js"),
                    elem_id="nediff-viewer",
                    padding=False,
                )
                self._probe()
                self.files = gr.File(
                    label="Results: TIFF in the data's units, with how they were made",
                    file_count="multiple",
                    interactive=False,
                    elem_id="nediff-files",
                    visible=False,
                )

    def _inputs(self, model: Model) -> None:
        self.file = gr.File(
            label="Noisy image (TIFF, PNG, JPEG …)",
            file_types=ENDINGS,
            type="filepath",
            elem_id="nediff-upload",
            height=150,
        )
        self.example = gr.Button("Try an example", size="sm", elem_id="nediff-example")
        self.page = gr.Number(
            1,
            label="Page of the stack",
            precision=0,
            minimum=1,
            visible=False,
            elem_id="nediff-page",
        )
        self.sigma = gr.Number(
            model.sigma,
            label="Noise level σ, as a fraction of the intensity range",
            info="Estimated from the image when you drop it" if model.sigma is None else None,
            minimum=0,
            step=0.001,
            visible=model.needs_sigma,
            elem_id="nediff-sigma",
        )
        self.estimate = gr.Button(
            "Estimate σ from the image",
            size="sm",
            visible=model.needs_sigma and model.estimable,
            elem_id="nediff-estimate",
        )
        self.samples = gr.Slider(
            0,
            MOST_SAMPLES,
            8,
            step=1,
            label="Posterior samples",
            info="More make the error bars finer and take longer; 0 only restores",
            elem_id="nediff-samples",
        )
        with gr.Accordion("How samples are drawn", open=False):
            self.solver = gr.Dropdown(SOLVERS, value="dpm2m", label="Solver")
            self.steps = gr.Slider(2, 100, SamplerSettings().steps, step=1, label="Steps")
            self.seed = gr.Number(0, label="Seed", precision=0, minimum=0)
        with gr.Row():
            self.start = gr.Button(
                "Restore", variant="primary", min_width=100, elem_id="nediff-restore"
            )
            self.cancel = gr.Button(
                "Cancel", interactive=False, min_width=100, elem_id="nediff-cancel"
            )

    def _probe(self) -> None:
        with gr.Column(visible=False, elem_classes="nediff-probing") as self.probing:
            gr.HTML('<h2 class="nediff-ask">How sure is this?</h2>', padding=False)
            self.answer = gr.HTML(
                drawing.message("Click into a picture, or say where."),
                elem_id="nediff-answer",
                padding=False,
            )
            self.histogram = gr.HTML(elem_id="nediff-histogram", padding=False)
            with gr.Row(elem_classes="nediff-where"):
                names = ("Row", "Column", "Height", "Width")
                self.where = [
                    gr.Number(k > 1, label=name, precision=0, minimum=k > 1, min_width=80)
                    for k, name in enumerate(names)
                ]
                self.ask = gr.Button("Ask", min_width=80, elem_id="nediff-ask-there")

    @property
    def emptied(self) -> Outputs:
        """When there is no result any more."""
        return {
            self.progress: "",
            self.probing: gr.update(visible=False),
            self.files: gr.update(value=None, visible=False),
            self.histogram: "",
            self.answer: drawing.message("Click into a picture, or say where."),
        }


def _restoring(visit: Visit) -> _Restoring:
    parts = _Restoring(visit.model)
    _wire_upload(parts, visit)
    _wire_restore(parts, visit)
    _wire_probe(parts, visit)
    return parts


def _wire_upload(parts: _Restoring, visit: Visit) -> None:
    changed = [parts.words, parts.viewer, parts.sigma, parts.page, parts.file]
    changed += list(parts.emptied)

    def arrive(look: Callable[[], handlers.Arrived]) -> Outputs:
        try:
            new = look()
        except Exception as error:
            return parts.emptied | {
                parts.words: drawing.message(complaint(error), bad=True),
                parts.viewer: None,
            }
        stack = gr.update(visible=new.pages > 1, maximum=new.pages, value=new.page)
        out = {parts.words: drawing.message(new.words), parts.viewer: new.viewer, parts.page: stack}
        return parts.emptied | out | {parts.sigma: new.sigma}

    def upload(path: str | None, request: gr.Request) -> Outputs:
        session = visit.session(request)
        if path is None:
            return {parts.words: gr.skip()}
        return arrive(lambda: handlers.arrive(session, visit.model, session.keep(Path(path))))

    def example(request: gr.Request) -> Outputs:
        session, run = visit.session(request), visit.model.run

        def look() -> handlers.Arrived:
            grey = run is not None and run.problem.channels == 1
            session.file = write_example(session.folder, grey)
            return handlers.arrive(session, visit.model, session.file)

        return {parts.file: None} | arrive(look)

    def turn(page: float | None, sigma: float | None, request: gr.Request) -> Outputs:
        session = visit.session(request)
        if session.file is None or page is None:
            return {parts.words: gr.skip()}
        number = int(page) - 1
        return arrive(lambda: handlers.turn(session, visit.model, number, sigma))

    def clear(request: gr.Request) -> Outputs:
        session = visit.session(request)
        session.drop()
        session.file = None
        return parts.emptied | {parts.words: "", parts.viewer: None}

    light: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": 4}
    parts.file.upload(upload, parts.file, changed, **light)
    parts.file.clear(clear, None, changed, **light)
    parts.example.click(example, None, changed, **light)
    parts.page.input(turn, [parts.page, parts.sigma], changed, **light)
    parts.estimate.click(_estimator(visit), None, [parts.words, parts.sigma], **light)


def _estimator(visit: Visit) -> Callable[..., tuple[Any, Any]]:
    def estimate(request: gr.Request) -> tuple[Any, Any]:
        try:
            words, sigma = handlers.estimate(visit.session(request), visit.model)
        except Exception as error:
            return drawing.message(complaint(error), bad=True), gr.skip()
        return drawing.message(words), sigma

    return estimate


def _wire_restore(parts: _Restoring, visit: Visit) -> None:
    chosen = [parts.sigma, parts.samples, parts.solver, parts.steps, parts.seed]
    changed = [parts.words, parts.viewer, parts.start, parts.cancel, *parts.emptied]

    def buttons(running: bool) -> Outputs:
        return {
            parts.start: gr.update(interactive=not running),
            parts.cancel: gr.update(interactive=running),
        }

    def restore(
        sigma: float | None,
        samples: float,
        solver: str,
        steps: float,
        seed: float | None,
        request: gr.Request,
    ) -> Iterator[Outputs]:
        session, model = visit.session(request), visit.model
        try:
            if session.opened is None:
                raise NediffError(handlers.NO_IMAGE)
            if model.needs_sigma and not sigma:
                raise NediffError("Say how strong the noise is: σ, between 0 and 1.")
            given = None if sigma is None or not model.needs_sigma else float(sigma)
            settings = Settings(given, int(samples), solver, int(steps), int(seed or 0))
            for step in handlers.restore(session, model, visit.desk, settings):
                visit.session(request)  # somebody watches: what was left is not to be swept
                yield _step_shown(parts, step) | buttons(step.running)
        except Exception as error:  # whatever it is, the buttons must be of use again
            words = drawing.message(complaint(error), bad=True)
            yield {parts.words: words, parts.progress: ""} | buttons(False)

    def cancel(request: gr.Request) -> Outputs:
        """Also after a connection was lost, when nobody hears that the work has ended."""
        visit.session(request).cancel()
        return buttons(False)

    hidden: dict[str, Any] = {"show_progress": "hidden"}
    parts.start.click(restore, chosen, changed, concurrency_limit=None, **hidden)
    stopped = [parts.start, parts.cancel]
    parts.cancel.click(cancel, None, stopped, concurrency_limit=None, queue=False, **hidden)


def _step_shown(parts: _Restoring, step: handlers.Step) -> Outputs:
    out: Outputs = {parts.progress: step.progress}
    if step.viewer is not None:
        out[parts.viewer] = step.viewer
    if step.words is not None:
        out[parts.words] = step.words
    if step.files is not None:
        out[parts.files] = gr.update(value=step.files or None, visible=bool(step.files))
        sampled = any(name.endswith("-sd.tif") for name in step.files)
        out[parts.probing] = gr.update(visible=sampled)
        out[parts.histogram] = ""
        out[parts.answer] = drawing.message("Click into a picture, or say where.")
    return out


def _wire_probe(parts: _Restoring, visit: Visit) -> None:
    changed = [parts.answer, parts.histogram, *parts.where, parts.viewer]

    def ask(region: Region, request: gr.Request) -> Outputs:
        try:
            words, picture = handlers.ask(visit.session(request), region)
        except Exception as error:
            return {parts.answer: drawing.message(complaint(error), bad=True), parts.histogram: ""}
        return {parts.answer: words, parts.histogram: picture}

    def clicked(event: gr.EventData, request: gr.Request) -> Outputs:
        place = [int(event._data[key]) for key in ("top", "left", "height", "width")]
        return ask(Region(*place), request) | dict(zip(parts.where, place, strict=True))

    def typed(top: float, left: float, height: float, width: float, request: gr.Request) -> Outputs:
        place = [int(v or 0) for v in (top, left, height, width)]
        region = Region(place[0], place[1], max(place[2], 1), max(place[3], 1))
        viewer = handlers.marked(visit.session(request), region)
        return ask(region, request) | ({} if viewer is None else {parts.viewer: viewer})

    light: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None}
    parts.viewer.probe(clicked, None, changed, **light)
    parts.ask.click(typed, parts.where, changed, **light)
