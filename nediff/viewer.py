"""The napari plugin (napari.yaml): restore a layer; its samples and their sd become layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nediff.errors import NediffError

if TYPE_CHECKING:
    import napari.layers
    import napari.types

Layer = tuple[NDArray[np.float32], dict[str, Any], str]


def restore_with_nediff(
    image: napari.layers.Image, run: Path, samples: int = 8, seed: int = 0
) -> list[napari.types.LayerDataTuple]:
    """Restore ``image`` with a run folder; napari makes a panel of the arguments."""
    return restored_layers(np.asarray(image.data), image.rgb, image.name, run, samples, seed)


def restored_layers(
    data: NDArray[Any], rgb: bool, name: str, run: Path, samples: int, seed: int = 0
) -> list[Layer]:
    """The estimate and, from two samples on, the samples (a new first axis) and their sd.

    ``data`` is (..., H, W), with channels, where the run has several, as the axis before these, or
    the last if ``rgb``. All is in the units of the data.
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
    layers = [_layer(np.stack(estimates), data, rgb, f"{name} restored", "image")]
    if samples >= 2:
        stack = np.stack(drawn, axis=1)  # (samples, pages, C, H, W)
        layers.append(_layer(stack, data, rgb, f"{name} samples", "image"))
        sd = _layer(stack.std(axis=0, ddof=1), data, rgb, f"{name} sd", "image")
        sd[1].update({} if rgb else {"colormap": "inferno"})
        layers.append(sd)
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


def _layer(values: NDArray[Any], data: NDArray[Any], rgb: bool, name: str, kind: str) -> Layer:
    """(…, pages, C, H, W) → axes as those of ``data``, after any that come before the pages."""
    lead = values.shape[:-4]
    shown = np.moveaxis(values, -3, -1) if rgb else values
    inner = shown.shape[-3:] if rgb or values.shape[-3] > 1 else shown.shape[-2:]
    outer = data.shape[: data.ndim - len(inner)]
    out = shown.reshape(*lead, *outer, *inner).astype(np.float32)
    return out, {"name": name, "rgb": rgb}, kind
