"""The commands of `train` in a folder of their own, and what they would start."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from entrypoint import Plan
from train.cli import launch


@pytest.fixture(autouse=True)
def _in_a_fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the front door would run, instead of running it; signal handlers are put back."""
    handlers = {signum: signal.getsignal(signum) for signum in launch.STOP_SIGNALS}
    seen: dict[str, Any] = {}

    def note(
        plan: Plan, command: Sequence[str], environ: Mapping[str, str], *, log_dir: Path, foreign: bool, **_: object
    ) -> int:
        seen.update(plan=plan, command=list(command), environ=environ, log_dir=log_dir, foreign=foreign)
        return 7

    monkeypatch.setattr(launch, "run_plan", note)
    yield seen
    for signum, handler in handlers.items():
        signal.signal(signum, handler)
