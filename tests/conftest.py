from __future__ import annotations

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # also for fixtures of a module, which come before this

LONG = (
    "test_reproduce",
    "test_docs",
    "test_cli_operators",
    "test_end_to_end",
    "test_large_restore",
    "test_app_browser",
    "test_distributed",
    "test_examples",
    "test_resume",
    "test_faults",
    "test_cli_roundtrip",
    "test_wheel",
    "test_demo",
    "test_unsure",
    "test_cli_refusals",
)
"""Files that take a minute or more, longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files begin first, so that no process is left alone with one at the end."""

    def place(item: pytest.Item) -> int:
        name = Path(item.path).stem
        return LONG.index(name) if name in LONG else len(LONG)

    items.sort(key=place)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
