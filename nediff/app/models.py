"""What restores: a run of the user's, or the network that comes with the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nediff.app.opening import Opened
from nediff.data import IntensityRange, StabilisedRange
from nediff.errors import NediffError
from nediff.operators import Coloured
from nediff.pretrained import load_pretrained
from nediff.restorer import MOST_NOISE, Restorer


@dataclass(frozen=True)
class Model:
    """Loaded once and only read: sessions share it."""

    name: str
    run: Restorer | None
    """None for the network that comes along."""

    @property
    def range(self) -> IntensityRange | None:
        """The one images must be in; None where each image may have its own."""
        return None if self.run is None else self.run.range

    @property
    def needs_sigma(self) -> bool:
        """Whether σ is the user's to say: not where the noise is known by the signal."""
        return self.run is None or not isinstance(self.run.range, StabilisedRange)

    @property
    def sigma(self) -> float | None:
        """The level the run was trained at, where it was one, in unit range."""
        if self.run is None or self.run.config.data.sigmas is not None:
            return None
        return self.run.problem.sigma

    @property
    def estimable(self) -> bool:
        """Whether σ can be told from an image: it must be seen in every pixel."""
        return self.run is None or self.run.problem.kind in ("denoising", "blur")

    @property
    def white(self) -> bool:
        """Whether it was made for noise that does not go on from pixel to pixel."""
        return self.run is None or not isinstance(self.run.problem.operator, Coloured)

    def restorer(self, opened: Opened) -> Restorer:
        """The one for an image of so many channels."""
        channels = len(opened.values)
        if self.run is None:
            return load_pretrained(channels, opened.range)
        wanted = self.run.config.data.channels
        if channels != wanted:
            raise NediffError(
                f"{opened.name} has {channels} channel(s); this run was trained on {wanted}."
            )
        self.run.problem.check_size(*opened.values.shape[-2:])
        return self.run


def open_model(run: Path | None) -> Model:
    """The run in a folder, or what comes along."""
    if run is None:
        return Model("the pretrained network", None)
    return Model(run.resolve().name, Restorer.load(run))


def largest_sigma(restorer: Restorer) -> float:
    """The most noise it takes, in unit range."""
    return MOST_NOISE * restorer.problem.sigma
