"""docs/problems.md answers thirty symptoms: each has its links and its tests, and all of them exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "problems.md").read_text()
PARTS = re.split(r"^### (\d+)\. (.+)$", TEXT, flags=re.MULTILINE)
# Number -> what stands below its heading.
ANSWERS = {int(number): body.split("\n## ")[0] for number, body in zip(PARTS[1::3], PARTS[3::3], strict=True)}
# Every page: whoever follows a link of one is to arrive.
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def anchor(heading: str) -> str:
    """The name that a heading has in a link: lower case, words joined by hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.M)}


def links(page: Path) -> list[str]:
    """The targets of a page's links to files of ours."""
    return [to for to in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in to]


def missing(page: Path, link: str) -> bool:
    """Whether a link leads nowhere: to no file, or to no heading of it."""
    name, _, part = link.partition("#")
    target = page.parent / name if name else page
    return not target.exists() or (bool(part) and part not in anchors(target))


def defined_in(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_there_are_thirty() -> None:
    assert list(ANSWERS) == list(range(1, 31))


@pytest.mark.parametrize("number", ANSWERS)
def test_each_sends_the_reader_on(number: int) -> None:
    assert re.search(r"^More: \[.+\]\(.+\)", ANSWERS[number], re.M)


@pytest.mark.parametrize("number", ANSWERS)
def test_each_is_shown_by_tests_that_exist(number: int) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", ANSWERS[number])
    assert named
    for path, name in named:
        assert name in defined_in(ROOT / path), f"{path}::{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_of_a_page_leads_nowhere(page: Path) -> None:
    assert not [link for link in links(page) if missing(page, link)]


def test_a_link_that_leads_nowhere_would_be_seen() -> None:
    page = ROOT / "docs" / "problems.md"
    assert links(page)
    assert missing(page, "nowhere.md")
    assert missing(page, "training.md#no-such-part")


def test_no_code_is_named_that_there_is_not() -> None:
    codes = set(re.findall(r"\b(6\d|7\d|9\d)\b(?! %)(?! MB)", TEXT))
    known = set(re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "reference.md").read_text(), re.M))
    assert codes
    assert codes <= known | {"75"}
