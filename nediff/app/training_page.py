"""The training page: point at a folder, read the diagnosis, start, watch, stop, resume."""

import math
from typing import Any

import gradio as gr

from nediff.app import drawing
from nediff.app.complaint import complaint
from nediff.app.training import KINDS, Kind, Look, State, Trainings, look, preview
from nediff.errors import NediffError
from nediff.losses import decibels_in_words

Outputs = dict[Any, Any]
SECONDS = 3.0
"""Between two looks at a run."""


class _Training:
    """The components, in the order of their focus."""

    def __init__(self) -> None:
        with gr.Row(elem_classes="nediff-columns"):
            with gr.Column(scale=1, min_width=280):
                self.source = gr.Textbox(
                    label="Folder of noisy images",
                    info="On this computer; a pattern such as images/*.tif will do, too",
                    elem_id="nediff-source",
                    lines=1,
                )
                self.look = gr.Button("Look at the images", elem_id="nediff-look")
                self.noise = gr.Radio(KINDS, value="found", label="Noise", elem_id="nediff-noise")
                self.out = gr.Textbox(
                    "runs/restorer", label="Folder for the run", elem_id="nediff-out", lines=1
                )
                self.minutes = gr.Number(
                    20, label="Minutes", minimum=0.1, step=1, elem_id="nediff-minutes"
                )
                with gr.Row():
                    self.start = gr.Button(
                        "Train", variant="primary", min_width=80, elem_id="nediff-train"
                    )
                    self.stop = gr.Button("Stop", min_width=80, elem_id="nediff-stop")
                    self.resume = gr.Button("Resume", min_width=80, elem_id="nediff-resume")
                gr.HTML(
                    '<p class="nediff-note">A training goes on when this page is closed: name its '
                    "folder to see it again. It is stopped and saved when the app ends.</p>",
                    padding=False,
                )
            with gr.Column(scale=3, min_width=320):
                self.words = gr.HTML(elem_id="nediff-train-words", padding=False)
                self.progress = gr.HTML(elem_id="nediff-train-progress", padding=False)
                self.previews = gr.HTML(elem_id="nediff-previews", padding=False)
                self.curve = gr.HTML(elem_id="nediff-curve", padding=False)
                self.found = gr.HTML(elem_id="nediff-found", padding=False)
        self.known = gr.State(None)
        self.first = gr.State(None)
        self.seen = gr.State(None)
        self.timer = gr.Timer(SECONDS, active=False)


def training_tab(trainings: Trainings) -> None:
    """Lay it out and wire it."""
    parts = _Training()
    _wire_look(parts)
    _wire_buttons(parts, trainings)
    _wire_watch(parts, trainings)


def _bad(parts: _Training, error: Exception) -> Outputs:
    return {parts.words: drawing.message(complaint(error), bad=True)}


def _wire_look(parts: _Training) -> None:
    def looked(source: str, out: str, minutes: float | None, noise: Kind) -> Outputs:
        try:
            found = look(source)
        except Exception as error:
            return _bad(parts, error) | {parts.found: "", parts.known: None}
        shown = drawing.diagnosis(found, found.command(out, minutes, noise))
        words = drawing.message(found.words)
        return {parts.words: words, parts.found: shown, parts.known: found}

    def chosen(known: Look | None, out: str, minutes: float | None, noise: Kind) -> str:
        return "" if known is None else drawing.diagnosis(known, known.command(out, minutes, noise))

    changed = [parts.words, parts.found, parts.known]
    settings = [parts.source, parts.out, parts.minutes, parts.noise]
    for asked in (parts.look.click, parts.source.submit):
        asked(looked, settings, changed, show_progress="minimal", concurrency_limit=2)
    settings = [parts.known, *settings[1:]]
    parts.noise.input(chosen, settings, parts.found, show_progress="hidden")


def _wire_buttons(parts: _Training, trainings: Trainings) -> None:
    changed = [parts.words, parts.timer, parts.first, parts.seen, parts.progress, parts.found]
    changed += [parts.known, parts.previews, parts.curve]
    begun = {parts.timer: gr.Timer(active=True), parts.first: None, parts.seen: None}
    begun |= {parts.previews: "", parts.curve: ""}

    def start(
        source: str, out: str, minutes: float | None, noise: Kind, known: Look | None
    ) -> Outputs:
        try:
            if known is None or known.source != source.strip():
                known = look(source)
            typed = known.command(out, minutes, noise)
            shown: Outputs = {parts.found: drawing.diagnosis(known, typed), parts.known: known}
            trainings.start(known.source, out, minutes or 0.0, known.options(noise))
        except Exception as error:
            return _bad(parts, error)
        bar = drawing.progress_bar(0, "starting: measuring how fast this computer is")
        return shown | begun | {parts.words: "", parts.progress: bar}

    def resume(source: str, out: str) -> Outputs:
        try:
            trainings.resume(source.strip(), out)
        except Exception as error:
            return _bad(parts, error)
        return begun | {parts.words: drawing.message("Going on where it was.")}

    def stop(out: str) -> Outputs:
        try:
            stopped = trainings.stop(out)
        except Exception as error:
            return _bad(parts, error)
        words = "No training of this page is under way there."
        if stopped:
            words = "Stopping: it finishes the step at hand and saves."
        return {parts.words: drawing.message(words)}

    settings = [parts.source, parts.out, parts.minutes, parts.noise, parts.known]
    parts.start.click(start, settings, changed, show_progress="minimal", concurrency_limit=2)
    parts.resume.click(resume, [parts.source, parts.out], changed, show_progress="hidden")
    parts.stop.click(stop, parts.out, parts.words, show_progress="hidden")


def _wire_watch(parts: _Training, trainings: Trainings) -> None:
    changed = [parts.progress, parts.curve, parts.previews, parts.words, parts.timer]
    changed += [parts.first, parts.seen]

    def watch(source: str, out: str, first: Any, seen: int | None) -> Outputs:
        try:
            state = trainings.state(out)
        except Exception as error:
            return _bad(parts, error) | {parts.timer: gr.Timer(active=False)}
        if state is None:
            none = drawing.message("There is no run in that folder yet.")
            return {parts.timer: gr.Timer(active=False), parts.words: none}
        shown: Outputs = {parts.progress: _bar(state)}
        if state.step != seen:
            shown[parts.curve], shown[parts.seen] = drawing.curve(state), state.step
            shown |= _pictures(parts, source, out, first, state)
        if not state.running:
            shown |= {parts.timer: gr.Timer(active=False), parts.words: _ending(state, out)}
        return shown

    def begin_to_watch(source: str, out: str) -> Outputs:
        return {parts.timer: gr.Timer(active=True)} | watch(source, out, None, None)

    inputs = [parts.source, parts.out, parts.first, parts.seen]
    parts.timer.tick(watch, inputs, changed, show_progress="hidden", concurrency_limit=4)
    # a run that is under way there, begun before the page was opened or by a terminal
    parts.out.submit(
        begin_to_watch, inputs[:2], changed, show_progress="hidden", concurrency_limit=4
    )


def _pictures(parts: _Training, source: str, out: str, first: Any, state: State) -> Outputs:
    """The square as it was measured, as first restored, and as it is restored now."""
    if not source.strip():
        return {}  # a run of which only the folder was named
    try:
        pair = preview(source.strip(), out)
    except (NediffError, OSError):
        return {}  # files may be on their way
    if pair is None:
        return {}
    noisy, restored = pair
    first = first or (state.step, restored)
    images = [("noisy", noisy), (f"restored after {first[0]} steps", first[1])]
    if state.step > first[0]:
        images.append((f"restored after {state.step} steps", restored))
    return {parts.previews: drawing.previews(images), parts.first: first}


def _bar(state: State) -> str:
    """None once it has ended: the words below say where, more exactly."""
    if not state.running:
        return ""
    if not state.steps:
        return drawing.progress_bar(0, state.words or "starting")
    if not state.rows:
        first = f"how far it is shows at the first check, after step {state.every}"
        return drawing.progress_bar(0, f"training, {state.steps} steps; {first}")
    _, seconds, psnr = state.rows[-1]
    left = seconds / max(state.step, 1) * (state.steps - state.about)
    time = "less than a minute" if left < 60 else f"about {math.ceil(left / 60)} minutes"
    judged = f"held-out images about {decibels_in_words(psnr)}"
    words = f"about step {state.about} of {state.steps}, {judged}"
    return drawing.progress_bar(state.about / state.steps, f"{words}, {time} left")


def _ending(state: State, out: str) -> str:
    if state.failed and "nediff:" not in state.words:
        said = state.words or "it wrote nothing"
        if state.exit_code is not None and state.exit_code < 0:  # no error of its own was written
            said = f"the system ended it (signal {-state.exit_code}); before, it wrote: {said}"
        return drawing.message(f"The training failed: {said}", bad=True)
    if state.finished:
        return drawing.message(f"Done. Use it with: nediff app {out}")
    if "nediff:" in state.words:
        return drawing.message(state.words.removeprefix("nediff:").strip(), bad=True)
    if not state.steps:
        return drawing.message("Stopped before the training had begun; there is nothing to resume.")
    if state.words.startswith("stopped after"):  # which knows the very step
        words = state.words.partition(";")[0]
        return drawing.message(f"{words[0].upper()}{words[1:]}; “Resume” goes on.")
    return drawing.message(f"Stopped after step {state.step}; “Resume” goes on.")
