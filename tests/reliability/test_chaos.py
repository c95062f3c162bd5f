"""docs/evidence/failures.md and the rows that are played: none forgotten, none twice."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import chaos
import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "evidence" / "failures.md").read_text()


def rows_of(command: str) -> set[int]:
    """The rows that the page says a command plays."""
    (listed,) = re.findall(rf"`make {command}` rows ((?:\d+|to|and|,|\s)+)", TEXT)
    ranges = re.findall(r"(\d+)(?:\s+to\s+(\d+))?", listed)
    return {row for first, last in ranges for row in range(int(first), int(last or first) + 1)}


def test_the_page_lists_every_fault_once() -> None:
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", TEXT, re.M)]
    assert numbers == list(range(1, 74))


def test_every_fault_is_played() -> None:
    assert rows_of("chaos") | rows_of("preempt") == set(range(1, 74))


def test_what_the_page_says_is_played_is_played_and_nothing_else() -> None:
    assert rows_of("chaos") == set(chaos.ROWS)


def test_no_fault_is_played_by_two_themes() -> None:
    count = Counter(row for theme in chaos.THEMES for row in theme.ROWS)
    assert [row for row, times in count.items() if times > 1] == []


def test_a_row_that_breaks_off_is_a_failed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks_off(seed: int, folder: Path) -> None:
        raise OSError("no such tool")

    monkeypatch.setitem(chaos.ROWS, 0, breaks_off)
    trial = chaos.play(0, seed=1)
    assert (trial.ok, trial.lines[-1].strip()) == (False, "OSError: no such tool")
