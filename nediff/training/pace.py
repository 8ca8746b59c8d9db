"""How long a step takes in each phase of a run, and the drawing of samples in between."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

from nediff.training.loop import Trainer
from nediff.training.rehearsal import share_of_work

Clock = Callable[[], float]


class Pace:
    """Measures a Trainer that is thrown away afterwards, round by round.

    Rounds of several trainers can take turns, so that what else the machine does slows all of
    them alike. ``clock`` may be the time on the wall or that of the processor.
    """

    def __init__(self, trainer: Trainer, clock: Clock = time.perf_counter) -> None:
        self.trainer, self._clock, self._round = trainer, clock, 0
        self._drawing, recipe = 0.0, trainer.config.recipe
        starts = {0.0}
        if recipe.rehearse:
            self._drawing = self._measure_drawing()
            starts.add(recipe.rehearse_from)
        if recipe.pool != (1,) and recipe.pool_until < 1:
            starts.add(recipe.pool_until)
        self._starts = sorted(starts)
        """Of the phases, as shares of the run."""
        self._seconds: list[list[float]] = [[] for _ in self._starts]

    def measure(self, steps: int = 3) -> float:
        """One round: so many steps of each phase; returns the seconds it took."""
        total = 0.0
        for start, seconds in zip(self._starts, self._seconds, strict=True):
            first = math.ceil(start * self.trainer.config.training.steps)
            started = self._clock()
            for k in range(steps):
                loss = self.trainer.step(first + steps * self._round + k)
            loss.item()  # a GPU has finished when this is known
            took = self._clock() - started
            seconds.append(took / steps)
            total += took
        self._round += 1
        return total

    def seconds_per_step(self) -> float:
        """The mean over a run; the first half of the rounds, which also fill caches, left out."""
        late = [statistics.median(s[len(s) // 2 :]) for s in self._seconds]
        ends = [*self._starts[1:], 1.0]
        shares = [end - start for start, end in zip(self._starts, ends, strict=True)]
        return sum(s * t for s, t in zip(shares, late, strict=True)) + self._drawing

    def _measure_drawing(self) -> float:
        """What drawing samples adds to each step, measured on a few, which are then used."""
        side, batch = self.trainer.side, self.trainer.config.training.batch
        self.trainer.rehearsal_of(1)  # caches
        started = self._clock()
        squares = 4 * self.trainer.processes.count
        self.trainer.rehearsal = drawn = self.trainer.rehearsal_of(squares * side**2)
        per_pixel = (self._clock() - started) / drawn.x[:, 0].numel()
        return per_pixel * share_of_work(self.trainer.config.recipe) * batch * side**2
