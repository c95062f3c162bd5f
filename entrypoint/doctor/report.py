"""Findings to what a person reads, and to the one JSON object that a program reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from entrypoint.doctor.findings import Finding, failed
from entrypoint.errors import CONTROL, ONE_LINE

WORDS = {"ok": "ok", "warn": "warn", "fail": "FAIL"}
_COLOURS = {"ok": "32", "warn": "33", "fail": "1;31"}  # green, yellow, bold red
_FIX = "fix:"


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The object that `doctor --json` promises."""
    return {"findings": [asdict(finding) for finding in findings], "failed": failed(findings)}


def as_text(findings: Sequence[Finding], *, colour: bool) -> str:
    """A line for each finding, one with the fix under each that is not ok, and a last one that counts."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = [line for finding in findings for line in _lines(finding, width, colour)]
    return "\n".join([*lines, "", verdict(findings)])


def as_lines(findings: Sequence[Finding], *, colour: bool) -> list[str]:
    """Only those that are not ok, for the beginning of a training."""
    return [
        line for finding in findings if finding.state != "ok" for line in _lines(finding, len(finding.name), colour)
    ]


def verdict(findings: Sequence[Finding]) -> str:
    """How it went, in one line."""
    count = {state: sum(finding.state == state for finding in findings) for state in WORDS}
    if count["fail"]:
        return f"{count['fail']} would break a training here, {count['warn']} to look at, {count['ok']} ok"
    if count["warn"]:
        return f"nothing would break a training here; {count['warn']} to look at, {count['ok']} ok"
    return f"all {count['ok']} ok"


def _lines(finding: Finding, width: int, colour: bool) -> list[str]:
    word = WORDS[finding.state].ljust(4)
    if colour:
        word = f"\x1b[{_COLOURS[finding.state]}m{word}\x1b[0m"
    lines = [f"{word}  {finding.name:<{width}}  {_plain(finding.text)}"]
    return lines + ([f"{'':4}  {'':{width}}  {_FIX} {_plain(finding.fix)}"] if finding.fix else [])


def _plain(text: str) -> str:
    """A variable's value may hold what a terminal would obey."""
    return text.translate(CONTROL).translate(ONE_LINE)
