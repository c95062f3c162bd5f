"""Trials of what a run survives become lines of JSON, on the console and under build/reliability/."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "reliability"
LAST = 6  # lines of a process that are worth repeating


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One injected fault and what came of it.

    row: of docs/evidence/failures.md, or a name. injector: how it was injected. process: which process it struck.
    expected, observed: exit codes, or whatever the command compares. lines: the last that the user read.
    """

    row: str
    injector: str
    process: str
    expected: Any
    observed: Any
    ok: bool
    lines: list[str] = field(default_factory=list)
    figures: Mapping[str, Any] = field(default_factory=dict)


def last_lines(text: str) -> list[str]:
    """What of a process' output goes into a trial."""
    return text.strip().splitlines()[-LAST:]


def run(
    command: str, trials: Iterable[Trial], *, at_the_end: Callable[[], Mapping[str, Any]] = dict, **facts: Any
) -> int:
    """Print each trial as it comes, then a summary with `facts`; keep the lines for the page. Returns the exit code.

    at_the_end: more facts, known only then.
    """
    KEPT.mkdir(parents=True, exist_ok=True)
    begun, done, wrong = time.monotonic(), 0, 0
    with (KEPT / f"{command}.jsonl").open("w") as kept:
        for trial in trials:
            done, wrong = done + 1, wrong + (not trial.ok)
            _tell(kept, asdict(trial))
        machine = f"{platform.machine()}, {_cores()}"
        summary = {"trials": done, "wrong": wrong, "seconds": round(time.monotonic() - begun, 1), "machine": machine}
        _tell(
            kept,
            {"summary": command}
            | summary
            | {"date": time.strftime("%Y-%m-%d", time.gmtime())}
            | facts
            | dict(at_the_end()),
        )
    return int(wrong > 0 or done == 0)


def _tell(kept: Any, value: Mapping[str, Any]) -> None:
    line = json.dumps(value, ensure_ascii=False)
    kept.write(line + "\n")
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _cores() -> str:
    return f"{len(os.sched_getaffinity(0))} cores"
