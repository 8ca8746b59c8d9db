"""`metrics.csv` and TensorBoard: what happened during training."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from nediff.data import atomic_path

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

METRICS_FILE = "metrics.csv"
COLUMNS = ("step", "seconds", "loss", "estimated_psnr")


class MetricsLog:
    """A row per validation; rows after the step a run resumes from are dropped.

    The file is short and replaced as a whole, so that it is never cut off in a row.
    """

    def __init__(self, folder: Path | None, resumed_step: int) -> None:
        self._folder, self._resumed_step = folder, resumed_step
        self._rows: list[dict[str, str]] = []
        self._board: SummaryWriter | None = None

    def __enter__(self) -> MetricsLog:
        if self._folder is not None:
            kept = read_metrics(self._folder)
            self._rows = [row for row in kept if int(row["step"]) <= self._resumed_step]
            self._save()
            from torch.utils.tensorboard import SummaryWriter

            board = str(self._folder / "tensorboard")
            self._board = SummaryWriter(board, purge_step=self._resumed_step + 1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            self._board.close()

    def write(self, step: int, seconds: float, loss: float, estimated_psnr: float) -> None:
        """One row, and one point per TensorBoard curve."""
        if self._board is None:
            return
        values = (str(step), f"{seconds:.1f}", repr(loss), repr(estimated_psnr))
        self._rows.append(dict(zip(COLUMNS, values, strict=True)))
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
