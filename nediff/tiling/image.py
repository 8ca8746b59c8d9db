"""One large image: its estimate and its posterior samples, tile by tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nediff.finish import Finish
from nediff.sampling import SamplerSettings
from nediff.tiling.canvas import Canvas, CanvasMaker, MemoryCanvas
from nediff.tiling.journal import Journal
from nediff.tiling.passes import Reader, TiledDenoiser, TiledSampler, Writer, put, reader_of
from nediff.tiling.tiles import Tile


@dataclass(frozen=True)
class LargeImage:
    """What a Restorer makes of the measurement ``y``, of any size.

    ``sigma`` (1,) is its noise level. The estimate must be asked for before samples.
    """

    model: TiledDenoiser
    y: Reader
    sigma: Tensor
    settings: SamplerSettings
    finish: Finish
    canvases: CanvasMaker
    journal: Journal

    @torch.no_grad()
    def restore(self, out: Writer) -> None:
        """D(y, σ), kept for the samples too if they need it."""
        kept = self._estimate if self.finish.needed else None

        def keep(tile: Tile, values: Tensor) -> None:
            if kept is not None:
                put(kept, tile, values)
            out(tile, values)

        self.model.write(self.y, self.sigma, keep, self.journal)

    @torch.no_grad()
    def sample(self, number: int, seed: int, out: Writer) -> None:
        """Posterior sample ``number`` of this seed."""
        sampler = TiledSampler(
            self.model, self.settings, self.sigma, seed, number, self.canvases, self.journal
        )
        mean = None if self.finish.spread is None else self.model.mean(self.y)

        def finished(tile: Tile, x: Tensor) -> None:
            shown = self._finished(tile, x, number, seed, mean) if self.finish.needed else x
            out(tile, shown)

        sampler.write(self.y, finished)

    @property
    def _estimate(self) -> Canvas:
        return self.canvases("estimate", (self.model.problem.channels, *self.model.size))

    def _finished(
        self, tile: Tile, x: Tensor, number: int, seed: int, mean: Tensor | None
    ) -> Tensor:
        estimate = reader_of(self._estimate, x.device)
        variance = None if mean is None else self._variance(tile, estimate, mean)
        here, corner = self.model.problem_at(tile), (tile.top, tile.left)
        return self.finish.apply(
            x[None], estimate(tile), variance, self.sigma, here, [seed], number, corner
        )[0]

    def _variance(self, tile: Tile, estimate: Reader, mean: Tensor) -> Tensor:
        """Of what is unseen at the tile, by the network that says so."""
        assert self.finish.spread is not None
        window = self.model.window(tile)
        rows, columns = tile.within(window)
        operator = self.model.problem_at(window).operator
        y, x = self.y(window), estimate(window)
        return self.finish.spread.variance(y, x, self.sigma, operator, mean)[..., rows, columns]


def restored_in_memory(image: LargeImage) -> Tensor:
    """The estimate, (1, C, H, W)."""
    out = MemoryCanvas(np.empty((image.model.problem.channels, *image.model.size), np.float32))
    image.restore(partial(put, out))
    return torch.from_numpy(out.array)[None].to(image.sigma.device)


def sampled_in_memory(image: LargeImage, n: int, seed: int) -> Tensor:
    """n posterior samples, (n, 1, C, H, W)."""
    if image.finish.needed:
        image.restore(lambda tile, values: None)
    out = np.empty((n, image.model.problem.channels, *image.model.size), np.float32)
    for number in range(n):
        image.sample(number, seed, partial(put, MemoryCanvas(out[number])))
    return torch.from_numpy(out)[:, None].to(image.sigma.device)
