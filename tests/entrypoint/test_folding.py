"""Messages on a terminal are folded at spaces; without one they stay whole."""

from __future__ import annotations

import io
import os
import termios

import processes
import pytest

from entrypoint import console
from entrypoint.console import fold_complete_lines, fold_help, fold_text

LONG = "note: the images are read by four data workers, which is one for each processor"
FOLDED = "note: the images are read by four data\n  workers, which is one for each processor"


def test_a_long_message_goes_on_in_indented_lines() -> None:
    assert fold_text(LONG, 42) == FOLDED


def test_without_a_terminal_it_is_one_line() -> None:
    assert fold_text(LONG, None) == LONG


def test_what_fits_stays_as_it_is() -> None:
    assert fold_text(LONG, len(LONG)) == LONG


def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost() -> None:
    for columns in range(console.MIN_FOLD_COLUMNS, 100):
        lines = fold_text(LONG, columns).splitlines()
        assert max(map(len, lines)) <= columns
        assert " ".join(map(str.strip, lines)) == LONG


def test_a_terminal_that_is_too_narrow_for_words_folds_nothing() -> None:
    assert fold_text(LONG, console.MIN_FOLD_COLUMNS - 1) == LONG


@pytest.mark.parametrize("name", ["output", "a", "weak classes", "reproducible"])
def test_the_value_of_a_fact_goes_on_below_its_value(name: str) -> None:
    lines = fold_text(f"{name:<14} runs/small and then a word or two", 40).splitlines()
    assert [line.find(word) for line, word in zip(lines, ["runs/small", "word"], strict=True)] == [15, 15]


def test_a_part_of_an_error_goes_on_below_its_part() -> None:
    lines = fold_text("ERROR[64] no\n  fix: write a word that is known, or leave it out", 40).splitlines()
    assert lines == ["ERROR[64] no", "  fix: write a word that is known, or", "    leave it out"]


def test_a_path_stays_whole_to_be_copied() -> None:
    path = "/".join(["folder"] * 9)
    assert fold_text(f"output         {path}", 40) == f"output         {path}"
    assert path in fold_text(f"note: a run lies in {path} now", 40).split()


@pytest.mark.parametrize(
    "line",
    [
        '{"accuracy": 0.5, "classes": ["a", "b"], "steps": 1}',
        "| a table | of Markdown | that is rather wide |",
        "  | what another program has said, as it was said",
        "name      12.5  ms      13.5  ms      14.5  ms",
        "\x1b[33mwarn\x1b[0m what has colours was laid out already",
    ],
)
def test_what_was_laid_out_by_somebody_is_left_alone(line: str) -> None:
    assert fold_text(line, 40) == line


def test_a_message_above_a_bar_is_folded_and_the_bar_left_alone() -> None:
    bar = b"\r 10%|#    | step 1/10, loss 0.500, 1,234 images/s, 10 min left"
    data = b"\r    \r" + LONG.encode() + b"\n" + bar
    assert fold_complete_lines(data, 42, begun=True) == b"\r    \r" + FOLDED.encode() + b"\n" + bar


def test_the_end_of_a_line_that_has_begun_is_not_folded() -> None:
    data = f"{LONG}\n{LONG}\n".encode()
    assert fold_complete_lines(data, 42, begun=True) == f"{LONG}\n{FOLDED}\n".encode()


def test_bytes_that_are_no_text_come_through() -> None:
    data = b" ".join([b"\xff\xfe"] * 20) + b"\n"
    assert fold_complete_lines(data, 40, begun=False).replace(b"\n  ", b" ") == data


def test_a_stream_without_a_terminal_gets_whole_lines() -> None:
    out = io.StringIO()
    console.print_message(LONG, out)
    assert out.getvalue() == f"{LONG}\n"


def test_a_terminal_is_asked_how_wide_it_is() -> None:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 42))
    with os.fdopen(ours, "rb", buffering=0) as terminal, os.fdopen(theirs, "w") as stream:
        console.print_message(LONG, stream)
        assert terminal.read(200) == f"{FOLDED}\n".replace("\n", "\r\n").encode()


def test_an_indented_fact_goes_on_below_its_value() -> None:
    line = "  duplicates   2: pictures/a.png = pictures/b.png; pictures/c.png = pictures/d.png"
    assert fold_text(line, 60).splitlines() == [
        "  duplicates   2: pictures/a.png = pictures/b.png;",
        "               pictures/c.png = pictures/d.png",
    ]


def test_an_explanation_in_a_help_stays_in_its_column() -> None:
    line = "  train data check --config cfg.yaml   read every sample once: broken files, sizes"
    assert fold_help(line, 70).splitlines() == [
        "  train data check --config cfg.yaml   read every sample once: broken",
        " " * 39 + "files, sizes",
    ]


def test_an_explanation_for_which_no_room_is_left_stands_below() -> None:
    line = "  train data check --config cfg.yaml   read every sample once: broken files"
    assert fold_help(line, 50).splitlines() == [
        "  train data check --config cfg.yaml",
        "      read every sample once: broken files",
    ]


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize(
    "command",
    [
        "entrypoint",
        "entrypoint show",
        *(pytest.param(c, marks=pytest.mark.needs_torch) for c in ("train", "train eval")),
    ],
)
def test_a_help_fits_the_terminal_and_loses_no_word(command: str, columns: int) -> None:
    text = processes.python("-m", *command.split(), "--help", environ={"COLUMNS": "300"}).stdout
    lines = fold_help(text, columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert " ".join(lines).split() == text.split()
    assert lines[0].startswith("usage: ")
