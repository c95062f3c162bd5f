"""docs/failures.md and the rows that are played: none forgotten, none twice."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import chaos
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "failures.md"
# Number -> what shows it, as the page says.
SHOWN = {
    int(number): shown.strip() for number, shown in re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", PAGE.read_text(), re.M)
}


def test_the_page_lists_every_fault_once() -> None:
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.M)]
    assert numbers == list(range(1, 74))
    assert list(SHOWN) == numbers


def test_every_fault_is_played_or_says_why_not() -> None:
    unknown = {shown for shown in SHOWN.values() if not shown.startswith("not shown: ")}
    assert unknown <= {"chaos", "preempt", "chaos, preempt"}


def test_what_the_page_says_is_played_is_played_and_nothing_else() -> None:
    assert {number for number, shown in SHOWN.items() if shown.startswith("chaos")} == set(chaos.ROWS)


def test_no_fault_is_played_by_two_themes() -> None:
    count = Counter(row for theme in chaos.THEMES for row in theme.ROWS)
    assert [row for row, times in count.items() if times > 1] == []


def test_a_row_that_breaks_off_is_a_failed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks_off(seed: int, folder: Path) -> None:
        raise OSError("no such tool")

    monkeypatch.setitem(chaos.ROWS, 0, breaks_off)
    trial = chaos.play(0, seed=1)
    assert (trial.ok, trial.lines[-1].strip()) == (False, "OSError: no such tool")
