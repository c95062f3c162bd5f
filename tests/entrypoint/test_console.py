"""A console that is closed or full loses text and nothing else; messages are folded at a terminal's width."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import processes
import pytest

from entrypoint import ExitCode, Failure, console
from entrypoint.console import (
    NonFailingStream,
    config_words,
    dump_json,
    escape_output,
    fold_complete_lines,
    fold_help,
    fold_text,
    join_lines,
    print_message,
    remember_typed_words,
    shell_command,
    typed_program,
)


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise BrokenPipeError


def test_text_reaches_the_stream() -> None:
    stream = io.StringIO()
    print("step 3", file=NonFailingStream(stream))  # type: ignore[arg-type]
    assert stream.getvalue() == "step 3\n"


def test_what_a_stream_refuses_is_counted() -> None:
    shielded = NonFailingStream(Broken())
    assert shielded.write("text") == 4
    shielded.flush()
    assert shielded.lost == 2


def test_a_stream_closed_in_this_process_is_no_error() -> None:
    stream = io.StringIO()
    stream.close()
    assert NonFailingStream(stream).write("text") == 4


def test_the_rest_is_the_stream_s_own() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    shielded = NonFailingStream(stream)
    assert (shielded.isatty(), shielded.encoding) == (False, "utf-8")


TALKS = """
import sys
from entrypoint.console import protect_output_streams
protect_output_streams({})
protect_output_streams({})
for _ in range(20000):
    print("x" * 100)
    print("y" * 100, file=sys.stderr)
open(sys.argv[1], "w").write(f"done, lost {sys.stdout.lost > 0}")
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_leaves_stops_nothing(tmp_path: os.PathLike[str], stream: str) -> None:
    kept = os.path.join(tmp_path, "kept")
    read, write = os.pipe()
    os.close(read)
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: write}
    done = subprocess.run([sys.executable, "-c", TALKS, kept], timeout=60, check=False, **streams)  # type: ignore[call-overload]
    os.close(write)
    with open(kept) as file:
        assert (done.returncode, file.read()) == (0, f"done, lost {stream == 'stdout'}")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="machine: no /dev/full")
def test_output_to_a_full_disk_stops_nothing(tmp_path: os.PathLike[str]) -> None:
    kept = os.path.join(tmp_path, "kept")
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", TALKS, kept], stdout=full, stderr=full, timeout=60, check=False)
    with open(kept) as file:
        assert (done.returncode, file.read()) == (0, "done, lost True")


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", b"gr\\xf6\\xdfe \\udcff\n"), ("utf-8", b"gr\xc3\xb6\xc3\x9fe \\udcff\n")]
)
def test_what_the_console_cannot_write_is_shown_in_ascii_and_not_left_out(encoding: str, shown: bytes) -> None:
    script = (
        "from entrypoint.console import protect_output_streams as shield; shield({}); print('gr\\xf6\\xdfe \\udcff')"
    )
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    assert subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, timeout=60).stdout == shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("a\rb", "a\\x0db"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\x00\x7f\x9b", "a\\x00\\x7f\\x9b"),
        ("a\u2028\u2029\u202e\u2066", "a\\u2028\\u2029\\u202e\\u2066"),
        (os.fsdecode(b"caf\xe9"), "caf\\udce9"),
        ("Äpfel\t苹果 \\n", "Äpfel\t苹果 \\n"),
    ],
)
def test_a_message_shows_what_controls_a_terminal_as_escapes(name: str, shown: str) -> None:
    stream = io.StringIO()
    print_message(name, stream)
    assert stream.getvalue() == f"{shown}\n"


def test_line_breaks_of_ours_stay_and_those_of_a_name_do_not() -> None:
    text = join_lines(["data", join_lines(["  one", "  tw\no"]), f"also {join_lines(['a', 'b'])}"])
    assert text.split("\n") == ["data", "  one", "  tw\\no", "also a\\nb"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("\r 50%|█████     | step 1/2", "\r 50%|█████     | step 1/2"),
        ("50 %\r", "50 %\r"),
        ("two\nlines\ttab\r\n", "two\nlines\ttab\r\n"),
        ("name\repoch 9\x1b[K", "name\\x0depoch 9\\x1b[K"),
    ],
)
def test_a_stream_keeps_lines_and_bars_and_nothing_that_moves_the_cursor(text: str, written: str) -> None:
    stream = io.StringIO()
    print(text, end="", file=NonFailingStream(stream))  # type: ignore[arg-type]
    assert stream.getvalue() == written


def test_json_has_no_character_that_controls_a_terminal_and_means_the_same() -> None:
    value = {"path": os.fsdecode(b"caf\xe9\x1b"), "name": "苹果\x7f\x9b\u2028\u202e\n"}
    text = dump_json(value, indent=2)
    assert escape_output(text) == text
    assert (json.loads(text), "苹果" in text) == (value, True)


def test_a_failure_is_one_line_for_each_fact() -> None:
    failure = Failure("no\nERROR[1] x", found="a\nb", fix="c\x1b", also=["d\ne"], code=ExitCode.DATA)
    assert str(failure) == "ERROR[65] no\\nERROR[1] x\n  found: a\\nb\n  fix: c\\x1b\n  also: d\\ne"


def test_on_a_terminal_each_way_of_a_fix_has_a_line_of_its_own() -> None:
    fix = "set data.root to the folder of the classes; or name a table of labels; or train on drawn images"
    text = str(Failure("nothing is there", fix=fix, code=ExitCode.DATA))
    assert fold_text(text, 60).splitlines() == [
        "ERROR[65] nothing is there",
        "  fix: set data.root to the folder of the classes",
        "       or name a table of labels",
        "       or train on drawn images",
    ]
    assert fold_text(text, None) == text  # without one, a fact stays on one line for grep


@pytest.mark.parametrize("label", ["report:", "predict:", "continue:", "evaluate:", "train on them:", "next:"])
def test_a_command_to_copy_is_not_folded(label: str) -> None:
    line = f"{label:<14} /my/environment/bin/train predict runs/photos 'my photos/a cat.jpg' --config 'my cfg.yaml'"
    assert fold_text(line, 60) == line


PATH = "/usr/bin:/opt/venv/bin"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("/opt/venv/bin/train", ["train"]),
        ("/my/.venv/bin/train", ["/my/.venv/bin/train"]),
        (".venv/bin/train", [".venv/bin/train"]),
        ("/my/checkout/train/__main__.py", ["python3", "-m", "train"]),
    ],
)
def test_a_program_is_named_as_it_was_typed(program: str, words: list[str]) -> None:
    assert typed_program(program, "python3", PATH, isolated=False) == words


def test_what_a_command_of_ours_started_goes_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "train").touch(0o755)
    module = "/any/where/train/__main__.py"
    assert typed_program(module, "/usr/bin/python", str(tmp_path), isolated=True) == ["train"]
    assert typed_program(module, str(tmp_path / "python"), "/nowhere", isolated=True) == [str(tmp_path / "train")]


@pytest.fixture
def typed() -> Iterator[Callable[..., None]]:
    """Pretend that the user typed these words."""
    yield lambda *words: remember_typed_words(words)
    remember_typed_words(())


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("train",), "train data index 'my shards'"),
        ((".venv/bin/train", "data", "check"), ".venv/bin/train data index 'my shards'"),
        (("/my env/bin/entrypoint",), "'/my env/bin/train' data index 'my shards'"),
        (("python3", "-m", "entrypoint"), "python3 -m train data index 'my shards'"),
    ],
)
def test_a_command_begins_as_the_typed_one(words: tuple[str, ...], command: str, typed: Callable[..., None]) -> None:
    typed(*words)
    assert shell_command("train data index", "my shards") == command


def test_a_command_on_the_same_data_repeats_what_was_typed_of_it(typed: Callable[..., None]) -> None:
    typed("train", "--device", "cpu", "--config", "my cfg.yaml", "data.root=a (b)", "--time-limit=5")
    command = shell_command("train data check", same_config=True)
    assert command == "train data check --config 'my cfg.yaml' 'data.root=a (b)'"


def test_the_words_of_a_configuration_are_known_by_their_form() -> None:
    assert config_words(["train", "--config=a.yaml", "x.y=1", "--json"]) == ["--config=a.yaml", "x.y=1"]


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
