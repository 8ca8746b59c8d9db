"""How long a step takes: before and after a run begins to rehearse, and the drawing in between."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from nediff.training.loop import Trainer, rehearsal_start
from nediff.training.rehearsal import SHARE_OF_WORK

Clock = Callable[[], float]


class Pace:
    """Measures a Trainer that is thrown away afterwards, round by round.

    Rounds of several trainers can take turns, so that what else the machine does slows all of
    them alike. ``clock`` may be the time on the wall or that of the processor.
    """

    def __init__(self, trainer: Trainer, clock: Clock = time.perf_counter) -> None:
        self.trainer, self._clock, self._round = trainer, clock, 0
        self._drawing = 0.0
        self._phases = [0]
        if trainer.config.recipe.rehearse:
            self._drawing = self._measure_drawing()
            self._phases.append(rehearsal_start(trainer.config))
        self._seconds: list[list[float]] = [[] for _ in self._phases]

    def measure(self, steps: int = 3) -> float:
        """One round: so many steps of each phase; returns the seconds it took."""
        total = 0.0
        for first, seconds in zip(self._phases, self._seconds, strict=True):
            started = self._clock()
            for k in range(steps):
                self.trainer.step(first + steps * self._round + k)
            took = self._clock() - started
            seconds.append(took / steps)
            total += took
        self._round += 1
        return total

    def seconds_per_step(self) -> float:
        """The mean over a run; the first half of the rounds, which also fill caches, left out."""
        late = [statistics.median(s[len(s) // 2 :]) for s in self._seconds]
        if len(late) == 1:
            return late[0]
        before = self.trainer.config.recipe.rehearse_from
        return before * late[0] + (1 - before) * late[1] + self._drawing

    def _measure_drawing(self) -> float:
        """What drawing samples adds to each step, measured on a few, which are then used."""
        side, batch = self.trainer.side, self.trainer.config.training.batch
        self.trainer.rehearsal_of(1)  # caches
        started = self._clock()
        self.trainer.rehearsal = drawn = self.trainer.rehearsal_of(4 * side**2)
        per_pixel = (self._clock() - started) / drawn.x[:, 0].numel()
        return per_pixel * SHARE_OF_WORK * batch * side**2
