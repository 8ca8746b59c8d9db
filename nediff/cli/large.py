"""`nediff restore` of a file whose images are too large for one look: part by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nediff.cli.allocation import give_back_free_memory
from nediff.cli.console import say
from nediff.data import Form, ImageFile, Sheet, Sigmas, atomic_path
from nediff.errors import NediffError
from nediff.processes import ALONE, Processes
from nediff.restorer import Restorer
from nediff.sampling.solvers import network_calls
from nediff.tiling import Journal, LargeImage, Tile, on_disk, tiles_of

WRITTEN = "written"
"""In the folder of unfinished work: all parts are there, and only have to be moved."""
DONE, SIDE = "done", "side"
"""There, too: how many squares are done, and of which side; a count of others would be wrong."""

LEAST_TILE = 64
TIDY_EVERY = 16
"""Squares after which free memory goes back to the system; after each, it would cost a third."""


def out_of_memory(error: Exception) -> bool:
    """Whether this is what Python or torch says when there is no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(words in str(error) for words in ("allocate memory", "not enough memory"))


def use_less_memory(restorer: Restorer, file: ImageFile) -> None:
    """Smaller parts from now on; if that cannot be, a sentence."""
    height, width = file.size()
    what = f"There is not enough memory for {file.name} ({width} × {height} pixels)"
    if restorer.problem.operator.fill_reach is None:
        raise NediffError(
            f"{what}; measurements of this kind ({restorer.problem.kind}) are restored whole. Cut "
            "it into smaller ones, or use a machine with more."
        )
    if restorer.tiled_from > 0 and not restorer.in_parts(restorer.problem, (height, width)):
        restorer.tiled_from = 0
    elif restorer.tile >= 2 * LEAST_TILE:
        restorer.tile //= 2
    else:
        raise NediffError(
            f"{what}, not even in squares of {restorer.tile} pixels (--tile); close other programs."
        )
    say(f"Careful: memory is short; going on in squares of {restorer.tile} pixels (--tile)")


@dataclass(frozen=True)
class LargeFile:
    """All images of one file: what is asked for, and the folder of what is not finished yet.

    ``forms`` and ``paths`` are of the outputs, by their names: restored, mean, sd, sample 0, …
    """

    restorer: Restorer
    file: ImageFile
    forms: dict[str, Form]
    paths: dict[str, Path]
    samples: int
    seed: int
    sigmas: Sigmas | None
    work: Path
    processes: Processes = ALONE
    """Those that share the parts; all on one machine."""

    def restore(self, advance: Callable[[float], None]) -> None:
        """Everything that is not done yet; outputs appear when all of them are complete."""
        if side := self.processes.told(self._begin):
            self.restorer.tile = side
            share = self.file.n_images * (1 + self.samples) / self._units

            def advanced(seen: int) -> None:
                advance(share)
                if seen % TIDY_EVERY == 0:
                    give_back_free_memory()

            journal = Journal(self.work / DONE, advanced, self.processes)
            for page in range(self.file.n_images):
                self._page(page, journal)
            self.processes.told((self.work / WRITTEN).touch)
        self.processes.told(self._finish)

    def _begin(self) -> int:
        """Make what all write to; the side of the squares, 0 if everything was written before."""
        self.work.mkdir(parents=True, exist_ok=True)
        if (self.work / WRITTEN).exists():
            return 0
        if self.processes.several:
            assert self._sheets
        return self._agreed_side()

    def _agreed_side(self) -> int:
        """The side that what is done was counted with; if that is none to go on with, anew.

        It is smaller than what is asked for where memory was short, and larger than what there
        is memory for where it has become short since.
        """
        path, largest = self.work / SIDE, self.restorer.tile
        text = path.read_bytes()[:32] if path.exists() else b""
        if text.isdigit() and 0 < int(text) <= largest:
            return int(text)
        (self.work / DONE).unlink(missing_ok=True)
        with atomic_path(path) as temporary:
            temporary.write_text(str(largest), encoding="ascii")
        return largest

    def _finish(self) -> None:
        """Move all outputs to their places."""
        for name, path in self.paths.items():
            place = self._sheet_path(name)
            if any(self.work.glob(f"{place.name}.*")):  # else it was moved before
                Sheet(self.forms[name], place).finish(path)

    def _sheet_path(self, name: str) -> Path:
        return self.work / name.replace(" ", "-")

    @cached_property
    def _sheets(self) -> dict[str, Sheet]:
        shared = self.processes.several
        return {
            name: Sheet(form, self._sheet_path(name), shared) for name, form in self.forms.items()
        }

    @property
    def _tiles(self) -> list[Tile]:
        return tiles_of(self.file.size(), self.restorer.tile)

    @property
    def _units(self) -> int:
        """Of the journal, in all: passes over the tiles of every image."""
        settings = self.restorer.sampler
        calls, moves = network_calls(settings.solver, settings.steps), settings.steps - 1
        passes = 1 + self.samples * (calls + moves) + (self.samples > 0)
        return self.file.n_images * len(self._tiles) * passes

    def _page(self, page: int, journal: Journal) -> None:
        name = self.file.page_name(page)
        sigma = None if self.sigmas is None else self.sigmas.of(name)
        level, alpha = self.restorer.levels(1, sigma)
        image = self._image(page, level, float(alpha), journal)

        def write(output: str) -> Callable[[Tile, Tensor], None]:
            def put(tile: Tile, values: Tensor) -> None:
                shown = self.restorer.range.from_unit((values[0] / float(alpha)).cpu().numpy())
                self._sheets[output].put(page, tile.rows, tile.columns, shown)

            return put

        image.restore(write("restored"))
        for number in range(self.samples):
            image.sample(number, self.seed, write(f"sample {number}"))
        if self.samples:
            for tile in journal.left(self._tiles):
                self._summarise(page, tile)

    def _image(self, page: int, level: Tensor, alpha: float, journal: Journal) -> LargeImage:
        restorer, problem = self.restorer, self.restorer.problem

        def read(tile: Tile) -> Tensor:
            values = restorer.range.to_unit(self.file.read_crop(page, *tile.place))
            self.file.forget()
            here = problem.with_operator(problem.operator.window(*tile.place))
            return alpha * here.lift(torch.from_numpy(values)[None].to(restorer.device))

        canvases = on_disk(self.work)
        return restorer.large(read, self.file.size(), level, restorer.sampler, canvases, journal)

    def _summarise(self, page: int, tile: Tile) -> None:
        """Mean and standard deviation of the samples of a tile."""
        place = (page, tile.rows, tile.columns)
        drawn = [self._sheets[f"sample {k}"].read(*place) for k in range(self.samples)]
        self._sheets["mean"].put(*place, np.mean(drawn, axis=0))
        if self.samples >= 2:
            self._sheets["sd"].put(*place, np.std(drawn, axis=0, ddof=1))
