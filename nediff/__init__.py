"""nediff: a diffusion posterior sampler learned from noisy measurements alone.

restorer = nediff.fit("folder/of/noisy/images", 0.075, minutes=20)
x_hat    = restorer.restore(y)                # MMSE estimate
samples  = restorer.sample(y, n=16, seed=0)   # (16, *y.shape)
post     = restorer.summarise(y, n=16)        # mean, sd, lower, upper
restorer.save("runs/mine"); nediff.load("runs/mine")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nediff.data import Measurements, PhotonNoise, open_measurements
    from nediff.errors import NediffError
    from nediff.problem import Problem
    from nediff.restorer import Posterior, Restorer
    from nediff.sampling import SamplerSettings
    from nediff.training import fit

    load = Restorer.load

__all__ = [
    "Measurements",
    "NediffError",
    "PhotonNoise",
    "Posterior",
    "Problem",
    "Restorer",
    "SamplerSettings",
    "__version__",
    "fit",
    "load",
    "open_measurements",
]

_HOMES = {
    "Measurements": "nediff.data",
    "NediffError": "nediff.errors",
    "PhotonNoise": "nediff.data",
    "Posterior": "nediff.restorer",
    "Problem": "nediff.problem",
    "Restorer": "nediff.restorer",
    "SamplerSettings": "nediff.sampling",
    "fit": "nediff.training",
    "open_measurements": "nediff.data",
}


def __getattr__(name: str) -> Any:
    """Import lazily: `import nediff` and `nediff --help` must not wait for torch."""
    from importlib import import_module

    if name == "load":
        return import_module("nediff.restorer").Restorer.load
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'nediff' has no attribute {name!r}")
