"""What a person and a program read."""

from __future__ import annotations

import pytest

from entrypoint import console
from entrypoint.doctor import report
from entrypoint.doctor.context import fail, ok, warn

FOUND = [ok("gpus", "4 of 4"), warn("home", "not writable", "set HOME"), fail("memory", "1 MiB", "ask for more")]


def test_the_text_has_a_line_for_each_and_a_fix_under_what_is_not_ok() -> None:
    assert report.as_text(FOUND, colour=False).splitlines() == [
        "ok    gpus    4 of 4",
        "warn  home    not writable",
        "              fix: set HOME",
        "FAIL  memory  1 MiB",
        "              fix: ask for more",
        "",
        "1 would break a training here, 1 to look at, 1 ok",
    ]


def test_colour_is_in_the_first_word_only() -> None:
    first, *_ = report.as_text(FOUND, colour=True).splitlines()
    assert first == "\x1b[32mok  \x1b[0m  gpus    4 of 4"


def test_json_is_the_promised_object() -> None:
    findings = report.as_json(FOUND)
    assert findings["failed"] == 1
    assert findings["findings"][0] == {"name": "gpus", "state": "ok", "text": "4 of 4", "fix": ""}


def test_the_short_form_shows_only_what_is_not_ok() -> None:
    assert report.as_lines(FOUND, colour=False) == [
        "warn  home  not writable",
        "            fix: set HOME",
        "FAIL  memory  1 MiB",
        "              fix: ask for more",
    ]


@pytest.mark.parametrize(
    ("terminal", "environ", "coloured"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_only_a_terminal_that_wants_colour_gets_it(terminal: bool, environ: dict[str, str], coloured: bool) -> None:
    assert console.use_color(terminal, environ) is coloured


def test_all_well_is_one_word() -> None:
    assert report.summary_line(FOUND[:1]) == "all 1 ok"


def test_a_value_cannot_steer_the_terminal() -> None:
    text = report.as_text([ok("variables", "A=\x1b[2J\nFAIL")], colour=False)
    assert "\x1b" not in text
    assert text.splitlines()[0] == "ok    variables  A=\\x1b[2J\\nFAIL"


def test_on_a_terminal_long_lines_are_folded_below_their_text() -> None:
    findings = [
        fail("memory", "one two three four five six seven eight nine ten", "ask for a-very-long-word-" + "x" * 40)
    ]
    assert report.as_text(findings, colour=True, columns=50).splitlines()[:4] == [
        "\x1b[1;31mFAIL\x1b[0m  memory  one two three four five six seven",
        "              eight nine ten",
        "              fix: ask for",
        "              a-very-long-word-" + "x" * 40,
    ]


def test_a_very_narrow_terminal_folds_nothing() -> None:
    assert report.as_text(FOUND, colour=False, columns=20) == report.as_text(FOUND, colour=False)
