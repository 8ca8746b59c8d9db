"""LPIPS and the usual FID by torchmetrics, for machines that may download its networks."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from nediff.errors import NediffError

Images = NDArray[np.floating]
Array = NDArray[np.float64]


class PerceptualMetrics(Protocol):
    """What both ways of measuring have in common."""

    fid_name: str
    """FID by 2048 features, or FID-768: numbers of one are not those of the other."""

    def lpips(self, restored: Images, truth: Images) -> Array:
        """Of each pair, (N,)."""

    def features(self, images: Images) -> Array:
        """What FID compares, (N, features)."""

    def prepare(self) -> None:
        """Open the networks now, so that what is missing is said before long work, not after."""


class LibraryMetrics:
    """LPIPS (AlexNet) and the 2048 features of FID, for (N, C, H, W) in [0, 1], C = 1 or 3.

    The networks are torchmetrics' own, downloaded when first asked for. FID's needs
    torch-fidelity (`pip install nediff[eval]`).
    """

    fid_name = "FID"
    batch = 16

    @cached_property
    def _alexnet(self) -> Any:
        from torchmetrics.functional.image.lpips import _LPIPS

        return self._obtained(lambda: _LPIPS(net="alex", pretrained=True))

    @cached_property
    def _inception(self) -> Any:
        from torchmetrics.image.fid import NoTrainInceptionV3

        return self._obtained(lambda: NoTrainInceptionV3("inception-v3-compat", ["2048"]))

    def prepare(self) -> None:
        """Fetch the networks now; a missing library or connection is said at once."""
        _ = self._inception, self._alexnet

    @staticmethod
    def _obtained(make: Any) -> Any:
        try:
            return make().eval()
        except ModuleNotFoundError as error:
            raise NediffError("FID needs torch-fidelity: `pip install nediff[eval]`.") from error
        except OSError as error:  # urllib's errors are of this kind
            raise NediffError(
                f"The networks of LPIPS and FID could not be downloaded ({error}). Give a folder "
                "that holds them with --weights, or leave these metrics out."
            ) from error

    def lpips(self, restored: Images, truth: Images) -> Array:
        """Of each pair, (N,)."""
        return self._map(
            lambda a, b: self._alexnet(a, b, normalize=True).flatten(), restored, truth
        )

    def features(self, images: Images) -> Array:
        """(N, 2048); torchmetrics takes pictures in 8 bits."""
        return self._map(lambda x: self._inception((255 * x).round().byte()), images)

    @torch.no_grad()
    def _map(self, function: Any, *images: Images) -> Array:
        out = []
        for start in range(0, len(images[0]), self.batch):
            stop = start + self.batch
            values = function(*(_pictures(x[start:stop]) for x in images))
            out.append(np.asarray(values, dtype=np.float64))
        return np.concatenate(out)


def _pictures(images: Images) -> torch.Tensor:
    """Clipped, three channels."""
    x = torch.from_numpy(np.clip(images, 0, 1).astype(np.float32))
    return x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x
