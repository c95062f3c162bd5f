"""A check receives a CheckContext and returns Findings, each of which is ok, warn or fail.

The context holds the environment, the launch options and the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from entrypoint.errors import ExitCode, Failure
from entrypoint.files import StrPath
from entrypoint.options import LaunchOptions
from entrypoint.plan import Plan

_DEFAULT_OPTIONS = LaunchOptions()
DEFAULT_OUTPUT = Path("runs")  # where `train` writes by default


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """What a check may look at.

    plan: None if the launch would be refused. root: the folder with proc/, sys/ and dev/ (tests use
    their own). output: the folder for runs. workers: data workers of each rank, if known.
    """

    environ: Mapping[str, str]
    options: LaunchOptions = _DEFAULT_OPTIONS
    plan: Plan | None = None
    root: StrPath = "/"
    output: Path = DEFAULT_OUTPUT
    workers: int | None = None

    @property
    def ranks_on_node(self) -> int:
        """Ranks on this machine, as far as known."""
        return self.plan.world.local_world_size if self.plan else self.options.procs_per_node or 1

    @property
    def ranks_of_task(self) -> int:
        """Ranks that share the cores of this task; with one task per rank that is one."""
        return self.plan.spawn if self.plan else self.ranks_on_node

    @property
    def on_cpu(self) -> bool:
        """Whether the ranks compute on the CPU; False without a plan."""
        return self.plan is not None and self.plan.device == "cpu"

    @property
    def several_nodes(self) -> bool:
        """Whether ranks run on other machines too."""
        return self.plan is not None and self.plan.world.num_nodes > 1


FindingState = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result of a check.

    Attributes:
        name: the subject, a word or two.
        state: `fail` would break a training, `warn` would make it slower or lose something.
        text: what was seen, with its numbers.
        fix: one command or edit; empty for `ok`.
        code: with which a launch would fail, if that is known.
    """

    name: str
    state: FindingState
    text: str
    fix: str = ""
    code: ExitCode | None = field(default=None, compare=False)


def ok(name: str, text: str) -> Finding:
    """A finding that needs no action."""
    return Finding(name=name, state="ok", text=text)


def warn(name: str, text: str, fix: str) -> Finding:
    """A finding with which training works, but is slower, loses something or is not as expected."""
    return Finding(name=name, state="warn", text=text, fix=fix)


def fail(name: str, text: str, fix: str) -> Finding:
    """A finding that would break a training."""
    return Finding(name=name, state="fail", text=text, fix=fix)


def graded(
    name: str,
    text: str,
    amount: float,
    too_little: tuple[float, str],
    little: tuple[float, str],
    fix: str,
    enough: str = "",
) -> Finding:
    """The finding for an amount: `fail` below the first limit, `warn` below the second.

    too_little, little: a limit, and what it means to have less. enough: what to say otherwise.
    """
    if amount < too_little[0]:
        return fail(name, f"{text}: {too_little[1]}", fix)
    if amount < little[0]:
        return warn(name, f"{text}: {little[1]}", fix)
    return ok(name, text + enough)


def failure_finding(name: str, failure: Failure) -> Finding:
    """The finding for a Failure that a launch would raise."""
    details = f" ({failure.found})" if failure.found else ""
    return Finding(name=name, state="fail", text=failure.what + details, fix=failure.fix, code=failure.code)


def num_failed(findings: Iterable[Finding]) -> int:
    """The number of findings that would break a training."""
    return sum(finding.state == "fail" for finding in findings)
