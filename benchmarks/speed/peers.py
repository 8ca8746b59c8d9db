"""CAREamics, which needs an older PyTorch, in an environment of its own (`.bench/`)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PYTHON = Path(".bench/bin/python")
NEEDS = ("careamics>=0.3",)
SCRIPT = Path(__file__).with_name("noise2void.py")
Images = NDArray[np.float32]


def install() -> None:
    """Make the environment, once; the `bench` target of the Makefile calls it."""
    if PYTHON.exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(PYTHON.parents[1])], check=True)
    subprocess.run([str(PYTHON), "-m", "pip", "install", "--quiet", *NEEDS], check=True)


def available() -> bool:
    """Whether it is there."""
    return PYTHON.exists()


def call(*arguments: str, seconds: float | None = None) -> str:
    """What noise2void.py prints there, with one thread; raises if it fails or takes longer."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [str(PYTHON), str(SCRIPT), *arguments]
    done = subprocess.run(
        command, check=True, env=environment, timeout=seconds, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def noise2void(train: Images, noisy: Images, minutes: float) -> Images:
    """Train on (N, H, W) for so many minutes of processor time, then restore (M, h, w)."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: f"{folder}/{name}.npy" for name in ("train", "noisy", "restored")}
        np.save(paths["train"], train)
        np.save(paths["noisy"], noisy)
        call("train", *paths.values(), str(minutes), folder)
        restored: Images = np.load(paths["restored"], allow_pickle=False)
    return restored
