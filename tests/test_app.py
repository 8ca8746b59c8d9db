"""The web page without a browser: opening, working, cancelling, probing, files, sessions."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tifffile
import torch

from nediff.app.drawing import curve, diagnosis, message, progress_bar
from nediff.app.example import write_example
from nediff.app.handlers import Step, arrive, ask, estimate, marked, restore, turn
from nediff.app.models import Model, open_model
from nediff.app.opening import Level, estimated_sigma, open_image
from nediff.app.pictures import save_pictures, shown_range
from nediff.app.probing import Probe, Region, answer, histogram, probe
from nediff.app.restoring import (
    Desk,
    Result,
    Settings,
    metadata_of,
    prepare,
    write_files,
)
from nediff.app.serve import serving
from nediff.app.sessions import Sessions
from nediff.app.training import Look, State, Trainings, look
from nediff.app.work import Cancelled, Work
from nediff.data import (
    PhotonNoise,
    StabilisedRange,
    claimed,
    list_files,
    open_measurements,
    read_about,
)
from nediff.errors import NediffError
from nediff.keeping import read_tensors
from nediff.losses import NO_ERROR
from nediff.problem import Problem
from nediff.restorer import Restorer
from nediff.training.fitting import Plan, plan_run
from nediff.training.state import STATE_FILE

SIGMA = 0.1


def small_restorer(channels: int = 1) -> Restorer:
    """Untrained, which is enough to see what the page does with it."""
    from nediff.networks import build_denoiser

    y = np.random.default_rng(0).random((2, channels, 40, 40), np.float32)
    data = open_measurements(y, axes="NCHW", range=(0, 1)).simulate(SIGMA, 0)
    problem = Problem.denoising(SIGMA, channels)
    config = plan_run(data, problem, Plan(steps=1, size="tiny"), "noise")
    return Restorer(problem, build_denoiser(config.network), config)


@pytest.fixture
def model() -> Model:
    return Model("small", small_restorer())


@pytest.fixture
def noisy(tmp_path: Path) -> Path:
    """A 16-bit TIFF of 12-bit counts: a smooth picture with noise of σ = 60."""
    rng = np.random.default_rng(1)
    rows, columns = np.mgrid[:96, :80]
    clean = 1500 + 900 * np.sin(rows / 17) * np.cos(columns / 23)
    values = clean + 60 * rng.standard_normal(clean.shape)
    path = tmp_path / "counts.tif"
    tifffile.imwrite(path, np.clip(values, 0, 4095).astype(np.uint16))
    return path


def finish(work: Work[Result]) -> Result:
    *_, last = work.start().updates()
    assert last.result is not None
    return last.result


# --- opening --------------------------------------------------------------------------------------


def test_an_uploaded_image_has_its_own_range_and_its_noise_is_found(noisy: Path) -> None:
    opened = open_image(noisy)
    assert opened.values.dtype == np.uint16
    assert opened.unit.shape == (1, 96, 80)
    found = estimated_sigma(opened)
    assert found is not None
    # 7680 pixels tell σ to 1/√(2·7680) = 0.8 %; blocks use a part of them, so ten times that
    assert found.value * opened.range.scale == pytest.approx(60, rel=0.1)


def test_what_is_wrong_with_a_file_is_said_with_its_name_alone(tmp_path: Path) -> None:
    bad = {
        "text.png": b"this is no picture",
        "cut.tif": b"II*\x00\x08\x00\x00\x00",
        "what.xyz": b"",
    }
    for name, contents in bad.items():
        path = tmp_path / name
        path.write_bytes(contents)
        with pytest.raises(NediffError) as caught:
            open_image(path)
        assert name in str(caught.value)
        assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.full((40, 40), 7, np.uint8), "same value"),
        (np.zeros((4, 400), np.float32), "too small"),
        (np.where(np.eye(40) > 0, np.nan, 1.0).astype(np.float32), "finite"),
    ],
)
def test_images_that_make_no_sense_are_refused(
    tmp_path: Path, values: np.ndarray, words: str
) -> None:
    tifffile.imwrite(tmp_path / "image.tif", values)
    with pytest.raises(NediffError, match=words):
        open_image(tmp_path / "image.tif")


def test_pages_of_a_stack_are_opened_one_by_one(tmp_path: Path) -> None:
    stack = np.random.default_rng(0).integers(0, 255, (5, 32, 48), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "stack.tif", stack)
    opened = open_image(tmp_path / "stack.tif", 3)
    assert opened.pages == 5
    np.testing.assert_array_equal(opened.values[0], stack[3])


def test_correlated_noise_is_told_from_white(tmp_path: Path) -> None:
    """Averaged over 2 × 2 neighbours, white noise of σ = 40 has σ = 20 and is not white."""
    noise = 40 * np.random.default_rng(0).standard_normal((193, 193))
    spread = (noise[1:, 1:] + noise[:-1, 1:] + noise[1:, :-1] + noise[:-1, :-1]) / 4
    for name, values, white in (("white.tif", noise, True), ("smooth.tif", spread, False)):
        tifffile.imwrite(tmp_path / name, (values + 1000).astype(np.float32))
        opened = open_image(tmp_path / name)
        found = estimated_sigma(opened)
        assert found is not None
        assert found.white is white
        assert found.value * opened.range.scale == pytest.approx(values.std(), rel=0.15)


# --- restoring ------------------------------------------------------------------------------------


def test_the_page_restores_as_the_restorer_does(noisy: Path) -> None:
    restorer = small_restorer()
    model = Model("small", restorer)
    opened = open_image(noisy, range=restorer.range)
    settings = Settings(0.05, samples=3, steps=4, seed=5)
    result = finish(prepare(model, opened, settings, Desk()))
    expected = restorer.range.from_unit(restorer.restore(opened.unit, 0.05))
    np.testing.assert_allclose(result.restored, expected, rtol=1e-5)
    drawn = restorer.sample(opened.unit, 3, 5, 0.05, settings.sampler)
    np.testing.assert_allclose(result.samples, restorer.range.from_unit(drawn), rtol=1e-5)
    assert result.sd is not None
    exact = result.samples.astype(np.float64).std(0, ddof=1)
    np.testing.assert_allclose(result.sd, exact, rtol=1e-5)


def test_large_images_tell_how_far_they_are(model: Model) -> None:
    """Tiles of all passes are counted: progress rises to its total, and reaches it."""
    restorer = model.run
    assert restorer is not None
    restorer.tiled_from, restorer.tile = 0, 32
    seen: list[tuple[int, int]] = []
    y = np.random.default_rng(0).random((1, 64, 64), np.float32)
    restorer.sample(y, 2, progress=lambda done, total: seen.append((done, total)))
    done = [d for d, _ in seen]
    assert done == sorted(done)
    assert len({total for _, total in seen}) == 1
    assert done[-1] == seen[0][1] == len(done)


def test_wrong_settings_are_refused_before_any_work(model: Model, noisy: Path) -> None:
    opened = open_image(noisy)
    for settings in (Settings(0.0), Settings(3.0), Settings(0.1, samples=999)):
        with pytest.raises(NediffError):
            prepare(model, opened, settings, Desk())


def test_cancelling_stops_the_sampler_within_a_step(model: Model, noisy: Path) -> None:
    work = prepare(model, open_image(noisy), Settings(0.1, samples=64, steps=1000), Desk()).start()
    for update in work.updates():
        if update.result is not None:  # the estimate is there, samples are being drawn
            work.cancel()
            break
    with pytest.raises(Cancelled):
        list(work.updates())
    work.wait()
    assert work.share < 0.5


def test_one_image_at_a_time_and_the_queue_can_be_left(model: Model, noisy: Path) -> None:
    desk, opened = Desk(), open_image(noisy)
    first = prepare(model, opened, Settings(0.1, samples=64, steps=1000), desk).start()
    next(u for u in first.updates() if u.result is not None)
    second = prepare(model, opened, Settings(0.1, samples=2), desk).start()
    waiting = next(u for u in second.updates() if u.words.startswith("waiting"))
    assert waiting.share == 0
    second.cancel()
    with pytest.raises(Cancelled):
        list(second.updates())
    first.cancel()
    first.wait()
    assert len(finish(prepare(model, opened, Settings(0.1, samples=2), desk)).samples) == 2


def test_an_error_in_the_thread_reaches_who_watches() -> None:
    def fail(work: Work[int]) -> int:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        list(Work(fail).start().updates())


# --- files ----------------------------------------------------------------------------------------


def test_results_are_tiff_in_data_units_that_say_how_they_were_made(
    model: Model, noisy: Path, tmp_path: Path
) -> None:
    result = finish(prepare(model, open_image(noisy), Settings(0.05, 3, steps=3, seed=9), Desk()))
    files = {path.name: path for path in write_files(result, tmp_path / "out")}
    names = {f"counts-{what}.tif" for what in ("restored", "mean", "sd", "samples")}
    assert set(files) == names
    assert tifffile.imread(files["counts-restored.tif"]).dtype == np.uint16
    np.testing.assert_array_equal(
        tifffile.imread(files["counts-samples.tif"]), result.samples[:, 0]
    )
    about = read_about(files["counts-sd.tif"])
    assert about["sigma_of_range"] == 0.05
    assert about["seed"] == 9
    assert about["source"] == "counts.tif"
    assert about["holds"] == "sd"
    # our own reader takes them back, as pages of a stack
    assert list_files([files["counts-samples.tif"]])[0].n_images == 3


def test_pages_of_a_stack_are_counted_from_one_and_have_files_of_their_own(
    model: Model, tmp_path: Path
) -> None:
    stack = np.random.default_rng(0).integers(0, 255, (12, 32, 48), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "stack.tif", stack)
    session = Sessions(tmp_path).of("a")
    names = set()
    for page, number in ((0, 1), (4, 5), (99, 12)):  # beyond the last is the last
        new = arrive(session, model, tmp_path / "stack.tif", page)
        assert (new.page, new.pages) == (number, 12)
        assert f"page {number} of 12" in new.words
        *_, last = restore(session, model, Desk(), Settings(0.1, 0))
        (file,) = last.files or []
        about = read_about(Path(file))
        assert (about["page"], about["pages"]) == (number, 12)
        names.add(Path(file).name)
    assert names == {f"stack-page{number}-restored.tif" for number in ("01", "05", "12")}


def test_pictures_share_one_scale(model: Model, noisy: Path, tmp_path: Path) -> None:
    from PIL import Image

    result = finish(prepare(model, open_image(noisy), Settings(0.05, 2, steps=3), Desk()))
    pictures = save_pictures(result, tmp_path)
    shown = pictures.shown
    unit = np.clip((result.samples[1, 0] - shown.black) / (shown.white - shown.black), 0, 1)
    np.testing.assert_allclose(np.asarray(Image.open(pictures.samples[1])), 255 * unit, atol=0.51)
    assert pictures.sd is not None


def test_dark_images_are_shown_bright() -> None:
    dark = np.random.default_rng(0).normal(300, 20, (1, 64, 64))
    shown = shown_range(dark, 0, 65535)
    assert 200 < shown.black < shown.white < 400
    assert shown_range(np.array([[[0.0, 60000.0]]]), 0, 65535).white == 65535


# --- probing --------------------------------------------------------------------------------------


def made_result(samples: np.ndarray, path: Path) -> Result:
    """Of given samples (n, 1, H, W), in 0 to 255."""
    noisy = np.zeros(samples.shape[1:], np.float32)
    tifffile.imwrite(path, np.random.default_rng(0).integers(0, 255, (40, 40), dtype=np.uint8))
    opened = open_image(path)
    settings = Settings(0.1, len(samples))
    return Result(opened, settings, 0.1, "made", noisy, samples.mean(0), samples)


def test_intervals_hold_one_more_sample_as_often_as_promised(tmp_path: Path) -> None:
    """The truth is like one more sample: of N pixels, coverage ± 4 √(p(1−p)/N)."""
    rng = np.random.default_rng(0)
    for n in (4, 8, 40):
        drawn = rng.normal(100, 10, (n + 1, 1, 24, 24)).astype(np.float32)
        result = made_result(drawn[:n], tmp_path / f"{n}.tif")
        held, total = 0, 24 * 24
        for row in range(24):
            for column in range(24):
                found = probe(result, Region(row, column))
                low, high = found.interval
                held += bool(low <= drawn[n, 0, row, column] <= high)
        promised = found.coverage
        assert held / total == pytest.approx(
            promised, abs=4 * np.sqrt(promised * (1 - promised) / total)
        )
    assert promised == pytest.approx(0.9, abs=0.01)


def test_the_mean_of_a_region_is_surer_than_a_pixel(tmp_path: Path) -> None:
    """Of independent pixels by √(number): 10/√100 = 1, with 64 samples to 1/√126 = 9 %."""
    drawn = np.random.default_rng(1).normal(100, 10, (64, 1, 24, 24)).astype(np.float32)
    result = made_result(drawn, tmp_path / "image.tif")
    found = probe(result, Region(3, 4, 10, 10))
    assert found.sd == pytest.approx(1.0, rel=4 * 0.09)
    assert "rows 3 to 12, columns 4 to 13" in answer(found)
    assert found.noise == pytest.approx(0.1 * result.opened.range.scale / 10)


def test_photon_noise_is_told_in_the_units_of_the_data(tmp_path: Path) -> None:
    """var(y) = gain · (x − offset) + read²: of a mean, that of its pixels over their number."""
    drawn = np.random.default_rng(1).normal(100, 10, (8, 1, 24, 24)).astype(np.float32)
    drawn[:, :, :, 12:] += 300
    plain = made_result(drawn, tmp_path / "image.tif")
    photons = StabilisedRange(0.0, 500.0, PhotonNoise(gain=2.0, read_noise=3.0, offset=50.0))
    opened = replace(plain.opened, range=photons)
    result = replace(plain, opened=opened, sigma=photons.sigma)
    for region in (Region(2, 3), Region(2, 20), Region(4, 8, 10, 8)):
        x = result.restored[0, region.top :, region.left :][: region.height, : region.width]
        exact = 2.0 * (x.astype(np.float64) - 50) + 9
        expected = np.sqrt(exact.mean() / exact.size)
        assert probe(result, region).noise == pytest.approx(expected, rel=1e-5)
    about = metadata_of(result)
    assert (about["gain"], about["read_noise"], about["offset"]) == (2.0, 3.0, 50.0)
    assert "sigma_in_data_units" not in about
    assert "sigma_of_range" not in about
    assert metadata_of(plain)["sigma_in_data_units"] == pytest.approx(0.1 * 255)


def test_of_correlated_noise_the_mean_of_a_region_is_not_compared(tmp_path: Path) -> None:
    drawn = np.random.default_rng(1).normal(100, 1, (8, 1, 24, 24)).astype(np.float32)
    white = made_result(drawn, tmp_path / "image.tif")
    coloured = replace(white, white=False)
    for region, compared in ((Region(3, 3), True), (Region(3, 3, 5, 5), False)):
        assert "times as much doubt" in answer(probe(white, region))
        assert ("times as much doubt" in answer(probe(coloured, region))) is compared


def test_few_samples_are_said_to_be_few_and_are_not_compared(tmp_path: Path) -> None:
    """The very same pixel: from eight samples on the measurement's noise is compared with them."""
    drawn = np.random.default_rng(1).normal(100, 1, (8, 1, 24, 24)).astype(np.float32)
    for count in (2, 3, 7, 8):
        result = made_result(drawn[:count], tmp_path / "image.tif")
        words = answer(probe(result, Region(3, 3)))
        assert ("draw more" in words) is (count < 8)
        assert ("as much doubt" in words) is (count == 8)


def test_a_restored_value_outside_of_the_interval_is_said_to_be() -> None:
    values = np.array([1.0, 2.0, 2.0, 5.0])
    for restored, outside in ((2.4, False), (0.5, True), (5.5, True)):
        words = answer(Probe(Region(0, 0), 3.0, restored, values, 1.0, 10.0))
        assert ("The restored value lies outside of that." in words) is outside


def test_regions_are_cut_at_the_border_and_refused_outside(tmp_path: Path) -> None:
    drawn = np.random.default_rng(1).normal(100, 10, (8, 1, 24, 24)).astype(np.float32)
    result = made_result(drawn, tmp_path / "image.tif")
    assert probe(result, Region(20, 20, 50, 50)).region == Region(20, 20, 4, 4)
    with pytest.raises(NediffError, match="outside"):
        probe(result, Region(24, 0))
    with pytest.raises(NediffError, match="at least two"):
        probe(made_result(drawn[:1], tmp_path / "one.tif"), Region(0, 0))


def test_the_histogram_has_a_dot_for_each_sample_and_a_text_for_who_cannot_see_it() -> None:
    values = np.array([1.0, 2.0, 2.0, 5.0])
    drawing = histogram(Probe(Region(0, 0), 3.0, 2.4, values, 1.0, 10.0))
    assert drawing.count("<circle") == 4
    assert 'role="img"' in drawing
    assert "give or take" in drawing
    assert histogram(Probe(Region(0, 0), np.nan, 2.0, np.full(3, 2.0), 1.0, 10.0))


# --- the handlers and sessions --------------------------------------------------------------------


def test_a_visit_from_upload_to_answer(model: Model, noisy: Path, tmp_path: Path) -> None:
    session = Sessions(tmp_path).of("a")
    new = arrive(session, model, session.keep(noisy))
    assert new.viewer is not None
    assert new.sigma == SIGMA
    steps = list(restore(session, model, Desk(), Settings(0.1, 3, steps=3)))
    assert all(step.running for step in steps[:-1])
    last = steps[-1]
    assert last.viewer is not None
    assert len(last.viewer["samples"]) == 3
    assert all(Path(name).is_file() for name in last.files or [])
    words, picture = ask(session, Region(10, 10))
    assert "row 10, column 10" in words
    shown = marked(session, Region(10, 10, 1000, 3))
    assert shown is not None
    assert {k: v for k, v in shown.items() if k != "mark"} == last.viewer
    mark = (shown["mark"][k] for k in ("top", "left", "height", "width"))
    assert tuple(mark) == (10, 10, last.viewer["height"] - 10, 3)
    assert marked(session, Region(1000, 0)) is None
    assert picture.startswith("<svg")


@pytest.mark.parametrize("white", [True, False])
def test_error_bars_that_will_be_too_narrow_are_said_to_be_when_they_are_there(
    model: Model, noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, white: bool
) -> None:
    """The words on the image's noise are gone by then."""
    found = Level(0.1, 0.001, white)
    monkeypatch.setattr("nediff.app.handlers.estimated_sigma", lambda *_: found)
    session = Sessions(tmp_path).of("a")
    new = arrive(session, model, session.keep(noisy))
    assert ("too narrow" in new.words) is not white
    *_, last = restore(session, model, Desk(), Settings(0.1, 2, steps=3))
    assert ("error bars are too narrow" in (last.words or "")) is not white
    *_, last = restore(session, model, Desk(), Settings(0.1, 0, steps=3))
    assert "too narrow" not in (last.words or "")


def test_a_cancelled_visit_keeps_the_estimate(model: Model, noisy: Path, tmp_path: Path) -> None:
    session = Sessions(tmp_path).of("a")
    arrive(session, model, session.keep(noisy))
    steps: Iterator[Step] = restore(session, model, Desk(), Settings(0.1, 64, steps=1000))
    for step in steps:
        last = step
        if step.viewer is not None:
            session.cancel()
    assert not last.running
    assert "Cancelled" in (last.words or "")
    assert [Path(name).name for name in last.files or []] == ["counts-restored.tif"]
    with pytest.raises(NediffError, match="samples"):
        ask(session, Region(0, 0))


def test_no_sigma_is_left_over_from_another_image(noisy: Path, tmp_path: Path) -> None:
    """Two flat halves have no noise to tell: the field becomes empty, nothing is restored so."""
    gradio = pytest.importorskip("gradio")
    from nediff.app.page import build_page

    halves = np.repeat(np.array([[20, 200]], np.uint8), 32, axis=1).repeat(64, axis=0)
    tifffile.imwrite(tmp_path / "flat.tif", halves)
    sessions = Sessions(tmp_path)
    page = build_page(open_model(None), sessions, None)
    upload = handler(page, "upload")
    (sigma,) = (b for b in page.blocks.values() if getattr(b, "elem_id", "") == "nediff-sigma")
    assert isinstance(sigma, gradio.Number)
    request = SimpleNamespace(session_hash="a")
    assert upload(str(noisy), request)[sigma] > 0
    shown = upload(str(tmp_path / "flat.tif"), request)
    assert sigma in shown
    assert shown[sigma] is None


def test_turning_a_page_keeps_what_the_user_typed(tmp_path: Path) -> None:
    rng, model = np.random.default_rng(0), open_model(None)
    stack = 1000 + np.stack([rng.normal(0, s, (96, 96)) for s in (20, 40, 20, 40, 20)])
    tifffile.imwrite(tmp_path / "stack.tif", stack.astype(np.float32))
    session = Sessions(tmp_path).of("a")
    first = arrive(session, model, session.keep(tmp_path / "stack.tif"))
    second = turn(session, model, 1, first.sigma)
    assert second.sigma is not None
    assert second.sigma != first.sigma
    assert turn(session, model, 0, 0.123).sigma == 0.123
    assert turn(session, model, 1, 0.123).sigma == 0.123
    assert turn(session, model, 0, None).sigma == first.sigma


def test_an_estimate_is_no_more_than_the_model_takes(tmp_path: Path) -> None:
    """White noise all over its range has σ of about a sixth to a third of it."""
    model, most = Model("small", small_restorer()), 2 * SIGMA
    values = np.clip(0.5 + 0.4 * np.random.default_rng(0).standard_normal((96, 96)), -0.5, 1.5)
    tifffile.imwrite(tmp_path / "strong.tif", values.astype(np.float32))
    session = Sessions(tmp_path).of("a")
    with pytest.raises(NediffError, match="first"):
        estimate(session, model)
    arrive(session, model, session.keep(tmp_path / "strong.tif"))
    words, sigma = estimate(session, model)
    assert sigma == most
    assert "more than this model can take, 0.2" in words


@pytest.mark.parametrize("how", ["replaced", "cleared", "broken"])
def test_a_restore_shows_nothing_of_an_image_that_is_gone(
    how: str, model: Model, noisy: Path, tmp_path: Path
) -> None:
    """Neither the samples, nor the estimate that cancelling keeps."""
    session = Sessions(tmp_path).of("a")
    arrive(session, model, session.keep(noisy))
    steps = restore(session, model, Desk(), Settings(0.1, 64, steps=1000))
    next(step for step in steps if step.viewer is not None)
    work, old = session.work, session.opened
    if how == "replaced":
        arrive(session, model, session.keep(noisy))
    elif how == "cleared":
        session.drop()
    else:
        (tmp_path / "text.png").write_bytes(b"this is no picture")
        with pytest.raises(NediffError):
            arrive(session, model, tmp_path / "text.png")
    assert list(steps) == [Step("", running=False)]
    assert session.opened is not old
    assert session.result is None
    assert work is not None
    work.wait()
    assert work.share < 0.5


def test_an_image_that_goes_while_its_result_is_drawn_leaves_none(
    model: Model, noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Sessions(tmp_path).of("a")
    arrive(session, model, session.keep(noisy))

    def gone(*arguments: object) -> list[Path]:
        session.drop()
        return []

    monkeypatch.setattr("nediff.app.handlers.write_files", gone)
    *_, last = restore(session, model, Desk(), Settings(0.1, 0))
    assert last == Step("", running=False)
    assert session.result is None


def test_a_second_restore_takes_the_buttons_over(model: Model, noisy: Path, tmp_path: Path) -> None:
    """The first may not say that nothing runs."""
    session, desk = Sessions(tmp_path).of("a"), Desk()
    arrive(session, model, session.keep(noisy))
    first = restore(session, model, desk, Settings(0.1, 64, steps=1000))
    next(step for step in first if step.viewer is not None)
    second = restore(session, model, desk, Settings(0.1, 2, steps=2))
    assert next(second).running
    assert list(first) == []
    *_, last = second
    assert not last.running
    assert session.result is not None


def test_folders_of_one_session_made_by_many_threads_all_differ(tmp_path: Path) -> None:
    session = Sessions(tmp_path).of("a")
    before, found = sys.getswitchinterval(), []
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=lambda: found.extend(session.new_folder() for _ in range(50)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(set(found)) == len(found) == 400


def test_an_estimate_that_comes_after_the_click_is_kept(
    model: Model, noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled during the only network call, which cannot be stopped: its work is not lost."""
    session = Sessions(tmp_path).of("a")
    arrive(session, model, session.keep(noisy))
    begun, clicked, usual = threading.Event(), threading.Event(), Restorer.restore

    def slow(*arguments: object) -> object:
        begun.set()
        clicked.wait(60)
        return usual(*arguments)  # type: ignore[call-overload]

    monkeypatch.setattr(Restorer, "restore", slow)
    steps = restore(session, model, Desk(), Settings(0.1, 64, steps=1000))
    next(steps)
    begun.wait(60)
    session.cancel()
    clicked.set()
    *_, last = steps
    assert "the restored image is kept" in (last.words or "")
    assert last.viewer is not None
    assert session.result is not None


def test_the_estimate_of_a_large_image_can_be_cancelled(
    model: Model, noisy: Path, tmp_path: Path
) -> None:
    """Its tiles are told of one by one, and it stops between them."""
    assert model.run is not None
    model.run.tiled_from, model.run.tile = 0, 32
    seen: list[tuple[int, int]] = []
    y = open_image(noisy, range=model.run.range).unit
    whole = model.run.restore(y, 0.1, lambda done, total: seen.append((done, total)))
    assert [total for _, total in seen] == [len(seen)] * len(seen)
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    assert len(seen) == 9  # 96 × 80 in squares of 32
    np.testing.assert_array_equal(whole, model.run.restore(y, 0.1))
    session = Sessions(tmp_path).of("a")
    arrive(session, model, session.keep(noisy))

    def stop(y: object, sigma: object, progress: Callable[[int, int], None]) -> object:
        session.cancel()
        progress(1, 9)
        raise AssertionError("it went on")

    model.run.restore = stop  # type: ignore[method-assign,assignment]
    *_, last = restore(session, model, Desk(), Settings(0.1, 2))
    assert last.words == message("Cancelled.")


def handler(page: Any, name: str) -> Callable[..., Any]:
    """The function of the page that Gradio calls by this name."""
    (found,) = (f.fn for f in page.fns.values() if f.name == name)
    return found  # type: ignore[no-any-return]


def test_whatever_goes_wrong_the_page_is_not_stuck(
    model: Model,
    noisy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A full disk, and a mistake of ours: a sentence, buttons of use, and a line in the log."""
    pytest.importorskip("gradio")
    from nediff.app.page import build_page

    page = build_page(model, Sessions(tmp_path), None)
    upload, work = handler(page, "upload"), handler(page, "restore")
    request = SimpleNamespace(session_hash="a")

    def broken(error: Exception) -> Callable[..., Any]:
        def fail(*arguments: object) -> None:
            raise error

        return fail

    def words(shown: dict[Any, Any]) -> str:
        return "".join(v for v in shown.values() if isinstance(v, str) and "alert" in v)

    full = OSError(28, "No space left on device", str(tmp_path))
    upload(str(noisy), request)
    for error, said in ((full, "No space left on device"), (ValueError("x"), "ValueError")):
        monkeypatch.setattr("nediff.app.handlers.write_files", broken(error))
        *_, last = work(0.1, 2, "dpm2m", 2, 0, request)
        assert said in words(last)
        assert str(tmp_path) not in words(last)
        buttons = [v["interactive"] for v in last.values() if "interactive" in v]
        assert buttons == [True, False]  # Restore, Cancel
    monkeypatch.setattr("nediff.app.handlers.save_noisy", broken(full))
    assert "No space left on device" in words(upload(str(noisy), request))
    assert [r.exc_info is not None for r in caplog.records if r.name == "nediff.app"] == [True] * 3


def test_after_a_lost_connection_cancel_frees_the_buttons(
    model: Model, noisy: Path, tmp_path: Path
) -> None:
    """Nobody hears the end of the work then; the page still shows it as under way."""
    pytest.importorskip("gradio")
    from nediff.app.page import build_page

    page, request = build_page(model, Sessions(tmp_path), None), SimpleNamespace(session_hash="a")
    handler(page, "upload")(str(noisy), request)
    lost = handler(page, "restore")(0.1, 64, "dpm2m", 1000, 0, request)
    next(lost)
    shown = handler(page, "cancel")(request)
    assert [v["interactive"] for v in shown.values()] == [True, False]  # Restore, Cancel
    (wired,) = (f for f in page.fns.values() if f.name == "cancel")
    assert {part._id for part in wired.outputs} == {part._id for part in shown}
    *_, last = handler(page, "restore")(0.1, 0, "dpm2m", 2, 0, request)
    assert any("Restored with" in v for v in last.values() if isinstance(v, str))


def test_two_visitors_see_nothing_of_each_other(model: Model, noisy: Path, tmp_path: Path) -> None:
    sessions = Sessions(tmp_path)
    one, other = sessions.of("one"), sessions.of("other")
    arrive(one, model, one.keep(noisy))
    assert sessions.of("one") is one
    assert other.opened is None
    with pytest.raises(NediffError, match="first"):
        list(restore(other, model, Desk(), Settings(0.1)))
    assert one.folder != other.folder
    assert len(one.folder.name) == 32


def test_nothing_is_left_behind(model: Model, noisy: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "uploads" / "same").mkdir(parents=True)
    upload = root / "uploads" / "same" / "counts.tif"
    upload.write_bytes(noisy.read_bytes())
    sessions = Sessions(root)
    for name in ("one", "other"):
        session = sessions.of(name)
        arrive(session, model, session.keep(upload))
        list(restore(session, model, Desk(), Settings(0.1, 2, steps=3)))
    folder = sessions.of("one").folder
    sessions.close("one")
    assert not folder.exists()
    assert upload.exists()  # equal files share a place, and the other visitor may still need it
    sessions.close_all()
    assert not upload.exists()
    assert [p for p in root.rglob("*") if p.is_file()] == []


def test_a_page_that_was_left_may_come_back_for_a_while(tmp_path: Path) -> None:
    """A dropped connection is no end: what counts is a quarter of an hour without an event."""
    now = [0.0]
    sessions = Sessions(tmp_path, lambda: now[0])
    left, open_page = sessions.of("left"), sessions.of("open")
    sessions.leave("left")
    assert left.folder.exists()
    for now[0] in (800.0, 1600.0):  # each less than 900 seconds after the event before
        sessions.sweep()
        assert sessions.of("left") is left
    now[0] = 2600.0
    sessions.sweep()
    assert not left.folder.exists()
    assert sessions.of("open") is open_page  # its connection never dropped
    # it comes back later still, as a new session, which nobody will tell the end of
    again = sessions.of("left")
    assert again is not left
    now[0] = 3600.0
    sessions.sweep()
    assert not again.folder.exists()
    assert len(sessions) == 1


def test_a_dropped_connection_takes_nothing_away(model: Model, noisy: Path, tmp_path: Path) -> None:
    """Gradio says "unload" then; the work goes on and the files stay."""
    pytest.importorskip("gradio")
    from nediff.app.page import build_page

    sessions = Sessions(tmp_path)
    page = build_page(model, sessions, None)
    (unload,) = (f for f in page.fns.values() if any(t[1] == "unload" for t in f.targets))
    session = sessions.of("a")
    arrive(session, model, session.keep(noisy))
    *_, last = restore(session, model, Desk(), Settings(0.1, 2, steps=2))
    assert unload.fn is not None
    unload.fn(SimpleNamespace(session_hash="a"))
    assert sessions.of("a") is session
    assert all(Path(name).is_file() for name in last.files or [""])
    assert ask(session, Region(3, 3))


def test_the_page_sweeps_while_it_is_served(tmp_path: Path) -> None:
    now = [0.0]
    sessions = Sessions(tmp_path, lambda: now[0])
    folder = sessions.of("a").folder
    sessions.leave("a")
    with sessions.swept(0.01):
        now[0] = 1000.0
        end = time.monotonic() + 60
        while folder.exists() and time.monotonic() < end:
            time.sleep(0.01)
    assert not folder.exists()


def test_sessions_are_made_once_by_many_threads(tmp_path: Path) -> None:
    sessions, found = Sessions(tmp_path), []
    threads = [threading.Thread(target=lambda: found.append(sessions.of("x"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(session) for session in found}) == 1


def test_what_users_type_is_no_markup() -> None:
    assert "<script>" not in message("<script>alert(1)</script>")
    assert "<script>" not in progress_bar(0.5, "<script>")


# --- the pretrained network -----------------------------------------------------------------------


def test_the_pretrained_network_helps_and_is_small(tmp_path: Path) -> None:
    """Against the noise it was not told of: it must gain at least 4 dB on a held-out picture."""
    import skimage
    from PIL import Image

    from nediff.app.example import CORNER, SIDE
    from nediff.pretrained import FOLDER

    assert sum(p.stat().st_size for p in FOLDER.iterdir()) < 2_000_000
    model = open_model(None)
    top, left = CORNER
    picture = Image.open(Path(skimage.__file__).parent / "data" / "chelsea.png").convert("RGB")
    clean = np.moveaxis(np.asarray(picture, np.float64), -1, 0)
    clean = clean[:, top : top + SIDE, left : left + SIDE]
    opened = open_image(write_example(tmp_path, grey=False))
    found = estimated_sigma(opened)
    assert found is not None
    result = finish(prepare(model, opened, Settings(found.value, 0), Desk()))
    before = np.mean((opened.values - clean) ** 2)
    after = np.mean((result.restored - clean) ** 2)
    assert 10 * np.log10(before / after) > 4


def test_colours_are_denoised_as_an_orthonormal_turn_of_grey_ones() -> None:
    """White noise stays white, equal channels become the grey image with a third of the variance,
    and a number of channels that are no colours are denoised one by one."""
    from nediff.networks.denoiser import ChannelwiseDenoiser

    grey = small_restorer().denoiser
    three = ChannelwiseDenoiser(grey, 3)
    torch.testing.assert_close(three.turn @ three.turn.T, torch.eye(3))
    y, sigma = torch.rand(2, 1, 32, 32), torch.tensor([0.1, 0.05])
    with torch.no_grad():
        equal = three(y.expand(-1, 3, -1, -1), sigma)
        # the two differences are zero, and what the grey network makes of zeros is turned back
        nothing = grey.denoise_centred(torch.zeros(2, 1, 32, 32), sigma)
        one = grey(y, sigma / 3**0.5)
        rest = three.turn[1:].sum(0)[None, :, None, None] * nothing
        torch.testing.assert_close(equal, one + rest, rtol=1e-4, atol=1e-5)
        several = torch.rand(2, 4, 32, 32)
        apart = torch.cat([grey(several[:, k : k + 1], sigma) for k in range(4)], dim=1)
        torch.testing.assert_close(
            ChannelwiseDenoiser(grey, 4)(several, sigma), apart, rtol=1e-4, atol=1e-5
        )


# --- training -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    place = tmp_path / "images"
    place.mkdir()
    rows, columns = np.mgrid[:96, :96]
    for k in range(4):
        clean = 120 + 60 * np.sin(rows / (7 + k)) * np.sin(columns / 11)
        noisy = clean + 20 * rng.standard_normal(clean.shape)
        tifffile.imwrite(place / f"{k}.tif", np.clip(noisy, 0, 255).astype(np.uint8))
    return place


def test_a_look_tells_train_of_the_noise(folder: Path) -> None:
    found = look(str(folder))
    assert isinstance(found, Look)
    assert found.options()[0] in ("--sigma", "--gain")
    assert "--out" not in found.options()
    with pytest.raises(NediffError, match="does not exist"):
        look(str(folder / "nowhere"))
    with pytest.raises(NediffError, match="first"):
        look("  ")


@pytest.fixture(scope="module")
def photons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Counts of photons, 8 data units each."""
    place = tmp_path_factory.mktemp("photons")
    rows, columns = np.mgrid[:128, :128]
    for k in range(6):
        light = 60 + 55 * np.sin(rows / (17 + k)) * np.sin(columns / 21 + k)
        counts = 8.0 * np.random.default_rng(k).poisson(light)
        tifffile.imwrite(place / f"{k}.tif", counts.astype(np.float32))
    return place


def test_a_look_says_that_noise_grows_with_the_signal(photons: Path, folder: Path) -> None:
    found = look(str(photons))
    assert found.advised == "photons"
    assert found.options()[0] == "--gain"
    assert float(found.options()[1]) == pytest.approx(8, rel=0.2)
    assert "Their noise: grows with the signal, as that of photons." in found.words
    assert "grows, as that of photons" in diagnosis(found, "")
    even = look(str(folder))
    assert even.advised == "even"
    assert "Their noise: the same in bright and dark places." in even.words
    assert "photons" not in diagnosis(even, "")


def test_a_training_takes_the_noise_as_the_user_says(photons: Path) -> None:
    """The diagnosis knows how strong its own kind is; the strength of another is estimated."""
    found = look(str(photons))
    assert found.options("photons") == found.options("found") == found.options()
    assert found.options("even") == ["--sigma", "auto"]
    assert found.options("correlated") == ["--sigma", "correlated"]
    assert "--sigma auto --out r --minutes 3" in found.command("r", 3, "even")


def test_the_training_page_asks_what_the_noise_is(
    photons: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choices are labelled, the first leaves it to the images, and *Train* heeds them."""
    gr = pytest.importorskip("gradio")
    from nediff.app.training_page import training_tab

    begun: list[list[str]] = []
    trainings = Trainings()
    monkeypatch.setattr(trainings, "start", lambda *told: begun.append(told[-1]))
    with gr.Blocks() as page:
        training_tab(trainings)
    by_id = {block.elem_id: block for block in page.blocks.values() if block.elem_id}
    noise, train = by_id["nediff-noise"], by_id["nediff-train"]
    assert noise.label == "Noise"
    assert noise.value == "found"
    (start,) = [f for f in page.fns.values() if (train._id, "click") in f.targets]
    assert noise in start.inputs
    for kind, option in (("found", "--gain"), ("photons", "--gain"), ("even", "--sigma")):
        shown = start.fn(str(photons), "runs/x", 2, kind, None)
        assert begun.pop()[0] == option
        assert f"{option} " in shown[by_id["nediff-found"]]


def wait_for(trainings: Trainings, out: str, ready: object, patience: float = 600.0) -> None:
    end = time.monotonic() + patience
    while time.monotonic() < end:
        state = trainings.state(out)
        if state is not None and ready(state):  # type: ignore[operator]
            return
        time.sleep(0.2)
    raise AssertionError("it takes too long")


def test_a_training_is_started_stopped_and_resumed(folder: Path, tmp_path: Path) -> None:
    trainings, out = Trainings(), str(tmp_path / "run")
    assert trainings.state(out) is None
    assert not trainings.stop(out)
    trainings.start(str(folder), out, 30, ["--sigma", "20", "--units", "data", "--size", "tiny"])
    with pytest.raises(NediffError, match="already"):
        trainings.start(str(folder), out, 30, ["--sigma", "20", "--units", "data"])
    wait_for(trainings, out, lambda s: s.steps > 0)  # config.yaml is there: the run has begun
    assert trainings.stop(out)
    wait_for(trainings, out, lambda s: not s.running)
    state = trainings.state(out)
    assert state is not None
    assert not state.finished
    stopped = steps_done(tmp_path / "run")  # at whatever moment: there is something to go on from
    assert f"stopped after {stopped} of {state.steps} steps and saved" in state.words
    assert Restorer.load(out).restore(np.full((1, 32, 32), 0.5, np.float32)).shape == (1, 32, 32)
    trainings.resume(str(folder), out)
    wait_for(trainings, out, lambda s: "training" in s.words)  # past reading the images
    trainings.close()
    state = trainings.state(out)
    assert state is not None
    assert not state.running
    assert steps_done(tmp_path / "run") > stopped


def steps_done(run: Path) -> int:
    _, metadata = read_tensors(run / STATE_FILE)
    return int(json.loads(metadata["progress"])["step"])


def test_a_run_of_a_terminal_can_be_watched(tmp_path: Path) -> None:
    """It is under way although the page did not start it, and over when its process has ended."""
    small_restorer().save(tmp_path / "run")
    trainings, out = Trainings(), str(tmp_path / "run")
    with claimed(tmp_path / "run"):
        state = trainings.state(out)
        assert state is not None
        assert state.running
        assert not trainings.stop(out)
    state = trainings.state(out)
    assert state is not None
    assert not state.running


def test_the_bar_says_when_it_will_know_and_is_gone_when_all_is_over() -> None:
    from nediff.app.training_page import _bar

    begun = _bar(State(True, 284, [], "training", every=71))
    assert "after step 71" in begun
    assert "step 0" not in begun
    rows = [(71, 30.0, 20.0)]
    assert "about step 71 of 284" in _bar(State(True, 284, rows, "training", every=71))
    assert _bar(State(False, 284, rows, "stopped after 90 of 284 steps", every=71)) == ""


def test_a_stop_before_there_is_a_run_says_so() -> None:
    from nediff.app.training_page import _ending

    early = State(False, 0, [], "measuring the training rate …")
    assert "nothing to resume" in _ending(early, "run")
    late = State(False, 90, [], "stopped after 7 of 90 steps and saved in run; go on with …")
    assert "Stopped after 7 of 90 steps" in _ending(late, "run")
    assert "Resume" in _ending(late, "run")


def test_a_training_that_crashed_was_not_stopped(folder: Path, tmp_path: Path) -> None:
    """Killed, as when memory runs out: the page says so, and does not call it a stop."""
    from nediff.app.training_page import _ending

    trainings, out = Trainings(), str(tmp_path / "run")
    options = ["--sigma", "20", "--units", "data", "--size", "tiny"]
    trainings.start(str(folder), out, 30, options)
    wait_for(trainings, out, lambda s: bool(s.words))
    os.kill(trainings._known[tmp_path / "run"].process.pid, signal.SIGKILL)
    wait_for(trainings, out, lambda s: not s.running)
    state = trainings.state(out)
    assert state is not None
    assert state.exit_code == -9
    shown = _ending(state, out)
    assert "The training failed: " in shown
    assert 'role="alert"' in shown


def test_how_a_training_ended_is_told_by_its_exit_code() -> None:
    from nediff.app.training_page import _ending

    def ending(code: int | None, words: str = "OSError: disk full", steps: int = 90) -> str:
        rows = [(steps if code == 0 else 7, 1.0, 20.0)]
        return _ending(State(False, steps, rows, words, 0.0, code), "run")

    assert "The training failed: OSError: disk full" in ending(1)
    assert "Stopped after step 7" in ending(143)
    assert "Stopped after step 7" in ending(130)
    assert "Stopped after step 7" in ending(None)  # of a terminal: nothing is known of its end
    assert "Done" in ending(0)
    refused = ending(2, "nediff: the folder does not exist.")
    assert "failed" not in refused
    assert "the folder does not exist." in refused


def test_between_validations_the_bar_goes_on_but_not_past_the_next() -> None:
    """A hundred steps a minute, validated every fifty."""
    rows = [(50, 30.0, 20.0), (100, 60.0, 21.0)]

    def about(since: float, running: bool = True, steps: int = 1000) -> int:
        return State(running, steps, rows, "", since).about

    assert [about(s) for s in (0.0, 12.0, 30.0, 300.0)] == [100, 120, 150, 150]
    assert about(300.0, steps=110) == 110
    assert about(12.0, running=False) == 100
    assert State(True, 1000, [], "", 12.0).about == 0


def test_a_training_that_cannot_be_says_why(tmp_path: Path) -> None:
    trainings, out = Trainings(), str(tmp_path / "run")
    trainings.start(str(tmp_path / "nowhere"), out, 1, ["--sigma", "0.1"])
    wait_for(trainings, out, lambda s: not s.running)
    state = trainings.state(out)
    assert state is not None
    assert "does not exist" in state.words
    with pytest.raises(NediffError):
        trainings.resume(str(tmp_path), out)
    with pytest.raises(NediffError, match="minutes"):
        trainings.start(str(tmp_path), out, -1, [])


def test_the_page_is_for_this_computer_unless_told() -> None:
    from nediff.app.serve import is_local

    assert is_local("127.0.0.1")
    assert is_local("localhost")
    assert is_local("::1")
    assert not is_local("0.0.0.0")
    assert not is_local("192.168.1.4")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_no_website_reaches_the_page_by_a_name_of_its_own(host: str) -> None:
    """DNS rebinding: a name of theirs, the address of this computer. Only a page that is for
    other computers, too, has no names to tell apart; and it does not say that nothing leaves."""
    httpx = pytest.importorskip("httpx")
    local = host == "127.0.0.1"
    with serving(None, host) as address:
        port = httpx.URL(address).port

        def code(name: str) -> int:
            where = f"http://127.0.0.1:{port}/config"
            answer = httpx.get(where, headers={"Host": name}, timeout=60, trust_env=False)
            return int(answer.status_code)

        own = ["localhost", f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "[::1]"]
        assert [code(name) for name in own] == [200] * 5
        others = ["evil.example", f"evil.example:{port}", "localhost.evil.example"]
        assert [code(name) for name in others] == [400 if local else 200] * 3
        words = httpx.get(f"http://127.0.0.1:{port}/config", timeout=60, trust_env=False).text
        assert ("Nothing leaves this computer." in words) is local
        assert ("Images are sent to the computer that serves" in words) is not local


def test_the_page_can_be_served_by_the_new_kind_of_addresses() -> None:
    """An IPv6 one is written in brackets on the web, without them after --host."""
    httpx = pytest.importorskip("httpx")
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    with serving(None, "::1") as address:
        assert address.startswith("http://[::1]:")
        answer = httpx.get(f"{address}config", timeout=60, trust_env=False)
        assert answer.status_code == 200


@pytest.mark.parametrize("host", ["203.0.113.9", "no-such-name.invalid", ""])
def test_an_address_of_another_computer_is_refused_at_once(host: str) -> None:
    with (
        pytest.raises(NediffError, match=r"cannot be served.*Leave out --host"),
        serving(None, host),
    ):
        pass


def test_a_port_that_is_taken_is_said_to_be() -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        port = door.getsockname()[1]
        sentence = rf"^Port {port} is taken; leave out --port for a free one\.$"
        with pytest.raises(NediffError, match=sentence), serving(None, port=port):
            pass


def test_uploads_have_a_limit_and_nothing_of_them_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    httpx = pytest.importorskip("httpx")
    monkeypatch.setattr("nediff.app.serve.MOST_MEGABYTES", 1)
    with serving(None) as address:
        root = Path(os.environ["GRADIO_TEMP_DIR"])
        place = httpx.get(f"{address}config").json().get("api_prefix", "")
        codes = [
            httpx.post(
                f"{address.rstrip('/')}{place}/upload",
                files={"files": ("a.tif", b"0" * size, "image/tiff")},
                timeout=60,
            ).status_code
            for size in (1000, 2_000_000)
        ]
        assert codes == [200, 413]
        sizes = [p.stat().st_size for p in root.rglob("a.tif")]
        assert sizes == [1000]
    assert not root.exists()


def test_without_gradio_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from nediff.cli.app import run_app

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NediffError, match=r"nediff\[app\]"):
        run_app(None, "127.0.0.1", None, False, None)


# --- other instruments ----------------------------------------------------------------------------


def instruments() -> dict[str, tuple[Problem, np.ndarray]]:
    """Problems, and a measurement (C, H, W) of each."""
    import torch as t

    from nediff.problem import cartesian_mask, random_mask

    rng = np.random.default_rng(0)
    kernel = t.ones(3, 3) / 9
    k_space = rng.standard_normal((2, 32, 32)) * cartesian_mask((32, 32), 4, 0).numpy()
    return {
        "inpainting": (
            Problem.inpainting(random_mask(0.7, (48, 48), 0), 0.1, 1),
            rng.random((1, 48, 48)),
        ),
        "blur": (Problem.blur(kernel, 0.1, 1), rng.random((1, 48, 40))),
        "mri": (Problem.mri(cartesian_mask((32, 32), 4, 0), 0.1), k_space),
    }


@pytest.mark.parametrize("name", ["inpainting", "blur", "mri"])
def test_runs_of_other_instruments_can_be_used(name: str, tmp_path: Path) -> None:
    from nediff.networks import build_denoiser

    problem, y = instruments()[name]
    values = np.asarray(y, np.float32)
    data = open_measurements(np.stack([values] * 4), axes="NCHW", range=(0, 1))
    config = plan_run(data, problem, Plan(steps=1, size="tiny", crop=16), "made")
    model = Model("made", Restorer(problem, build_denoiser(config.network), config))
    tifffile.imwrite(tmp_path / "y.tif", values, metadata={"axes": "CYX"})
    session = Sessions(tmp_path).of("a")
    new = arrive(session, model, tmp_path / "y.tif")
    assert new.sigma == 0.1
    *_, last = restore(session, model, Desk(), Settings(0.1, 2, steps=2))
    assert last.viewer is not None
    assert (last.viewer["height"], last.viewer["width"]) == values.shape[-2:]
    words, _ = ask(session, Region(5, 5, 3, 3))
    assert "give or take" in words
    assert "The noise alone" not in words  # it is not that of these pixels
    assert "as the measurement itself" not in words
    assert ("Measured" in words) is (name != "mri")


def test_the_probe_knows_what_was_measured(tmp_path: Path) -> None:
    """A third of the columns is missing, and zero in the file."""
    drawn = np.random.default_rng(1).normal(100, 1, (8, 1, 24, 24)).astype(np.float32)
    plain = made_result(drawn, tmp_path / "image.tif")
    measured = np.ones((1, 24, 24), bool)
    measured[:, :, ::3] = False
    noisy = np.where(measured, 90.0, 0.0).astype(np.float32)
    result = replace(plain, kind="inpainting", measured=measured, noisy=noisy)
    missing, some, there = (
        probe(result, r) for r in (Region(4, 3), Region(4, 3, 3, 3), Region(4, 4))
    )
    assert "Nothing was measured here." in answer(missing)
    assert "Measured was" not in answer(missing)
    assert "measured:" not in histogram(missing)
    assert "Measured were 67% of its values, with a mean of 90." in answer(some)
    assert "times as much doubt" not in answer(some)
    assert "Measured was 90." in answer(there)
    assert "times as much doubt" in answer(there)


def test_of_a_raw_mosaic_one_colour_of_three_was_measured(tmp_path: Path) -> None:
    from nediff.networks import build_denoiser

    problem = Problem.demosaicing(0.1, raw=True)
    values = np.random.default_rng(0).random((1, 48, 40)).astype(np.float32)
    data = open_measurements(np.stack([values] * 4), axes="NCHW", range=(0, 1))
    config = plan_run(data, problem, Plan(steps=1, size="tiny", crop=16), "made")
    model = Model("made", Restorer(problem, build_denoiser(config.network), config))
    tifffile.imwrite(tmp_path / "y.tif", values[0])
    result = finish(
        prepare(model, open_image(tmp_path / "y.tif"), Settings(0.1, 2, steps=2), Desk())
    )
    found = probe(result, Region(3, 5))
    assert found.share == pytest.approx(1 / 3)
    assert found.noisy == pytest.approx(values[0, 3, 5], rel=1e-6)
    assert np.isnan(found.noise)


def test_the_command_tells_programs_its_address_and_ends_at_a_signal() -> None:
    command = [sys.executable, "-m", "nediff", "app", "--no-browser", "--quiet", "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as page:
        assert page.stdout is not None
        words = ""
        for line in page.stdout:
            words += line
            if line == "}\n":
                break
        with urllib.request.urlopen(json.loads(words)["address"]) as answer:
            assert b"nediff" in answer.read()
        page.send_signal(signal.SIGINT)
        _, said = page.communicate(timeout=120)
    assert said == ""


def test_the_curve_leaves_out_what_held_out_images_cannot_tell() -> None:
    """Where no error is estimated, as of pixels that are cut off, there is no PSNR to draw."""
    rows = [(10, 1.0, 25.0), (20, 2.0, NO_ERROR), (30, 3.0, 27.0)]
    drawn = curve(State(True, 100, rows, ""))
    assert drawn.count("<circle") == 2
    assert "100.0" not in drawn
    assert "cannot tell" in curve(State(True, 100, rows[1:2], ""))
    assert "begins with the first check" in curve(State(True, 100, [], ""))
