"""Commands for several processes at once: `torchrun … -m tests.together FILE OUT`.

FILE lists commands; OUT/<number of the process>.json will say how they ended. A command may say
after which step one process is to be told to stop, or at which it is to be killed or to fail; or
that the weights are to be in shards (FSDP).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from nediff.errors import NediffError
from nediff.networks import SIZES
from nediff.networks.unet import UNet
from tests.command import nediff

SMALL_PARTS = 1000
"""Images of more pixels are looked at in parts, here."""


def _hurt(order: dict[str, Any]) -> Any:
    """`Trainer.step` with something happening to process 1."""
    from nediff.training.loop import Trainer

    step_as_ever = Trainer.step

    def step(self: Trainer, number: int) -> float:
        first_try = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if os.environ["RANK"] == "1" and first_try:
            if number == order.get("stop_at"):
                os.kill(os.getpid(), signal.SIGTERM)
            if number == order.get("kill_at"):
                os.kill(os.getpid(), signal.SIGKILL)
            if number == order.get("fail_at"):
                raise NediffError("The disk of this machine is full.")
        return step_as_ever(self, number)

    return patch.object(Trainer, "step", step)


@contextmanager
def small_paper() -> Iterator[None]:
    """`--size paper` with a network of the size tiny: same optimizer, a thousandth of the work."""

    def tiny(channels: int, resolution: int, guides: int = 0) -> UNet:
        return UNet(channels, *SIZES["tiny"], guides=guides)

    with patch("nediff.networks.ddpmpp.DDPMpp", tiny):
        yield


def main() -> None:
    orders = json.loads(Path(sys.argv[1]).read_text())
    outcomes = []
    with patch("nediff.restorer.TILED_FROM", SMALL_PARTS):
        for order in orders:
            shards = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
            environment = shards if order.get("sharded") else {}
            with _hurt(order), small_paper(), patch.dict(os.environ, environment):
                outcome = nediff(*order["args"])
            outcomes.append({"code": outcome.code, "err": outcome.err})
            if "fail_at" in order:
                print(outcome.err, file=sys.stderr, flush=True)
                sys.exit(outcome.code)
    rank = os.environ["RANK"]
    Path(sys.argv[2], f"{rank}.json").write_text(json.dumps(outcomes))


def launch(
    folder: Path, count: int, orders: list[dict[str, Any]], restarts: int = 0
) -> list[list[dict[str, Any]]]:
    """Run the orders in so many processes; how each ended, process by process."""
    ended = torchrun(folder, count, orders, restarts)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


def torchrun(
    folder: Path, count: int, orders: list[dict[str, Any]], restarts: int = 0
) -> subprocess.CompletedProcess[str]:
    """The same, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = [{**order, "args": [str(a) for a in order["args"]]} for order in orders]
    (folder / "orders.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={count}", f"--max-restarts={restarts}"]
    command += ["-m", "tests.together", str(folder / "orders.json"), str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


if __name__ == "__main__":
    main()
