"""In the place of trainings that a bench times: each takes as many seconds as a test says, or ends at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench import processes
from bench.processes import BenchOptions, Program
from entrypoint import ExitCode, Failure, LaunchOptions

SEEN: list[str] = []


class Timed:
    """A running program. seconds: of a step."""

    def __init__(self, program: Program, seconds: float) -> None:
        self.program, self.seconds, self.steps = program, seconds, 1
        words = " ".join(program.command)
        ranks = int(match[1]) if (match := re.search(r"--procs-per-node (\d+)", words)) else 1
        global_batch = (
            int(match[1]) if (match := re.search(r"(?:train.global_batch_size=|--batch )(\d+)", words)) else 64
        )
        self.facts = {"batch": global_batch // ranks, "accumulation": 1, "ranks": ranks, "first_step_s": 1.0}

    def steps_in(self, seconds: float) -> int:
        return max(1, round(seconds / self.seconds))

    def request(self, steps: int) -> dict[str, Any]:
        SEEN.append(self.program.name)
        return {"seconds": steps * self.seconds, "memory": 10**9}


def replaced(monkeypatch: pytest.MonkeyPatch, takes: Callable[[str], float | None]) -> list[str]:
    """Let `takes` say, by its command line, how long a program's step is; None: it runs out of memory. Returns whose
    blocks were run, in their order."""
    SEEN.clear()

    @contextmanager
    def start_programs(options: BenchOptions, *programs: Program) -> Iterator[list[Timed]]:
        yield [Timed(program, _seconds(program, takes)) for program in programs]

    monkeypatch.setattr(processes, "start_programs", start_programs)
    return SEEN


def _seconds(program: Program, takes: Callable[[str], float | None]) -> float:
    seconds = takes(" ".join(program.command))
    if seconds is None:
        raise Failure("ended", found="exit code 71\nERROR[71] out of GPU memory\n", fix="f", code=ExitCode.PEER)
    return seconds


def on_cpu(folder: Path, **more: Any) -> BenchOptions:
    """Options of a benchmark on the CPU."""
    options: dict[str, Any] = {"device": "cpu", "launch": LaunchOptions(), "environ": {}}
    return BenchOptions(scratch=folder, log=lambda line: None, **(options | more))
