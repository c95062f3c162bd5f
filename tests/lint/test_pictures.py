"""docs/pictures.py draws what a terminal shows; the pictures that documents show are there, small, and load nothing."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import pictures

ROOT = pictures.ROOT
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = sorted({page.parent / to for page in PAGES for to in re.findall(r"!\[[^\]]+\]\(([^)\s]+)\)", page.read_text())})


def texts(drawn: str) -> list[tuple[str | None, str | None]]:
    """(classes, letters) of all texts in an SVG."""
    elements = ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")
    return [(text.get("class"), text.text) for text in elements]


def test_letters_that_mean_something_in_xml_are_shown_as_they_are() -> None:
    assert texts(pictures.svg(['a < b & "c"'], 20)) == [("", 'a < b & "c"')]


def test_colours_begin_and_end_where_the_terminal_s_do() -> None:
    drawn = pictures.svg(["\x1b[1;32mok\x1b[0m plain", "\x1b[93mwarn", "still\x1b[39m not"], 20)
    assert texts(drawn) == [("b c32", "ok"), ("", " plain"), ("c33", "warn"), ("c33", "still"), ("", " not")]


def test_each_piece_stands_in_its_column() -> None:
    assert [piece[:2] for piece in pictures.pieces(["ab\x1b[1mcd", "   \x1b[0mx"])] == [(0, 0), (0, 2), (1, 3)]


def test_the_documents_show_all_pictures() -> None:
    assert {picture.resolve().name for picture in SHOWN} == {"architecture.svg", "report.png", "terminal.svg"}
    assert {path.name for path in pictures.FOLDER.iterdir()} == {path.name for path in SHOWN}


@pytest.mark.parametrize("picture", SHOWN, ids=lambda path: path.name)
def test_a_picture_in_a_document_is_there_and_small(picture: Path) -> None:
    assert 3_000 < picture.stat().st_size < 200_000


def test_the_terminal_is_that_of_the_command_and_runs_nothing() -> None:
    drawn = (pictures.FOLDER / "terminal.svg").read_text()
    assert pictures.TYPED in "".join(letters or "" for _, letters in texts(drawn))
    assert not re.search(r"<script|href|url\(|/(?:home|work|root|tmp)/", drawn)
