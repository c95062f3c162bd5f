"""In the place of trainings that a bench times: each takes as many seconds as a test says, or ends at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from entrypoint import ExitCode, Failure
from entrypoint import LaunchOptions as Launch
from train.bench import options, paced
from train.bench.options import Options
from train.bench.paced import Side

SEEN: list[str] = []


class Timed:
    """A side that waits. seconds: of a step."""

    def __init__(self, side: Side, seconds: float) -> None:
        self.side, self.seconds, self.steps = side, seconds, 1
        words = " ".join(side.command)
        ranks = int(found[1]) if (found := re.search(r"--procs-per-node (\d+)", words)) else 1
        whole = int(found[1]) if (found := re.search(r"(?:train.global_batch_size=|--batch )(\d+)", words)) else 64
        self.facts = {"batch": whole // ranks, "accumulation": 1, "ranks": ranks, "first_step_s": 1.0}

    def fit_to(self, seconds: float) -> int:
        return max(1, round(seconds / self.seconds))

    def ask(self, steps: int) -> dict[str, Any]:
        SEEN.append(self.side.name)
        return {"seconds": steps * self.seconds, "memory": 10**9}


def replaced(monkeypatch: pytest.MonkeyPatch, takes: Callable[[str], float | None]) -> list[str]:
    """Let `takes` say, by its command line, how long a side's step is; None: it runs out of memory. Returns whose
    blocks were run, in their order."""
    SEEN.clear()

    @contextmanager
    def started(asked: Options, *sides: Side) -> Iterator[list[Timed]]:
        yield [Timed(side, _seconds(side, takes)) for side in sides]

    monkeypatch.setattr(paced, "started", started)
    return SEEN


def _seconds(side: Side, takes: Callable[[str], float | None]) -> float:
    seconds = takes(" ".join(side.command))
    if seconds is None:
        raise Failure("ended", found="exit code 71\nERROR[71] out of GPU memory\n", fix="f", code=ExitCode.PEER)
    return seconds


def asked(folder: Path, **more: Any) -> Options:
    """A bench on the CPU."""
    given: dict[str, Any] = {"device": "cpu", "launch": Launch(), "peers": options.find_peers(None), "environ": {}}
    return Options(scratch=folder, tell=lambda line: None, **(given | more))
