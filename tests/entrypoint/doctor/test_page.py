"""docs/doctor.md lists the findings that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/doctor.md").read_text()
TOLD_APART = {"network", "all-reduce", "pairs", "transport"}  # in the text below the table, or nothing to say


def named() -> set[str]:
    """The first argument of each ok(), warn(), fail() and graded() that is written out."""
    texts: set[str] = set()
    for path in (ROOT / "entrypoint/doctor").glob("*.py"):
        tree = ast.parse(path.read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        calls = [call for call in calls if ast.unparse(call.func) in ("ok", "warn", "fail", "graded")]
        values = [call.args[0].value for call in calls if call.args and isinstance(call.args[0], ast.Constant)]
        texts |= {value for value in values if isinstance(value, str)}
    return texts


def listed() -> set[str]:
    """The names in the first column of the table."""
    cells = re.findall(r"^\| (`.*?) \|", PAGE, re.M)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_each_finding_of_the_code_is_on_the_page() -> None:
    assert len(named()) > 20
    assert named() - TOLD_APART - listed() == set()


def test_each_finding_of_the_page_is_in_the_code() -> None:
    assert listed() - named() == {"driver"}  # its name is a constant


def test_the_page_names_both_options() -> None:
    assert "--json" in PAGE
    assert "--full" in PAGE
