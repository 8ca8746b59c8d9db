"""The web page in a real browser. Skipped where Gradio, Playwright or Chromium are missing."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from nediff.data import claimed
from nediff.restorer import Restorer
from tests.test_app import small_restorer

pytest.importorskip("gradio", reason="the extra [app] is not installed")
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
ARGUMENTS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
PATIENCE = 240_000
"""Milliseconds: on a busy computer everything is slow. Nothing waits longer than it must."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from nediff.app.serve import serving

    run = tmp_path_factory.mktemp("runs") / "small"
    small_restorer().save(run)
    place = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(place))
        with serving(run) as where:
            assert list(place.glob("nediff-app-*"))
            yield where
    assert not list(place.glob("nediff-app-*"))  # nothing of the page is left


@pytest.fixture
def asked() -> list[str]:
    """The addresses outside of this computer that the page asked for."""
    return []


@pytest.fixture
def page(browser: Any, address: str, asked: list[str]) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    opened = _opened(context, address, asked)
    yield opened
    context.close()
    assert asked == []


def _opened(context: Any, address: str, asked: list[str]) -> Any:
    def note(request: Any) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            asked.append(request.url)

    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("request", note)
    page.goto(address)
    page.wait_for_selector("#nediff-restore")
    return page


def _image(folder: Path, name: str = "counts.tif") -> Path:
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:64, :80]
    values = 0.5 + 0.3 * np.sin(rows / 9) * np.cos(columns / 13)
    values = 60000 * (values + 0.05 * rng.standard_normal(values.shape))
    tifffile.imwrite(folder / name, np.clip(values, 0, 65535).astype(np.uint16))
    return folder / name


def _upload(page: Any, path: Path) -> None:
    page.set_input_files("#nediff-upload input[type=file]", str(path))


def _number(page: Any, name: str, value: str) -> None:
    box = page.locator(f"#nediff-{name} input[type=number]").first
    box.fill(value)
    box.press("Tab")


def _arrived(page: Any, name: str) -> None:
    page.wait_for_selector("#nediff-viewer .nv:not([hidden])")
    sync_api.expect(page.locator("#nediff-words")).to_contain_text(name, timeout=PATIENCE)


def test_upload_restore_probe_download(page: Any, tmp_path: Path) -> None:
    _upload(page, _image(tmp_path))
    _arrived(page, "counts.tif: 80 × 64 pixels, grey, uint16")
    assert not page.locator("#nediff-viewer .nv-ask").first.is_visible()  # there is nothing to ask
    _number(page, "sigma", "0.08")
    _number(page, "samples", "3")
    page.click("#nediff-restore")
    page.wait_for_selector("#nediff-files:visible")
    shown = page.locator("#nediff-viewer")
    sync_api.expect(shown.locator(".nv-which")).to_have_text("Sample 1 of 3")
    for image in shown.locator("img:visible").all():
        assert image.evaluate("i => i.decode().then(() => i.naturalWidth)") == 80
        assert image.get_attribute("alt")

    pane = shown.locator('[data-pane="samples"]')
    pane.click(position={"x": 100, "y": 60})
    answer = page.locator("#nediff-answer")
    sync_api.expect(answer).to_contain_text("give or take", timeout=PATIENCE)
    assert page.locator("#nediff-histogram circle").count() == 3
    row = int(page.locator(".nediff-where input").nth(0).input_value())
    scale = pane.bounding_box()["width"] / 80
    assert row == int(60 / scale)  # the pixel under the pointer

    hint = shown.locator(".nv-help")
    sync_api.expect(hint).to_contain_text("Enter probes")
    assert hint.locator(".nv-ask").first.is_visible()
    mark = shown.locator('[data-pane="samples"] .nv-mark')
    for k, value in enumerate(("3", "5", "40", "50")):  # a region that is typed is marked, too
        page.locator(".nediff-where input").nth(k).fill(value)
    page.click("#nediff-ask-there")
    sync_api.expect(answer).to_contain_text("rows 3 to 42, columns 5 to 54", timeout=PATIENCE)
    sync_api.expect(answer).to_contain_text("draw more")
    assert mark.bounding_box()["width"] == pytest.approx(50 * scale + 4, abs=1)
    assert mark.bounding_box()["height"] == pytest.approx(40 * scale + 4, abs=1)

    removers = page.locator("#nediff-files .label-clear-button")
    assert removers.count() > 0
    assert not any(cross.is_visible() for cross in removers.all())  # they could not be undone
    with page.expect_download() as started:
        page.locator("#nediff-files a", has_text="").first.click()
    file = tmp_path / started.value.suggested_filename
    started.value.save_as(file)
    assert file.name == "counts-restored.tif"
    assert tifffile.imread(file).shape == (64, 80)
    assert '"sigma_of_range": 0.08' in tifffile.TiffFile(file).pages[0].description


def test_pictures_move_together_by_keyboard_alone(page: Any, tmp_path: Path) -> None:
    _upload(page, _image(tmp_path))
    _arrived(page, "counts.tif")
    _number(page, "samples", "2")
    page.locator("#nediff-restore").press("Enter")
    page.wait_for_selector("#nediff-files:visible")
    shown = page.locator("#nediff-viewer")

    def places() -> set[str]:
        return {
            layer.evaluate("e => e.style.transform") for layer in shown.locator(".nv-layer").all()
        }

    before = places()
    assert len(before) == 1
    pane = shown.locator('[data-pane="compare"]')
    pane.focus()
    for key in ("+", "+", "ArrowLeft", "ArrowDown"):
        page.keyboard.press(key)
    assert len(places()) == 1
    assert places() != before
    page.keyboard.press("]")
    sync_api.expect(shown.locator(".nv-which")).to_have_text("Sample 2 of 2")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#nediff-answer")).to_contain_text(
        "give or take", timeout=PATIENCE
    )
    page.keyboard.press("0")
    assert places() == before

    split = shown.locator(".nv-split")
    split.focus()
    cut = shown.locator(".nv-restored").evaluate("e => e.style.clipPath")
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    assert split.input_value() == "60"
    assert shown.locator(".nv-restored").evaluate("e => e.style.clipPath") != cut
    assert "60 %" in split.get_attribute("aria-valuetext")


def test_what_is_wrong_is_said(page: Any, tmp_path: Path) -> None:
    bad = tmp_path / "broken.tif"
    bad.write_bytes(b"II*\x00 no picture at all")
    _upload(page, bad)
    alert = page.locator("#nediff-words [role=alert]")
    sync_api.expect(alert).to_contain_text("broken.tif", timeout=PATIENCE)
    assert "/tmp" not in alert.inner_text()
    page.click("#nediff-restore")
    sync_api.expect(alert).to_contain_text("Drop an image first", timeout=PATIENCE)


def test_nothing_is_said_of_the_noise_before_there_is_an_image(browser: Any) -> None:
    """The field is empty where σ is told by the image, and restoring asks for one first."""
    from nediff.app.serve import serving

    asked: list[str] = []
    with serving(None) as where:
        context = browser.new_context()
        page = _opened(context, where, asked)
        sync_api.expect(page.locator("#nediff-sigma input")).to_have_value("", timeout=PATIENCE)
        page.click("#nediff-restore")
        words = page.locator("#nediff-words [role=alert]")
        sync_api.expect(words).to_contain_text("Drop an image first", timeout=PATIENCE)
        context.close()
    assert asked == []


def test_cancelling(page: Any, tmp_path: Path) -> None:
    _upload(page, _image(tmp_path))
    _arrived(page, "counts.tif")
    _number(page, "samples", "64")
    page.get_by_text("How samples are drawn").click()
    page.get_by_label("Steps").last.fill("100")
    page.click("#nediff-restore")
    page.wait_for_selector("#nediff-progress [role=progressbar]")
    page.locator("#nediff-cancel:enabled").click()
    words = page.locator("#nediff-words")
    sync_api.expect(words).to_contain_text("Cancelled", timeout=PATIENCE)
    sync_api.expect(page.locator("#nediff-restore")).to_be_enabled(timeout=PATIENCE)


def test_an_image_replaced_while_it_is_restored_does_not_come_back(
    page: Any, tmp_path: Path
) -> None:
    _upload(page, _image(tmp_path))
    _arrived(page, "counts.tif")
    _number(page, "samples", "64")
    page.get_by_text("How samples are drawn").click()
    page.get_by_label("Steps").last.fill("100")
    page.click("#nediff-restore")
    page.wait_for_selector("#nediff-progress [role=progressbar]")
    page.click("#nediff-example")
    sync_api.expect(page.locator("#nediff-words")).not_to_contain_text("counts", timeout=PATIENCE)
    sync_api.expect(page.locator("#nediff-restore")).to_be_enabled(timeout=PATIENCE)
    sync_api.expect(page.locator("#nediff-cancel")).to_be_disabled()
    _number(page, "samples", "2")
    page.click("#nediff-restore")
    page.wait_for_selector("#nediff-files:visible")
    assert "counts" not in page.inner_text("#nediff-files")
    assert "counts" not in page.inner_text("#nediff-words")


def test_two_visitors_at_once(browser: Any, address: str, tmp_path: Path) -> None:
    asked: list[str] = []
    contexts = [browser.new_context() for _ in range(2)]
    one, other = (_opened(context, address, asked) for context in contexts)
    _upload(one, _image(tmp_path, "mine.tif"))
    _upload(other, _image(tmp_path, "yours.tif"))
    for page in (one, other):
        page.wait_for_selector("#nediff-viewer .nv:not([hidden])")
        _number(page, "samples", "2")
        page.click("#nediff-restore")
    for page, name in ((one, "mine"), (other, "yours")):
        page.wait_for_selector("#nediff-files:visible")
        assert f"{name}-sd.tif" in page.inner_text("#nediff-files").replace("\n", "")
    for context in contexts:
        context.close()
    assert asked == []


def test_the_training_page_shows_the_diagnosis(page: Any, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for k in range(3):
        _image(folder, f"{k}.tif")
    page.get_by_role("tab", name="Train").click()
    page.fill("#nediff-source textarea, #nediff-source input", str(folder / "nowhere"))
    page.click("#nediff-look")
    alert = page.locator("#nediff-train-words [role=alert]")
    sync_api.expect(alert).to_contain_text("does not exist", timeout=PATIENCE)
    page.fill("#nediff-source textarea, #nediff-source input", str(folder))
    page.click("#nediff-look")
    found = page.locator("#nediff-found")
    sync_api.expect(found).to_contain_text("nediff train", timeout=PATIENCE)
    sync_api.expect(found).to_contain_text("3 image(s) of 80 × 64 pixels")


def test_a_training_is_watched_stopped_and_resumed_in_the_browser(
    page: Any, tmp_path: Path
) -> None:
    """From a folder to a finished run: the curve grows, a stop saves, resuming goes on."""
    folder, out = tmp_path / "images", tmp_path / "run"
    folder.mkdir()
    for k in range(3):
        _image(folder, f"{k}.tif")
    page.get_by_role("tab", name="Train").click()
    page.fill("#nediff-source textarea, #nediff-source input", str(folder))
    page.fill("#nediff-out textarea, #nediff-out input", str(out))
    page.locator("#nediff-minutes input").fill("0.3")
    page.set_default_timeout(3 * PATIENCE)  # how fast the computer is is measured first
    page.click("#nediff-train")
    page.wait_for_selector("#nediff-curve circle")
    page.wait_for_selector("#nediff-previews figure:nth-child(2)")
    page.click("#nediff-stop")
    words = page.locator("#nediff-train-words")
    sync_api.expect(words).to_contain_text("“Resume” goes on", timeout=PATIENCE)
    told = re.search(r"Stopped after (\d+) of (\d+) steps and saved", words.inner_text())
    assert told is not None, words.inner_text()
    assert 0 < int(told[1]) < int(told[2])
    assert Restorer.load(out).config.training.steps == int(told[2])

    page.click("#nediff-resume")
    sync_api.expect(words).to_contain_text("Done", timeout=3 * PATIENCE)
    curve = page.locator("#nediff-curve svg").get_attribute("aria-label")
    assert f"after {told[2]} of {told[2]} steps" in curve
    assert page.locator("#nediff-previews figure").count() == 3
    rows = (out / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + page.locator("#nediff-curve circle").count()


def test_a_run_of_a_terminal_is_watched_until_it_ends(page: Any, tmp_path: Path) -> None:
    small_restorer().save(tmp_path / "run")
    page.get_by_role("tab", name="Train").click()
    folder = page.locator("#nediff-out textarea, #nediff-out input")
    folder.fill(str(tmp_path / "run"))
    with claimed(tmp_path / "run"):  # as a process does that trains
        folder.press("Enter")
        page.wait_for_selector("#nediff-train-progress [role=progressbar]")
    words = page.locator("#nediff-train-words")
    sync_api.expect(words).to_contain_text("Stopped", timeout=PATIENCE)


def test_every_control_has_a_name(page: Any) -> None:
    """For who cannot see it: a label, a text or an aria-label."""
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input, textarea, select')]
            .filter(e => e.offsetParent && e.type !== 'hidden')
            .filter(e => !(e.labels && e.labels.length) && !e.getAttribute('aria-label')
                && !e.getAttribute('aria-labelledby') && !e.title && !e.innerText.trim())
            .map(e => e.outerHTML.slice(0, 200))"""
    )
    assert nameless == []


def test_it_fits_a_phone(browser: Any, address: str, tmp_path: Path) -> None:
    asked: list[str] = []
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = _opened(context, address, asked)
    _upload(page, _image(tmp_path))
    _arrived(page, "counts.tif")
    wide = page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0  # nothing to scroll sideways
    assert page.evaluate("() => document.body.classList.contains('dark')")
    context.close()
