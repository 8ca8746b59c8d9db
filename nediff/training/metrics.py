"""`metrics.csv` and TensorBoard: what happened during training."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nediff.data import atomic_path
from nediff.training.tracking import Tracking

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

METRICS_FILE = "metrics.csv"
COLUMNS = ("step", "seconds", "loss", "estimated_psnr")


class MetricsLog:
    """A row per validation; rows after the step a run resumes from are dropped.

    The file is short and replaced as a whole, so that it is never cut off in a row. ``history``
    are the rows as the state of a run remembers them; without any, those of the file are kept.
    """

    def __init__(
        self,
        folder: Path | None,
        resumed_step: int,
        history: Iterable[Sequence[str]] = (),
        tracking: Tracking | None = None,
    ) -> None:
        self._folder, self._resumed_step = folder, resumed_step
        self._tracking = tracking
        self._rows = [dict(zip(COLUMNS, row, strict=False)) for row in history]
        self._board: SummaryWriter | None = None

    def __enter__(self) -> MetricsLog:
        if self._folder is not None:
            kept = self._rows or read_metrics(self._folder)
            self._rows = [row for row in kept if int(row["step"]) <= self._resumed_step]
            self._save()
            from torch.utils.tensorboard import SummaryWriter

            board = str(self._folder / "tensorboard")
            self._board = SummaryWriter(board, purge_step=self._resumed_step + 1)
        if self._tracking is not None:
            self._tracking.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            self._board.close()
        if self._tracking is not None:
            self._tracking.finish()

    @property
    def history(self) -> tuple[tuple[str, ...], ...]:
        """All rows."""
        return tuple(tuple(row.values()) for row in self._rows)

    def write(self, step: int, seconds: float, loss: float, estimated_psnr: float) -> None:
        """One row, and one point per TensorBoard curve."""
        if self._tracking is not None:
            curves = {"seconds": seconds, "loss": loss, "estimated_psnr": estimated_psnr}
            self._tracking.log(step, curves)
        values = (str(step), f"{seconds:.1f}", repr(loss), repr(estimated_psnr))
        self._rows.append(dict(zip(COLUMNS, values, strict=True)))
        if self._board is None:
            return
        self._save()
        self._board.add_scalar("loss", loss, step)
        self._board.add_scalar("estimated_psnr", estimated_psnr, step)
        self._board.flush()

    def _save(self) -> None:
        if self._folder is None:
            return
        with (
            atomic_path(self._folder / METRICS_FILE) as temporary,
            temporary.open("w", newline="") as file,
        ):
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(self._rows)


def read_metrics(folder: Path) -> list[dict[str, str]]:
    """The complete rows of a run's metrics.csv, or none."""
    path = folder / METRICS_FILE
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = [{name: row.get(name) or "" for name in COLUMNS} for row in csv.DictReader(file)]
    return [row for row in rows if row["step"].isdigit() and all(row.values())]
