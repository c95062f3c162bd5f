"""Every row of docs/evidence/failures.md that this machine can play, SEEDS times each, compared with the page.

chaos.py          all rows; ROWS=1,2,9 some of them; SEEDS=5; FIRST=1 the first seed; JOBS=2
                      trials at a time
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import pytest
import trials
from rows import containers, inputs, launching, network, processes, storage
from trials import Trial

THEMES = (processes, storage, inputs, launching, network, containers)
ROWS = {row: play for theme in THEMES for row, play in theme.ROWS.items()}
# Of each kind of fault, those that CI plays each time.
EACH_TIME = (1, 4, 9, 11, 15, 20, 26, 33, 51, 62)
MISSING = containers.MISSING | inputs.MISSING | launching.MISSING | network.MISSING


def play(row: int, seed: int) -> Trial:
    """One trial in a folder of its own. What goes wrong in the trial itself counts as wrong too."""
    with tempfile.TemporaryDirectory(prefix=f"chaos-{row}-", ignore_cleanup_errors=True) as folder:
        try:
            trial = ROWS[row](seed, Path(folder))
        except Exception as error:  # a row that cannot be played is a failed row, and the others go on
            lines = traceback.format_exception(error)
            trial = Trial(row="", injector="", process="", expected="", observed="error", ok=False, lines=lines[-3:])
    return replace(trial, row=str(row), figures={**trial.figures, "seed": seed})


def cases(rows: Iterable[int]) -> list[object]:
    """The rows as the cases of a test."""
    return [pytest.param(row, marks=pytest.mark.every_run if row in EACH_TIME else ()) for row in rows]


def lacking(row: int) -> str | None:
    """What this machine lacks for a row."""
    return MISSING[row]() if row in MISSING else None


def run(rows: Iterable[int], seeds: Iterable[int], jobs: int = 1) -> Iterator[Trial]:
    """All trials, a few at a time: most of them wait for something."""
    chosen = list(seeds)
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda pair: play(*pair), [(row, seed) for row in sorted(rows) for seed in chosen])


def main() -> int:
    """`make chaos`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `make chaos &` ignores it, and so would the trainings
    asked = [int(row) for row in os.environ.get("ROWS", "").split(",") if row]
    count, first = int(os.environ.get("SEEDS") or 5), int(os.environ.get("FIRST") or 1)
    jobs = int(os.environ.get("JOBS") or len(os.sched_getaffinity(0)))
    seeds = range(first, first + count)
    reasons = {row: reason for row in asked or ROWS if (reason := lacking(row))}
    rows = [row for row in asked or ROWS if row not in reasons]
    return trials.run("chaos", run(rows, seeds, jobs), seeds=list(seeds), rows=len(rows), lacking=reasons)


if __name__ == "__main__":
    sys.exit(main())
