"""The pictures of docs/app.md: the page as a browser shows it.

    python -m benchmarks.app_pictures [restore phone train]

Needs the extra `app`, Playwright and Chromium. The image is the example of the page; the training
is one of noisy pictures that come with scikit-image.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

OUT = Path("docs/images").absolute()
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
ARGUMENTS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
PATIENCE = 1_200_000
SIGMA, PICTURES = 0.1, ("astronaut.png", "coffee.png", "camera.png", "rocket.jpg", "chelsea.png")


def restored(page: Any, samples: int) -> None:
    """The example, restored and probed."""
    page.click("#nediff-example")
    page.wait_for_selector("#nediff-viewer .nv:not([hidden])")
    page.locator("#nediff-samples input[type=number]").fill(str(samples))
    page.keyboard.press("Tab")
    page.click("#nediff-restore")
    page.wait_for_selector("#nediff-files:visible")
    pane = page.locator('[data-pane="sd"]')
    box = pane.bounding_box()
    pane.click(position={"x": 0.29 * box["width"], "y": 0.36 * box["height"]})
    page.wait_for_selector("#nediff-histogram svg")
    page.wait_for_timeout(500)


def trained(page: Any) -> None:
    """A training that is under way, with three checks or more behind it."""
    page.get_by_role("tab", name="Train").click()
    page.fill("#nediff-source textarea, #nediff-source input", "noisy")
    page.fill("#nediff-out textarea, #nediff-out input", "runs/photographs")
    page.locator("#nediff-minutes input").fill("3")
    page.click("#nediff-look")
    page.wait_for_selector("#nediff-found code")
    page.click("#nediff-train")
    page.wait_for_function("() => document.querySelectorAll('#nediff-curve circle').length >= 3")
    page.wait_for_selector("#nediff-previews figure:nth-child(3)")
    page.wait_for_timeout(500)


def noisy_pictures(folder: Path) -> None:
    """Grey pictures with noise, to train on."""
    import numpy as np
    import skimage
    from PIL import Image

    (folder / "noisy").mkdir()
    rng = np.random.default_rng(0)
    for name in PICTURES:
        with Image.open(Path(skimage.__file__).parent / "data" / name) as opened:
            clean = np.asarray(opened.convert("L"), dtype=np.float64)
        dull = 60 + 0.55 * clean  # so that nothing is cut off
        noisy = dull + 255 * SIGMA * rng.standard_normal(clean.shape)
        values = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
        Image.fromarray(values).save(folder / "noisy" / f"{Path(name).stem}.png")


def shoot(page: Any, name: str, folder: Path) -> None:
    """A picture of the page with few colours, which is small."""
    from PIL import Image

    page.screenshot(path=folder / "page.png", full_page=True)
    with Image.open(folder / "page.png") as shot:
        shot.convert("RGB").quantize(192).save(OUT / f"app-{name}.png", optimize=True)
    print(OUT / f"app-{name}.png", (OUT / f"app-{name}.png").stat().st_size)


def main() -> None:
    from playwright.sync_api import sync_playwright

    from nediff.app.serve import serving

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=("restore", "phone", "train"))
    what = parser.parse_args().what
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with (
        tempfile.TemporaryDirectory() as temporary,
        serving(None) as address,
        sync_playwright() as playwright,
    ):
        folder = Path(temporary)
        os.chdir(folder)  # the pages show names of folders
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        for name in what:
            width, dark = (390, True) if name == "phone" else (1280, False)
            context = browser.new_context(
                viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
            )
            page = context.new_page()
            page.set_default_timeout(PATIENCE)
            page.goto(address)
            page.wait_for_selector("#nediff-restore")
            if name == "train":
                noisy_pictures(folder)
                trained(page)
            else:
                restored(page, 8 if name == "restore" else 4)
            shoot(page, name, folder)
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
