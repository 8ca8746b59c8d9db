"""Denoising and sampling in passes over the tiles of an image.

A local denoiser needs only some pixels around a tile (METHOD.md §3), but sampling repeats it, and
after ten steps those around would be ten times as many. So all tiles take a step before any takes
the next, and what is between the steps is kept on canvases. The noise is a function of the place,
so that the result is that of the whole image, to float tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nediff.networks import Denoiser
from nediff.problem import Problem
from nediff.randomness import derive_key, normal_field
from nediff.sampling import SOLVERS, SamplerSettings, noise_levels
from nediff.sampling.solvers import Memory, Step
from nediff.tiling.canvas import Canvas, CanvasMaker
from nediff.tiling.journal import Journal
from nediff.tiling.tiles import Size, Tile, tiles_of

Reader = Callable[[Tile], Tensor]
"""A rectangle (1, C, h, w) of an image or a measurement."""
Writer = Callable[[Tile, Tensor], None]


def reader_of(canvas: Canvas, device: torch.device) -> Reader:
    """What is on a canvas."""
    return lambda tile: torch.from_numpy(canvas.read(tile))[None].to(device)


def put(canvas: Canvas, tile: Tile, values: Tensor) -> None:
    """Values (1, C, h, w) onto a canvas."""
    canvas.write(tile, values[0].float().cpu().numpy())


@dataclass(frozen=True)
class TiledDenoiser:
    """D(y, σ) for measurements of ``size`` by ``problem``, tile by tile.

    ``margin`` is how far around a tile it looks: for local networks as far as they can feel.
    """

    denoiser: Denoiser
    problem: Problem
    size: Size
    side: int
    margin: int

    @property
    def tiles(self) -> list[Tile]:
        """In the order of all passes."""
        return tiles_of(self.size, self.side)

    def window(self, tile: Tile, margin: int | None = None) -> Tile:
        """What has to be looked at for a tile."""
        step = math.lcm(self.denoiser.multiple, self.problem.operator.fill_step)
        return tile.grown(self.margin if margin is None else margin, step, self.size)

    def problem_at(self, tile: Tile) -> Problem:
        """The part of the instrument that measured it."""
        return self.problem.with_operator(self.problem.operator.window(*tile.place))

    def filled(self, image: Reader, tile: Tile) -> Tensor:
        """fill(image) at the tile: the image itself where nothing is missing."""
        window = self.window(tile, self.problem.operator.fill_reach)
        rows, columns = tile.within(window)
        return self.problem_at(window).operator.fill(image(window))[..., rows, columns]

    def mean(self, image: Reader) -> Tensor:
        """(1, C): of fill(image), all over; what the denoiser subtracts."""
        total = torch.zeros(())  # summed up as it goes: a list of sums would lie between the tiles
        for tile in self.tiles:
            total = total + self.filled(image, tile).sum(dim=(2, 3), dtype=torch.float64)
        return (total / (self.size[0] * self.size[1])).float()

    def at(self, tile: Tile, image: Reader, sigma: Tensor, mean: Tensor) -> Tensor:
        """D(image, σ) at the tile, (1, C, h, w)."""
        window = self.window(tile)
        rows, columns = tile.within(window)
        operator = self.problem_at(window).operator
        out: Tensor = self.denoiser(image(window), sigma, operator, mean)
        return out[..., rows, columns]

    def write(self, image: Reader, sigma: Tensor, out: Writer, journal: Journal) -> None:
        """D(image, σ) all over, in one pass."""
        mean = None
        for tile in journal.left(self.tiles):
            mean = self.mean(image) if mean is None else mean
            out(tile, self.at(tile, image, sigma, mean))


class _Asked(Exception):
    """A solver wants the network's answer to this image."""

    def __init__(self, image: Tensor, level: Tensor) -> None:
        super().__init__()
        self.image, self.level = image, level


@dataclass(frozen=True)
class TiledSampler:
    """One posterior sample of a large image: sample number ``number`` of ``seed``."""

    model: TiledDenoiser
    settings: SamplerSettings
    sigma: Tensor
    """(1,)."""
    seed: int
    number: int
    canvases: CanvasMaker
    journal: Journal

    def write(self, y: Reader, out: Writer) -> None:
        """Walk from y to σ_min, and put D(z, σ_min) where it belongs."""
        sigma_min = self.sigma * self.settings.sigma_min_ratio
        levels = noise_levels(self.sigma, sigma_min, self.settings.steps, self.settings.gamma)
        z, before = y, None
        for i in range(len(levels) - 1):
            z, before = self._step(i, levels, z, before)
        self.model.write(z, sigma_min.to(self.sigma.dtype), out, self.journal)

    def _step(
        self, i: int, levels: Tensor, z: Reader, before: Reader | None
    ) -> tuple[Reader, Reader]:
        """All tiles from level i to the next: the new z, and the first D, which solvers remember.

        A pass for each answer that the solver wants of the network, and one to draw the sum.
        """
        first = self.model.tiles[0]
        answers: list[Reader] = []
        stage = Stage(self, i, levels, z, before)
        while (level := stage.asked(first, answers)) is not None:
            canvas = self._canvas(f"answer{len(answers)}-{i % 2}")

            def image(tile: Tile, known: Sequence[Reader] = tuple(answers)) -> Tensor:
                return stage.request(tile, known).float()

            def keep(tile: Tile, values: Tensor, canvas: Canvas = canvas) -> None:
                put(canvas, tile, self.model.problem_at(tile).A(values))

            self.model.write(image, level.to(self.sigma.dtype), keep, self.journal)
            answers.append(reader_of(canvas, self.sigma.device))
        canvas = self._canvas(f"z-{i % 2}")
        for tile in self.journal.left(self.model.tiles):
            put(canvas, tile, stage.result(tile, answers))
        return reader_of(canvas, self.sigma.device), answers[0]

    def _canvas(self, name: str) -> Canvas:
        operator = self.model.problem.operator
        channels = operator.measured_channels(self.model.problem.channels)
        return self.canvases(name, (channels, *self.model.size))

    def noise(self, i: int, tile: Tile) -> Tensor:
        """The noise of step i at the tile, as the instrument has it."""
        key = derive_key("sample", self.seed, self.number, i)
        reach, place = self.model.problem.operator.noise_reach, self.model.problem_at(tile)
        channels = place.operator.measured_channels(self.model.problem.channels)
        field = normal_field(
            [key],
            channels,
            tile.height + 2 * reach,
            tile.width + 2 * reach,
            top=tile.top,
            left=tile.left,
            device=self.sigma.device,
        )
        made = place.noise(field.double())
        return made[..., reach : reach + tile.height, reach : reach + tile.width]


@dataclass(frozen=True)
class Stage:
    """One step of a solver at any rectangle, given what the network has answered so far.

    Solvers work pixel by pixel but for the network, so a step is run again with the answers
    known, until it asks for one that is not.
    """

    sampler: TiledSampler
    i: int
    levels: Tensor
    z: Reader
    before: Reader | None

    def asked(self, tile: Tile, answers: Sequence[Reader]) -> Tensor | None:
        """The level (1,) at which the network is asked next; None if it is not."""
        try:
            self.result(tile, answers)
        except _Asked as asked:
            return asked.level
        return None

    def request(self, tile: Tile, answers: Sequence[Reader]) -> Tensor:
        """The image that the network is asked about."""
        try:
            self.result(tile, answers)
        except _Asked as asked:
            return asked.image
        raise AssertionError("the solver asks for nothing more")

    def result(self, tile: Tile, answers: Sequence[Reader]) -> Tensor:
        """z of the next level."""
        known = iter([answer(tile).double() for answer in answers])

        def denoise(image: Tensor, level: Tensor) -> Tensor:
            for answer in known:
                return answer
            raise _Asked(image, level)

        a, b = self.levels[self.i], self.levels[self.i + 1]
        z = self.z(tile).double()
        # what is asked first does not depend on the noise, which takes long to draw
        noise = self.sampler.noise(self.i, tile) if answers else torch.zeros_like(z)
        out, _ = self._solver(z, denoise, a, b, noise, self._memory(tile))
        return out

    @property
    def _solver(self) -> Step:
        return SOLVERS[self.sampler.settings.solver]

    def _memory(self, tile: Tile) -> Memory | None:
        """As the step before left it: its first answer, and ln(a/b)."""
        if self.before is None:
            return None
        log_step = (self.levels[self.i - 1] / self.levels[self.i]).log()
        return Memory(self.before(tile).double(), log_step)
