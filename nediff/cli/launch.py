"""All devices of this machine for one command."""

from __future__ import annotations

import os
import sys


def use_all_devices() -> None:
    """Start again with a process for each GPU, where there are several and nobody did so.

    CUDA_VISIBLE_DEVICES says which there are. Of CPUs one process uses as many as it is given.
    """
    import torch

    count = torch.cuda.device_count()
    if count < 2 or "WORLD_SIZE" in os.environ or os.name != "posix":
        return
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    os.execv(sys.executable, [sys.executable, *launcher, "-m", "nediff", *sys.argv[1:]])
