"""`metrics.csv` and TensorBoard: what happened during training."""

from __future__ import annotations

import csv
from pathlib import Path

COLUMNS = ("step", "seconds", "loss", "estimated_psnr")


class MetricsLog:
    """Appends a row per validation; rows after the step a run resumes from are dropped."""

    def __init__(self, folder: Path | None, resumed_step: int) -> None:
        self._path = None if folder is None else folder / "metrics.csv"
        self._board = None
        if folder is None or self._path is None:
            return
        kept = [r for r in read_metrics(folder) if int(r["step"]) <= resumed_step]
        with self._path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(kept)
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=resumed_step + 1)

    def write(self, step: int, seconds: float, loss: float, estimated_psnr: float) -> None:
        """One row, and one point per TensorBoard curve."""
        if self._path is None or self._board is None:
            return
        with self._path.open("a", newline="") as file:
            csv.writer(file).writerow([step, f"{seconds:.1f}", repr(loss), repr(estimated_psnr)])
        self._board.add_scalar("loss", loss, step)
        self._board.add_scalar("estimated_psnr", estimated_psnr, step)
        self._board.flush()


def read_metrics(folder: Path) -> list[dict[str, str]]:
    """The rows of a run's metrics.csv, or none."""
    path = folder / "metrics.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row.get("step", "").isdigit()]
