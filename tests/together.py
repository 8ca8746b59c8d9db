"""Commands for several processes at once.

They are forks of this one, or started by `torchrun … -m tests.together FILE OUT`. FILE lists
commands; OUT/<number of the process>.json will say how they ended. A command may say after which
step one process is to be told to stop, or at which it is to be killed or to fail; or that the
weights are to be in shards (FSDP).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from accelerate.state import AcceleratorState
from torch import distributed

from nediff.errors import NediffError
from nediff.networks import SIZES
from nediff.networks.unet import UNet
from nediff.processes import joined
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


def keeping_samples() -> Any:
    """Finished runs keep the samples they rehearsed on, to be looked at."""
    from nediff.training.loop import Trainer

    return patch.object(Trainer, "tidy", lambda self: None)


@contextmanager
def small_paper() -> Iterator[None]:
    """`--size paper` with a network of the size tiny: same optimizer, a thousandth of the work."""

    def tiny(channels: int, resolution: int, guides: int = 0) -> UNet:
        return UNet(channels, *SIZES["tiny"], guides=guides)

    with patch("nediff.networks.ddpmpp.DDPMpp", tiny):
        yield


def main() -> None:
    follow(Path(sys.argv[1]), Path(sys.argv[2]))


def follow(spec: Path, out: Path) -> None:
    """The orders, in this process."""
    orders = json.loads(spec.read_text())
    outcomes = []
    with patch("nediff.restorer.TILED_FROM", SMALL_PARTS):
        for order in orders:
            shards = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
            environment = shards if order.get("sharded") else {}
            tidying = keeping_samples() if order.get("keep") else nullcontext()
            with _hurt(order), small_paper(), tidying, patch.dict(os.environ, environment):
                outcome = nediff(*order["args"])
            outcomes.append({"code": outcome.code, "err": outcome.err})
            if "fail_at" in order:
                print(outcome.err, file=sys.stderr, flush=True)
                sys.exit(outcome.code)
    rank = os.environ["RANK"]
    (out / f"{rank}.json").write_text(json.dumps(outcomes))


def launch(
    folder: Path, count: int, orders: list[dict[str, Any]], restarts: int = 0
) -> list[list[dict[str, Any]]]:
    """Run the orders in so many processes; how each ended, process by process.

    Forks, which have PyTorch imported already, unless they may have to be started anew.
    """
    if restarts:
        ended = torchrun(folder, count, orders, restarts)
        assert ended.returncode == 0, ended.stderr[-3000:]
    else:
        assert forked(folder, count, orders) == [0] * count
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


def forked(folder: Path, count: int, orders: list[dict[str, Any]]) -> list[int]:
    """The exit codes of forks of this process, with what torchrun would give each of them."""
    spec = write_orders(folder, orders)
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
    children = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            _become(shared | {"RANK": rank, "LOCAL_RANK": rank}, spec, folder)
        children.append(child)
    return _codes(children)


def _codes(children: list[int]) -> list[int]:
    """Wait for all; if one ends badly, the others have nobody to wait for, and are killed."""
    codes: dict[int, int] = {}
    while len(codes) < len(children):
        for child in [c for c in children if c not in codes]:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                codes[child] = os.waitstatus_to_exitcode(status)
            elif any(codes.values()):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    return [codes[child] for child in children]


def _become(environment: dict[str, Any], spec: Path, out: Path) -> None:
    """In the fork: one of several processes, which knows nothing of what it was before."""
    code = 1
    try:
        os.environ.update({name: str(value) for name, value in environment.items()})
        joined.cache_clear()
        AcceleratorState._reset_state(reset_partial_state=True)
        follow(spec, out)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def write_orders(folder: Path, orders: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    spec = [{**order, "args": [str(a) for a in order["args"]]} for order in orders]
    (folder / "orders.json").write_text(json.dumps(spec))
    return folder / "orders.json"


def torchrun(
    folder: Path, count: int, orders: list[dict[str, Any]], restarts: int = 0
) -> subprocess.CompletedProcess[str]:
    """The same, however it ends."""
    spec = write_orders(folder, orders)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={count}", f"--max-restarts={restarts}"]
    command += ["-m", "tests.together", str(spec), str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


if __name__ == "__main__":
    main()
