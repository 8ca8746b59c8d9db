"""The napari plugin: its layers, its manifest and, where there is a display, its panel."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tifffile

from nediff.errors import NediffError
from nediff.restorer import Restorer
from nediff.viewer import Place, restore_with_nediff, restored_layers
from tests.command import SIGMA, TINY, float_folder, noisy, succeeded

MANIFEST = Path(__file__).parents[1] / "nediff" / "napari.yaml"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`grey` and `colour`."""
    folder = tmp_path_factory.mktemp("viewer")
    float_folder(folder / "a")
    (folder / "b").mkdir()
    for k in range(3):
        colours = np.stack([noisy(k), noisy(k + 3), noisy(k + 6)], axis=-1)
        tifffile.imwrite(folder / "b" / f"{k}.tif", colours.astype(np.float32), photometric="rgb")
    for name, data in (("grey", "a"), ("colour", "b")):
        command = ("train", folder / data, "--sigma", SIGMA, "--steps", 2, "--out", folder / name)
        succeeded(*command, *TINY)
    return folder


def test_a_layer_becomes_three(runs: Path) -> None:
    y = noisy(5).astype(np.float32)
    restored, samples, sd = restored_layers(y, False, "cells", runs / "grey", 4, seed=3)
    restorer = Restorer.load(runs / "grey")
    r, unit = restorer.range, restorer.range.to_unit(y.astype(np.float64))
    assert np.allclose(restored[0], r.from_unit(restorer.restore(unit)), atol=1e-5)
    drawn = r.from_unit(restorer.sample(unit, 4, 3))
    assert np.allclose(samples[0], drawn, atol=1e-5)
    assert np.allclose(sd[0], drawn.std(0, ddof=1), atol=1e-5)
    assert [layer[1]["name"] for layer in (restored, samples, sd)] == [
        "cells restored",
        "cells samples",
        "cells sd",
    ]
    assert len(restored_layers(y, False, "cells", runs / "grey", 0)) == 1


@pytest.mark.parametrize("shape", [(40, 44), (2, 40, 44), (2, 3, 40, 44)])
def test_stacks_keep_their_axes(runs: Path, shape: tuple[int, ...]) -> None:
    data = np.broadcast_to(noisy(1), shape)
    restored, samples, sd = restored_layers(data, False, "s", runs / "grey", 2)
    assert restored[0].shape == sd[0].shape == shape
    assert samples[0].shape == (2, *shape)


def test_colour_layers(runs: Path) -> None:
    data = np.stack([noisy(k) for k in range(3)], axis=-1)
    as_rgb = restored_layers(data, True, "c", runs / "colour", 2)
    as_planes = restored_layers(np.moveaxis(data, -1, 0), False, "c", runs / "colour", 2)
    assert as_rgb[0][0].shape == data.shape
    assert as_rgb[1][0].shape == (2, *data.shape)
    assert np.array_equal(np.moveaxis(as_rgb[0][0], -1, 0), as_planes[0][0])
    with pytest.raises(NediffError, match="channel"):
        restored_layers(data, True, "c", runs / "grey", 0)


def test_results_lie_over_their_layer(runs: Path) -> None:
    """Pixels of 0.3 µm, a stack of 2 µm that begins at 5: the axis of the samples has neither."""
    data = np.broadcast_to(noisy(1), (2, 40, 44))
    layer = SimpleNamespace(
        data=data,
        rgb=False,
        name="s",
        scale=np.array([2.0, 0.3, 0.3]),
        translate=np.array([5.0, 10.0, 20.0]),
    )
    restored, samples, sd = restore_with_nediff(layer, runs / "grey", 2)
    for made in (restored, sd):
        assert made[1]["scale"] == (2.0, 0.3, 0.3)
        assert made[1]["translate"] == (5.0, 10.0, 20.0)
    assert samples[1]["scale"] == (1.0, 2.0, 0.3, 0.3)
    assert samples[1]["translate"] == (0.0, 5.0, 10.0, 20.0)


def test_colours_have_the_type_of_their_layer(runs: Path) -> None:
    """napari shows floats from 0 to 1 and bytes from 0 to 255, whatever they mean."""
    bright = np.stack([noisy(k) for k in range(3)], axis=-1)
    data = np.clip(255 * bright, 0, 255).astype(np.uint8)
    place = Place((0.3, 0.3), (1.0, 2.0))
    restored, samples, sd = restored_layers(data, True, "c", runs / "colour", 3, 0, place)
    restorer = Restorer.load(runs / "colour")
    r, planes = restorer.range, np.moveaxis(data, -1, 0).astype(np.float64)
    exact = np.moveaxis(r.from_unit(restorer.restore(r.to_unit(planes))), 0, -1)
    assert restored[0].dtype == samples[0].dtype == np.uint8
    assert np.array_equal(restored[0], np.clip(np.rint(exact), 0, 255).astype(np.uint8))
    assert (restored[1]["scale"], samples[1]["scale"]) == ((0.3, 0.3), (1.0, 0.3, 0.3))
    assert samples[0].shape == (3, *data.shape)
    # of the sd one number for the three colours, in the data's units
    drawn = r.from_unit(restorer.sample(r.to_unit(planes), 3, 0))
    assert not sd[1]["rgb"]
    assert sd[1]["scale"] == (0.3, 0.3)
    expected = np.sqrt(drawn.var(0, ddof=1).mean(0))
    assert np.allclose(sd[0], expected, rtol=1e-4, atol=1e-4 * expected.max())


def test_the_manifest_is_valid() -> None:
    npe2 = pytest.importorskip("npe2", reason="checking the manifest needs npe2 (the dev extra)")
    manifest = npe2.PluginManifest.from_file(MANIFEST)
    manifest.validate_imports()
    assert [w.display_name for w in manifest.contributions.widgets] == ["Restore with nediff"]


def test_the_panel_restores_in_a_real_window(runs: Path) -> None:
    """As a user does: choose layer and folder, press the button, find three layers over the first.

    Needs napari with Qt and a display: ``xvfb-run pytest tests/test_viewer.py``.
    """
    napari = pytest.importorskip("napari", reason="needs napari (pip install nediff[napari])")
    pytest.importorskip("qtpy.QtWidgets", reason="needs Qt (pip install 'napari[pyqt6]')")
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        pytest.skip("needs a display, which xvfb-run gives")
    viewer = napari.Viewer(show=False)
    try:
        viewer.add_image(noisy(1), name="cells", scale=(0.3, 0.3))
        _, panel = viewer.window.add_plugin_dock_widget("nediff", "Restore with nediff")
        assert str(panel.run.mode) == "FileDialogMode.EXISTING_DIRECTORY"
        panel.run.value, panel.samples.value = runs / "grey", 3
        panel.call_button.native.click()
        found = {layer.name: layer for layer in viewer.layers}
        assert list(found) == ["cells", "cells restored", "cells samples", "cells sd"]
        assert found["cells samples"].data.shape == (3, *noisy(1).shape)
        assert all(tuple(layer.scale[-2:]) == (0.3, 0.3) for layer in viewer.layers)
        panel.run.value = runs / "nowhere"
        with pytest.raises(NediffError, match="no such folder"):
            panel()
    finally:
        viewer.close()


def test_napari_takes_the_layers(runs: Path) -> None:
    layers = pytest.importorskip(
        "napari.layers", reason="needs napari (pip install nediff[napari])"
    )
    data = np.stack([noisy(k) for k in range(3)], axis=-1)
    for made in (
        *restored_layers(noisy(1), False, "g", runs / "grey", 2),
        *restored_layers(data, True, "c", runs / "colour", 2),
    ):
        layer = layers.Layer.create(*made)
        assert isinstance(layer, layers.Image)
        assert layer.rgb == made[1]["rgb"]
    from magicgui.signature import magic_signature

    assert list(magic_signature(restore_with_nediff).parameters) == [
        "image",
        "run",
        "samples",
        "seed",
    ]
