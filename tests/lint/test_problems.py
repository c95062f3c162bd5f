"""docs/problems.md: by symptom what one reads, looks at and does; all that it links to, quotes and types exists."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from train.__main__ import COMMAND_MODULES, COMMANDS, build_parser

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "problems.md").read_text()
PARTS = re.split(r"^### (.+)$", TEXT, flags=re.MULTILINE)
# Heading -> what stands below it.
ENTRIES = {heading: body.split("\n## ")[0] for heading, body in zip(PARTS[1::2], PARTS[2::2], strict=True)}
NUMBERED = {int(match[1]): heading for heading in ENTRIES if (match := re.match(r"(\d+)\. ", heading))}
FIRST_HOUR = [heading for heading in ENTRIES if heading not in NUMBERED.values()]
PROGRAMS = (
    "train",
    "entrypoint",
    "srun",
    "apptainer",
    "squeue",
    "nvidia-smi",
    "cat",
    "df",
    "getent",
    "ip",
    "ls",
    "nproc",
    "ss",
    "tail",
)
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


# Anchor of an entry -> the tests that keep it true.
TESTS = (ROOT / "docs" / "evidence" / "problems.md").read_text()
KEPT = dict(re.findall(r"^\| \[.+\]\(\.\./problems\.md#([\w-]+)\) \| (\[`test_.+) \|$", TESTS, re.M))


def defined_in(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def part(heading: str, name: str) -> str:
    """One of the three parts of an entry, in one line."""
    match = re.search(rf"^- \*\*{name}:\*\*\s(.+?)(?=^- |^\n)", ENTRIES[heading] + "\n\n", re.M | re.S)
    return " ".join(match[1].split()) if match else ""


def literals(path: Path) -> set[str]:
    """The texts in a module; a value in one is a zero byte."""
    texts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [str(value.value) if isinstance(value, ast.Constant) else "\0" for value in node.values]
            texts.add("".join(parts))
    return texts


SOURCES = [path for package in ("entrypoint", "train", "bench") for path in (ROOT / package).rglob("*.py")]
SAID = "\n".join(text for path in SOURCES for text in sorted(literals(path)))


def quotes(heading: str) -> list[str]:
    """The pieces of our own messages in an entry's first part, as they stand between what differs each time."""
    spans = [span for span in re.findall(r"`([^`]+)`", part(heading, "You see")) if " " in span]
    return [piece.strip() for span in spans for piece in span.split("...") if len(piece.strip()) > 1]


def typed(heading: str) -> list[list[str]]:
    """The commands of an entry's second part."""
    spans = re.findall(r"`([^`]+)`", part(heading, "Look at"))
    return [words for span in spans if (words := span.split())[0] in PROGRAMS]


def test_all_thirty_are_there_in_order_after_nine_of_the_first_hour() -> None:
    assert list(NUMBERED) == list(range(1, 31))
    assert list(ENTRIES)[: len(FIRST_HOUR)] == FIRST_HOUR
    assert len(FIRST_HOUR) == 9


@pytest.mark.parametrize("heading", ENTRIES)
def test_each_says_what_one_sees_what_to_look_at_and_what_to_do(heading: str) -> None:
    assert all(part(heading, name).endswith(".") for name in ("You see", "Look at", "Do"))


@pytest.mark.parametrize("heading", ENTRIES)
def test_a_message_that_is_quoted_is_one_of_ours(heading: str) -> None:
    assert [piece for piece in quotes(heading) if piece not in SAID] == []


def test_a_message_that_nobody_says_would_be_seen() -> None:
    assert sum(map(len, map(quotes, ENTRIES))) > 30
    assert "no GPU can be found in this place" not in SAID


@pytest.mark.parametrize("heading", ENTRIES)
def test_what_to_look_at_is_a_command_that_there_is(heading: str) -> None:
    assert typed(heading)
    for words in typed(heading):
        words = words[words.index("train") :] if "train" in words else words
        if words[0] == "train" and words[1] not in COMMAND_MODULES:
            asked = build_parser().parse_intermixed_args(shlex.split(" ".join(words[1:])))
            assert (asked.words or ["train"])[0] in COMMANDS


@pytest.mark.parametrize("heading", ENTRIES)
def test_each_sends_the_reader_on(heading: str) -> None:
    assert re.search(r"More:\s\[", ENTRIES[heading])


@pytest.mark.parametrize("heading", ENTRIES)
def test_each_is_kept_true_by_tests_that_exist(heading: str) -> None:
    named = re.findall(r"\[`(\w+)`\]\(\.\./\.\./(tests/[\w/]+\.py)\)", KEPT[anchor(heading)])
    assert named
    for name, path in named:
        assert name in defined_in(ROOT / path), f"{path}::{name}"


def test_the_table_of_tests_has_the_entries_in_their_order_and_no_other() -> None:
    assert list(KEPT) == [anchor(heading) for heading in ENTRIES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_of_a_page_leads_nowhere(page: Path) -> None:
    assert not [link for link in links(page) if missing(page, link)]


def test_a_link_that_leads_nowhere_would_be_seen() -> None:
    page = ROOT / "docs" / "problems.md"
    assert links(page)
    assert missing(page, "nowhere.md")
    assert missing(page, "training.md#no-such-part")


# What names a page in its messages and comments: "docs/PAGE.md", or "docs/PAGE.md: Heading".
NAMING = [path for name in ("entrypoint", "train", "bench", "launch", "configs", "image", "Makefile")
          for path in (ROOT / name, *(ROOT / name).rglob("*")) if path.is_file() and path.suffix != ".pyc"]  # fmt: skip


def test_a_page_that_a_message_names_exists_and_so_does_its_heading() -> None:
    named = {
        (path.relative_to(ROOT), page, heading)
        for path in NAMING
        for page, heading in re.findall(r"\bdocs/([\w/-]+\.md)(?:[:,] ([A-Z][a-z][\w ]+))?", path.read_text())
    }
    assert {"Sign and verify", "One more package"} <= {heading for _, _, heading in named}
    wrong = [each for each in named if missing(ROOT / "docs" / "x", f"{each[1]}#{anchor(each[2])}".rstrip("#"))]
    assert wrong == []


def test_no_code_is_named_that_there_is_not() -> None:
    codes = set(re.findall(r"\b(6\d|7\d|9\d)\b(?! %)(?! MB)", TEXT))
    known = set(re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "reference.md").read_text(), re.M))
    assert codes
    assert codes <= known | {"75"}
