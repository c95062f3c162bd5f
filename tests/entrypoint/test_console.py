"""A console that is closed or full loses text, and nothing else happens."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from entrypoint import ExitCode, Failure
from entrypoint.console import NonFailingStream, dump_json, escape_output, join_lines, print_message


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
