"""What is done to samples once they are drawn: corrected, and given what the instrument missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from nediff.correction import Correction
from nediff.divergence import expand
from nediff.problem import Problem
from nediff.unmeasured import UnmeasuredSpread, add_unseen


@dataclass(frozen=True)
class Finish:
    """The correction for this way of sampling, and the spread of what is unseen, if any.

    The spread was learned for noise levels from ``least`` on, and is left out below.
    """

    correction: Correction | None
    spread: UnmeasuredSpread | None
    least: float

    @property
    def needed(self) -> bool:
        """Whether samples are not shown as they were drawn."""
        return self.correction is not None or self.spread is not None

    def apply(
        self,
        samples: Tensor,
        estimate: Tensor,
        variance: Tensor | None,
        sigma: Tensor,
        problem: Problem,
        seeds: Sequence[int],
        first: int = 0,
        corner: tuple[int, int] = (0, 0),
    ) -> Tensor:
        """Samples (n, B, C, H, W) as they are shown.

        ``estimate`` is the posterior mean, ``variance`` that of the unseen part, both
        (B, C, H, W). The samples are those from number ``first`` on, of a part of the image that
        begins at ``corner`` (row, column).
        """
        if self.correction is not None:
            samples = self.correction.apply(
                samples, estimate, sigma, problem, list(seeds), first, corner
            )
        if self.spread is not None and variance is not None:
            variance = variance * expand(sigma >= self.least * (1 - 1e-6))
            shaped = partial(self.spread.noise, variance=variance, operator=problem.operator)
            samples = add_unseen(samples, shaped, seeds, first, corner)
        return samples
