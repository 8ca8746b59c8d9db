from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)  # also for fixtures of a module, which come before this


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
