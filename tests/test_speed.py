"""The benchmark of speed: its arithmetic, and that the page shows what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.speed import __main__ as command
from benchmarks.speed import page
from benchmarks.speed.growth import exponent
from benchmarks.speed.quality import minutes_to
from benchmarks.speed.timing import in_turns, ratio


def test_the_page_is_made_of_the_committed_figures() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text()


def test_candidates_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []
    work = {name: lambda name=name: order.append(name) for name in "abc"}
    seconds = in_turns(work, 3)
    assert "".join(order) == "cbaabccbaabc"
    assert [len(s) for s in seconds.values()] == [3, 3, 3]


def test_ratios_are_taken_round_by_round() -> None:
    """A machine that is ten times slower in one round does not change them."""
    slow = [1.0, 10.0, 1.0, 1.0]
    found = ratio([2 * s for s in slow], slow)
    assert found == {"median": 2.0, "low": 2.0, "high": 2.0}


def test_minutes_to_a_target() -> None:
    curve = {1.0: 28.0, 4.0: 29.0}
    assert minutes_to(28.5, curve) == pytest.approx(2.0)
    assert minutes_to(27.0, curve) == 1.0
    assert minutes_to(29.5, curve) is None


def test_the_exponent_of_a_power_law() -> None:
    assert exponent((1, 2, 4, 8), [3 * n**1.5 for n in (1, 2, 4, 8)]) == pytest.approx(1.5)


def test_the_command_takes_parts_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[str] = []
    monkeypatch.setattr(command, "run", lambda name, data: done.append(name))
    for asked in ([], ["growth", "steps"]):
        monkeypatch.setattr(sys, "argv", ["speed", *asked, "--data", str(tmp_path)])
        command.main()
    assert done == [*page.PARTS, "growth", "steps"]


def test_what_came_with_the_repository_is_measured_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A clean clone has results of another machine; what was measured here is kept."""
    measured: list[str] = []

    def part(name: str, data: Path) -> dict[str, int]:
        measured.append(name)
        return {"new": 1}

    monkeypatch.setattr(command, "MEASURED", tmp_path / "measured")
    monkeypatch.setattr(page, "OUT", tmp_path / "results")
    monkeypatch.setattr(page, "write", lambda: None)
    monkeypatch.setattr(command, "_part", part)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/growth.json").write_text('{"result": {"new": 0}}')
    for _ in range(2):
        command.run("growth", tmp_path)
    assert measured == ["growth"]
    assert json.loads((tmp_path / "results/growth.json").read_text())["result"] == {"new": 1}
