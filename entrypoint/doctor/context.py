"""A check receives a CheckContext and returns Findings, each of which is ok, warn or fail.

The context holds the environment, the launch options and the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from entrypoint.errors import Failure
from entrypoint.machine import StrPath
from entrypoint.options import LaunchOptions
from entrypoint.plan import Plan

_DEFAULT_OPTIONS = LaunchOptions()
DEFAULT_OUTPUT = Path("runs")  # what `train` writes to where nothing else is said


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """The place that is looked at.

    plan: None where a start would be refused. root: where /proc, /sys and /dev are looked for (tests have their own).
    output: the folder that runs are kept in. workers: data workers of each rank, where their number is known.
    """

    environ: Mapping[str, str]
    options: LaunchOptions = _DEFAULT_OPTIONS
    plan: Plan | None = None
    root: StrPath = "/"
    output: Path = DEFAULT_OUTPUT
    workers: int | None = None

    @property
    def ranks_here(self) -> int:
        """Ranks that share this machine, as far as that is known."""
        return self.plan.world.local_world_size if self.plan else self.options.procs_per_node or 1

    @property
    def ranks_of_task(self) -> int:
        """Ranks that share what this task may use: a task for each rank has its own processors."""
        return self.plan.spawn if self.plan else self.ranks_here

    @property
    def on_cpu(self) -> bool:
        """Whether ranks compute on processors; where nobody knows, they do not."""
        return self.plan is not None and self.plan.device == "cpu"

    @property
    def several_nodes(self) -> bool:
        """Whether ranks of other machines have to be reached."""
        return self.plan is not None and self.plan.world.num_nodes > 1


FindingState = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact about this place.

    Attributes:
        name: the subject, a word or two. state: `fail` would break a training, `warn` would cost something.
        text: what was seen, with its numbers. fix: one command or edit; empty where all is well.
    """

    name: str
    state: FindingState
    text: str
    fix: str = ""


def ok(name: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(name=name, state="ok", text=text)


def warn(name: str, text: str, fix: str) -> Finding:
    """It will train, and something is slower, lost or not as expected."""
    return Finding(name=name, state="warn", text=text, fix=fix)


def fail(name: str, text: str, fix: str) -> Finding:
    """It will not train."""
    return Finding(name=name, state="fail", text=text, fix=fix)


def failure_finding(name: str, failure: Failure) -> Finding:
    """The finding for what a start would refuse."""
    seen = f" ({failure.found})" if failure.found else ""
    return fail(name, failure.what + seen, failure.fix)


def num_failed(findings: Iterable[Finding]) -> int:
    """How many would break a training."""
    return sum(finding.state == "fail" for finding in findings)
