"""The command line in this process, and small images for it."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import tifffile
from numpy.typing import NDArray

from nediff.cli.main import main

TINY = ("--size", "tiny", "--batch", "2", "--crop", "24")
SIGMA = 0.1


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


def nediff(*arguments: object) -> Outcome:
    """`nediff ARGUMENTS`, without the cost of a new process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    argv = ["nediff", *map(str, arguments)]
    with patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    return Outcome(code, out.getvalue(), err.getvalue())


def succeeded(*arguments: object) -> Outcome:
    """`nediff ARGUMENTS`, which must end well."""
    outcome = nediff(*arguments)
    assert outcome.code == 0, outcome.err
    return outcome


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file with its contents, and every folder, also hidden ones."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in sorted(folder.rglob("*"))
    }


def smooth(index: int, height: int = 40, width: int = 44) -> NDArray[np.float64]:
    """A clean picture in [0.2, 0.8]."""
    y, x = np.mgrid[0:height, 0:width] / 12.0
    picture: NDArray[np.float64] = 0.5 + 0.3 * np.sin(x + index) * np.cos(y - 2 * index)
    return picture


def noisy(index: int, height: int = 40, width: int = 44) -> NDArray[np.float64]:
    """The same picture with noise of SIGMA."""
    random = np.random.default_rng(index)
    return smooth(index, height, width) + SIGMA * random.standard_normal((height, width))


def float_folder(folder: Path, count: int = 3, **options: Any) -> Path:
    """A new folder of float32 TIFFs."""
    folder.mkdir(parents=True)
    for i in range(count):
        tifffile.imwrite(folder / f"a{i}.tif", noisy(i, **options).astype(np.float32))
    return folder
