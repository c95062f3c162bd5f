"""The report formats findings as text for a person and as JSON for a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from entrypoint.console import to_printable, wrap_text
from entrypoint.doctor.context import Finding, num_failed

STATE_LABELS = {"ok": "ok", "warn": "warn", "fail": "FAIL"}
_STATE_COLORS = {"ok": "32", "warn": "33", "fail": "1;31"}  # green, yellow, bold red
_FIX_LABEL = "fix:"
_MIN_TEXT_COLUMNS = 30  # with less room nothing is folded


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The JSON object that `doctor --json` prints."""
    rows = [{name: value for name, value in asdict(finding).items() if name != "code"} for finding in findings]
    return {"findings": rows, "failed": num_failed(findings)}


def as_text(findings: Sequence[Finding], *, colour: bool, columns: int | None = None) -> str:
    """One line per finding, its fix below it if it is not ok, and a summary line.

    columns: the terminal's width, to which long lines are folded; None folds nothing, for grep.
    """
    width = max((len(finding.name) for finding in findings), default=0)
    lines = [line for finding in findings for line in _finding_lines(finding, width, colour, columns)]
    return "\n".join([*lines, "", summary_line(findings)])


def as_lines(findings: Sequence[Finding], *, colour: bool, columns: int | None = None) -> list[str]:
    """The findings that are not ok, for the start of a training. columns: as in `as_text`."""
    problems = [finding for finding in findings if finding.state != "ok"]
    return [line for finding in problems for line in _finding_lines(finding, len(finding.name), colour, columns)]


def summary_line(findings: Sequence[Finding]) -> str:
    """The number of findings of each state, in one line."""
    count = {state: sum(finding.state == state for finding in findings) for state in STATE_LABELS}
    if count["fail"]:
        return f"{count['fail']} would break a training here, {count['warn']} to look at, {count['ok']} ok"
    if count["warn"]:
        return f"nothing would break a training here; {count['warn']} to look at, {count['ok']} ok"
    return f"all {count['ok']} ok"


def _finding_lines(finding: Finding, width: int, colour: bool, columns: int | None = None) -> list[str]:
    word = STATE_LABELS[finding.state].ljust(4)
    if colour:
        word = f"\x1b[{_STATE_COLORS[finding.state]}m{word}\x1b[0m"
    indent = " " * (4 + 2 + width + 2)
    text = _wrap_text(to_printable(finding.text), indent, columns)
    fix = _wrap_text(f"{_FIX_LABEL} {to_printable(finding.fix)}", indent, columns) if finding.fix else []
    first = f"{word}  {to_printable(finding.name):<{width}}  {text[0]}"
    return [first, *(indent + line for line in (*text[1:], *fix))]


def _wrap_text(text: str, indent: str, columns: int | None) -> list[str]:
    width = (columns or 0) - len(indent)
    return wrap_text(text, width) if width >= _MIN_TEXT_COLUMNS else [text]
