"""The napari plugin (napari.yaml): restore a layer; its samples and their sd become layers."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nediff.errors import NediffError

if TYPE_CHECKING:
    import napari.layers
    import napari.types

Layer = tuple[NDArray[Any], dict[str, Any], str]


@dataclass(frozen=True)
class Place:
    """Where a layer is: the size of its pixels and where the first one is, for each axis."""

    scale: tuple[float, ...]
    translate: tuple[float, ...]

    def told(self, shape: tuple[int, ...], data: tuple[int, ...]) -> dict[str, Any]:
        """For a layer of ``shape`` (no colours) made of one of shape ``data``; new axes come first.

        Nothing for an image of another size, as super-resolution makes it.
        """
        new = len(shape) - len(data)
        if shape[new:] != data or len(self.scale) != len(data):
            return {}
        return {"scale": (1.0,) * new + self.scale, "translate": (0.0,) * new + self.translate}


def restore_panel() -> Any:
    """What *Plugins → Restore with nediff* opens: the arguments, with a folder to choose."""
    from magicgui import magicgui

    return magicgui(
        restore_with_nediff,
        call_button="Restore",
        run={"mode": "d", "label": "run folder"},
        samples={"min": 0, "max": 64},
    )


def restore_with_nediff(
    image: napari.layers.Image, run: pathlib.Path, samples: int = 8, seed: int = 0
) -> list[napari.types.LayerDataTuple]:
    """Restore ``image`` with a run folder; napari makes a panel of the arguments.

    It reads their types as text, and finds only what the text says where to import from.
    """
    place = Place(tuple(map(float, image.scale)), tuple(map(float, image.translate)))
    data = np.asarray(image.data)
    return restored_layers(data, image.rgb, image.name, run, samples, seed, place)


def restored_layers(
    data: NDArray[Any],
    rgb: bool,
    name: str,
    run: Path,
    samples: int,
    seed: int = 0,
    place: Place | None = None,
) -> list[Layer]:
    """The estimate and, from two samples on, the samples (a new first axis) and their sd.

    ``data`` is (..., H, W), with channels, where the run has several, as the axis before these, or
    the last if ``rgb``. All is in the units of the data, and over it if ``place`` is its place.
    Colours are shown by napari as their type says, so ``rgb`` ones are of the type of the data;
    the sd of these is one number for the three.
    """
    from nediff.restorer import Restorer

    restorer = Restorer.load(run)
    pages = _pages(data, rgb, restorer.config.data.channels, run)
    r = restorer.range
    estimates, drawn = [], []
    for page in pages:
        y = r.to_unit(page)
        estimates.append(r.from_unit(restorer.restore(y)))
        if samples >= 2:
            drawn.append(r.from_unit(restorer.sample(y, samples, seed)))
    layers = [_layer(np.stack(estimates), data, rgb, f"{name} restored", place)]
    if samples >= 2:
        stack = np.stack(drawn, axis=1)  # (samples, pages, C, H, W)
        layers.append(_layer(stack, data, rgb, f"{name} samples", place))
        sd = stack.std(axis=0, ddof=1)
        plane = data[..., 0] if rgb else data
        if rgb:
            sd = np.sqrt(np.square(sd).mean(axis=-3, keepdims=True))
        layers.append(_layer(sd, plane, False, f"{name} sd", place))
        layers[-1][1]["colormap"] = "inferno"
    return layers


def _pages(data: NDArray[Any], rgb: bool, channels: int, run: Path) -> NDArray[np.float64]:
    """(..., H, W), (..., C, H, W) or (..., H, W, C) → (pages, C, H, W)."""
    values = np.moveaxis(data, -1, -3) if rgb else data
    if not rgb and channels == 1:
        values = values[..., None, :, :]
    if values.ndim < 3 or values.shape[-3] != channels:
        raise NediffError(
            f"{run} was trained on images with {channels} channel(s); a layer of shape "
            f"{data.shape} has others."
        )
    return values.reshape(-1, *values.shape[-3:]).astype(np.float64)


def _layer(
    values: NDArray[Any], data: NDArray[Any], rgb: bool, name: str, place: Place | None
) -> Layer:
    """(…, pages, C, H, W) → axes as those of ``data``, after any that come before the pages."""
    lead = values.shape[:-4]
    shown = np.moveaxis(values, -3, -1) if rgb else values
    inner = shown.shape[-3:] if rgb or values.shape[-3] > 1 else shown.shape[-2:]
    outer = data.shape[: data.ndim - len(inner)]
    out = shown.reshape(*lead, *outer, *inner)
    out = _as_colours(out, data.dtype) if rgb else out.astype(np.float32)
    about: dict[str, Any] = {"name": name, "rgb": rgb}
    if place is not None:
        colours = 1 if rgb else 0  # that axis has no place
        about |= place.told(out.shape[: out.ndim - colours], data.shape[: data.ndim - colours])
    return out, about, "image"


def _as_colours(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Rounded and clipped to a type of integers; floats stay floats."""
    if dtype.kind not in "ui":
        return values.astype(np.float32)
    info = np.iinfo(dtype)
    out: NDArray[Any] = np.clip(np.rint(values), info.min, info.max).astype(dtype)
    return out
