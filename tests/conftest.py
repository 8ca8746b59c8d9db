from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def experiment_data() -> Path:
    """The research images, where they are present; the product itself never needs them."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("NEDIFF_DATA", beside))
    if not folder.is_dir():
        pytest.skip("needs the experiment images (set NEDIFF_DATA)")
    return folder
