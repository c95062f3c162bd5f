"""The input pipeline beside Pillow's, and a step's calls: what is compared, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benches import quick

from train.bench import input as bench
from train.bench import paced, traced
from train.bench.rows import Row


class Stand:
    """In the place of a process that feeds."""

    def __init__(self, seconds: float, workers: int) -> None:
        self.seconds, self.steps, self.facts = seconds, 1, {"workers": workers}

    def block(self) -> float:
        return self.seconds

    def fit_to(self, seconds: float) -> int:
        return round(seconds / self.seconds)


def test_the_better_of_the_peers_is_compared_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stands = [Stand(0.1, -1), Stand(0.9, 0), Stand(0.5, 1)]

    @contextmanager
    def started(*_: Any) -> Iterator[list[Stand]]:
        yield stands

    monkeypatch.setattr(paced, "started", started)
    row = bench.pipeline(quick(tmp_path, quick=False, pairs=2))
    assert row.found is not None
    assert all(stand.steps > 10 * 2 for stand in stands)  # what a worker has made ready is less than a tenth
    assert (round(row.found.value, 6), row.facts["peer_workers"]) == (5.0, 1)
    assert round(row.facts["ours_images_per_s"]) == bench.BATCH * 10


def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ours: int, theirs: int) -> Row:
    """Row 5, where each step makes so many calls and each program 100 more."""

    def calls(program: str, words: list[str], environ: object, folder: Path, *, mark: str | None = None) -> int:
        text = " ".join(words)
        steps = int(text.split("train.max_steps=")[1] if mark else text.split("--steps ")[1].split()[0])
        return 100 + steps * (ours if mark else theirs)

    monkeypatch.setattr(traced, "strace", lambda environ: "strace")
    monkeypatch.setattr(traced, "calls", calls)
    return next(bench.paths(quick(tmp_path)))


def test_what_a_start_asks_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = counted(tmp_path, monkeypatch, ours=0, theirs=8)
    assert row.found is not None
    assert (row.found.value, row.facts["accelerate_per_step"], row.holds) == (0, 8, True)


def test_a_step_that_asks_misses_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert counted(tmp_path, monkeypatch, ours=1, theirs=8).holds is False


def test_without_strace_nothing_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced, "strace", lambda environ: None)
    assert next(bench.paths(quick(tmp_path))).missing == "needs strace (apt-get install strace)"
