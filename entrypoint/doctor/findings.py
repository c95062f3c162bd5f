"""What a check has found, in the three words that a user acts on: ok, warn, fail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from entrypoint.errors import Failure

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact about this place.

    Attributes:
        name: the subject, a word or two. state: `fail` would break a training, `warn` would cost something.
        text: what was seen, with its numbers. fix: one command or edit; empty where all is well.
    """

    name: str
    state: State
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


def refused(name: str, failure: Failure) -> Finding:
    """The finding for what a start would refuse."""
    seen = f" ({failure.found})" if failure.found else ""
    return fail(name, failure.what + seen, failure.fix)


def failed(findings: Iterable[Finding]) -> int:
    """How many would break a training."""
    return sum(finding.state == "fail" for finding in findings)
