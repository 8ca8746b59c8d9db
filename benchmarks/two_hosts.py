"""Two machines, as far as one can play them: two network namespaces with a cable between them.

    python -m benchmarks.two_hosts --out docs/results/clusters

In each runs a torchrun of its own, with a network card and an address of its own; they see each
other over the cable only. Trains in processes of both hosts and in one process alone, and once more
with a process of the second host killed, which both torchruns then replace; restores; and compares.
Needs Linux, root and `ip`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import tifffile
from safetensors.torch import load_file

HOSTS = {"nediff-a": ("nd-a", "10.77.0.1"), "nediff-b": ("nd-b", "10.77.0.2")}
PORT = 29577
TRAIN = ("--sigma", "0.1", "--size", "tiny", "--batch", "8", "--crop", "16", "--steps", "40")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def cable() -> Iterator[None]:
    """Two namespaces, each with one end of a pair of network cards."""
    (one, other) = (card for card, _ in HOSTS.values())
    try:
        for host in HOSTS:
            ip("netns", "add", host)
        ip("link", "add", one, "type", "veth", "peer", "name", other)
        for host, (card, address) in HOSTS.items():
            ip("link", "set", card, "netns", host)
            ip("-n", host, "address", "add", f"{address}/24", "dev", card)
            ip("-n", host, "link", "set", card, "up")
            ip("-n", host, "link", "set", "lo", "up")
        yield
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], check=False, capture_output=True)


def on_both(processes: int, *arguments: str, hurt: Callable[[int], None] | None = None) -> None:
    """`torchrun … -m nediff ARGUMENTS` on both hosts, so many processes each.

    ``hurt`` is told the number of the second host's torchrun, once both were started.
    """
    _, main = HOSTS["nediff-a"]
    started = []
    for host, (card, address) in HOSTS.items():
        command = ["ip", "netns", "exec", host, sys.executable, "-m", "torch.distributed.run"]
        command += ["--nnodes=2", f"--nproc-per-node={processes}", "--max-restarts=1"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint={main}:{PORT}", "--rdzv-id=hosts"]
        command += [f"--rdzv-conf=is_host={int(address == main)}", f"--local-addr={address}"]
        command += ["-m", "nediff", *arguments]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": card, "OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen(command, env=environment))
    if hurt is not None:
        hurt(started[1].pid)
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit(f"The hosts ended with {codes}.")


def kill_one(state: Path, torchrun: int) -> None:
    """SIGKILL to a process that this torchrun has started, as soon as there is a state on disk."""
    while not state.exists():
        time.sleep(0.05)
    children = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()
    workers = [c for c in children if b"nediff" in Path(f"/proc/{c}/cmdline").read_bytes()]
    os.kill(int(workers[0]), signal.SIGKILL)


def sent(host: str) -> int:
    """Bytes that a host has sent over the cable."""
    card, _ = HOSTS[host]
    counter = f"/sys/class/net/{card}/statistics/tx_bytes"
    command = ["ip", "netns", "exec", host, "cat", counter]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def distance(a: Path, b: Path) -> float:
    one, other = (load_file(run / "state/state.safetensors") for run in (a, b))
    assert one.keys() == other.keys()
    return max(float((one[k] - other[k]).abs().max()) for k in one)


def same_files(a: Path, b: Path) -> bool:
    names = sorted(str(p.relative_to(a)) for p in a.rglob("*.tif"))
    again = sorted(str(p.relative_to(b)) for p in b.rglob("*.tif"))
    return names == again and all((a / n).read_bytes() == (b / n).read_bytes() for n in names)


def noisy_images(folder: Path, count: int = 5) -> Path:
    folder.mkdir()
    random = np.random.default_rng(0)
    y, x = np.mgrid[0:48, 0:48] / 9.0
    for k in range(count):
        image = 0.5 + 0.3 * np.sin(x + k) * np.cos(y - k) + 0.1 * random.standard_normal((48, 48))
        tifffile.imwrite(folder / f"{k}.tif", image.astype(np.float32))
    return folder


def measure(place: Path, processes: int) -> dict[str, object]:
    data, alone, both = noisy_images(place / "data"), place / "alone", place / "both"
    killed = place / "killed"
    one = [sys.executable, "-m", "nediff"]
    subprocess.run([*one, "train", data, "--out", alone, *TRAIN], check=True)
    subprocess.run([*one, *restoring(alone, data, place / "r1")], check=True)
    started = time.monotonic()
    with cable():
        on_both(processes, "train", str(data), "--out", str(both), *TRAIN)
        over_cable = {host: sent(host) for host in HOSTS}
        hurt = partial(kill_one, killed / "state/state.safetensors")
        again = ("train", str(data), "--out", str(killed), *TRAIN, "--resume")
        on_both(processes, *again, hurt=hurt)
        on_both(processes, *restoring(alone, data, place / "r2"))
    return {
        "hosts": 2,
        "processes_each": processes,
        "train": " ".join(TRAIN),
        "largest_difference_of_any_number_of_the_state": distance(alone, both),
        "largest_difference_if_one_is_killed_and_replaced": distance(both, killed),
        "restored_files_identical": same_files(place / "r1", place / "r2"),
        "restored_files": len(list((place / "r2").rglob("*.tif"))),
        "bytes_sent_while_training": over_cable,
        "seconds": round(time.monotonic() - started, 1),
    }


def restoring(run: Path, data: Path, out: Path) -> tuple[str, ...]:
    return ("restore", str(run), str(data), "--out", str(out), "--samples", "2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results/clusters"))
    parser.add_argument("--processes", type=int, default=1, help="on each host")
    arguments = parser.parse_args()
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        raise SystemExit("This needs Linux, root and the program ip (iproute2).")
    with tempfile.TemporaryDirectory(prefix="nediff-hosts-") as place:
        found = measure(Path(place), arguments.processes)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "two_hosts.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
