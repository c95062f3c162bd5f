"""A rank's output to log, console and memory."""

from __future__ import annotations

import os
import termios
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from entrypoint.errors import Failure
from entrypoint.tee import Console, Tee, open_log


def logged(tmp_path: Path, *chunks: bytes, console: Console | None = None) -> bytes:
    tee = Tee(log=open_log(tmp_path, 3), console=console)
    for chunk in chunks:
        tee.feed(1, chunk)
    tee.close()
    return (tmp_path / "rank-0003.log").read_bytes()


def test_lines_reach_the_log_whole_however_they_are_cut(tmp_path: Path) -> None:
    assert logged(tmp_path, b"one\ntw", b"o\n", b"three") == b"one\ntwo\nthree\n"


def test_a_progress_bar_leaves_its_last_state_only(tmp_path: Path) -> None:
    assert logged(tmp_path, b"\r 1%\r 50%", b"\r100%\n") == b"100%\n"


def test_windows_line_ends_are_no_progress_bar(tmp_path: Path) -> None:
    assert logged(tmp_path, b"text\r\n") == b"text\n"


def test_a_later_start_appends(tmp_path: Path) -> None:
    logged(tmp_path, b"first\n")
    assert logged(tmp_path, b"second\n") == b"first\nsecond\n"


def test_stdout_and_stderr_do_not_cut_each_others_lines(tmp_path: Path) -> None:
    tee = Tee(log=open_log(tmp_path, 0), console=None)
    tee.feed(1, b"out")
    tee.feed(2, b"err\n")
    tee.feed(1, b"put\n")
    tee.close()
    assert (tmp_path / "rank-0000.log").read_bytes() == b"err\noutput\n"


def test_a_full_disk_under_the_log_is_no_failure() -> None:
    with Path("/dev/full").open("ab") as full:
        tee = Tee(log=full, console=None)
        tee.feed(1, b"one\ntwo")
        tee.close()
        assert (list(tee.last_lines), full.closed) == (["one", "two"], True)


def test_the_last_lines_are_remembered_for_a_report(tmp_path: Path) -> None:
    tee = Tee(log=open_log(tmp_path, 0), console=None)
    tee.feed(2, b"".join(b"%d\n" % number for number in range(100)))
    tee.close()
    assert list(tee.last_lines) == [str(number) for number in range(85, 100)]


def test_the_console_gets_the_bytes_as_they_are(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    logged(tmp_path, b"\r50%", console=Console(out=write_end, err=write_end))
    os.close(write_end)
    with os.fdopen(read_end, "rb") as reader:
        assert reader.read() == b"\r50%"


def test_a_terminal_gets_a_ranks_long_line_folded_and_the_log_has_it_whole(tmp_path: Path) -> None:
    line = b"note: " + b"word " * 20 + b"end\n"
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 50))
    with os.fdopen(ours, "rb", buffering=0) as terminal, os.fdopen(theirs, "wb", buffering=0):
        assert logged(tmp_path, line, console=Console(out=theirs, err=theirs, folds=True)) == line
        shown = terminal.read(1000).decode().splitlines()
    assert len(shown) == 3
    assert max(map(len, shown)) <= 50


@pytest.mark.parametrize("folds", [False, True])
def test_without_a_terminal_the_console_gets_whole_lines(tmp_path: Path, folds: bool) -> None:
    line = b"note: " + b"word " * 90 + b"end\n"
    read_end, write_end = os.pipe()
    logged(tmp_path, line, console=Console(out=write_end, err=write_end, folds=folds))
    os.close(write_end)
    with os.fdopen(read_end, "rb") as reader:
        assert reader.read() == line


@pytest.mark.parametrize(
    ("before", "said"), [(b"50%", b"\nERROR\n"), (b"done\n", b"ERROR\n"), (b"50%\r  \r", b"ERROR\n")]
)
def test_a_message_does_not_share_its_line_with_a_bar(tmp_path: Path, before: bytes, said: bytes) -> None:
    (tmp_path / "terminal").touch()
    with (tmp_path / "terminal").open("r+b") as terminal:
        console = Console(out=terminal.fileno(), err=terminal.fileno(), is_terminal=True)
        console.write(console.out, before)
        console.say("ERROR")
    assert (tmp_path / "terminal").read_bytes() == before + said


def test_a_reader_that_went_away_does_not_stop_the_log(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    console = Console(out=write_end, err=write_end)
    assert logged(tmp_path, b"one\n", b"two\n", console=console) == b"one\ntwo\n"
    os.close(write_end)


def test_a_reader_that_stands_still_does_not_hold_up_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entrypoint.tee.CONSOLE_TIMEOUT_S", 0.1)
    read_end, write_end = os.pipe()
    text = b"x" * 50_000 + b"\n"
    assert logged(tmp_path, text, text, text, console=Console(out=write_end, err=write_end)) == 3 * text
    os.close(write_end)
    os.close(read_end)


def test_a_console_that_does_not_block_loses_nothing_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entrypoint.tee.CONSOLE_TIMEOUT_S", 30.0)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with ThreadPoolExecutor(1) as pool, os.fdopen(read_end, "rb") as reader:
        everything = pool.submit(reader.read)
        logged(tmp_path, b"y" * 300_000, b"later\n", console=Console(out=write_end, err=write_end))
        os.close(write_end)
        assert everything.result(timeout=30) == b"y" * 300_000 + b"later\n"


def test_a_line_without_an_end_is_kept_in_pieces(tmp_path: Path) -> None:
    kept = logged(tmp_path, *[b"z" * 65_536] * 20)
    assert kept.replace(b"\n", b"") == b"z" * 65_536 * 20


def test_a_folder_that_cannot_be_written_is_an_output_failure() -> None:
    with pytest.raises(Failure, match="log of rank 0") as caught:
        open_log(Path("/proc/none"), 0)
    assert caught.value.code == 73


@pytest.mark.parametrize("target", ["another user's", None])
def test_a_log_is_written_through_no_link(tmp_path: Path, target: str | None) -> None:
    if target:
        (tmp_path / "other").write_text(target)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0003.log").symlink_to(tmp_path / "other")
    with pytest.raises(Failure, match="log of rank 3") as caught:
        open_log(tmp_path / "logs", 3)
    assert (caught.value.code, (tmp_path / "other").exists()) == (73, target is not None)


def test_a_pipe_in_place_of_a_log_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0000.log")
    with pytest.raises(Failure, match="log of rank 0"):
        open_log(tmp_path, 0)


def test_our_own_ranks_output_is_escaped_and_characters_may_come_in_parts(tmp_path: Path) -> None:
    tee = Tee(log=open_log(tmp_path, 0), console=None, escapes=True)
    for byte in "10 %\rcaf\u00e9 \x1b[2J\u202e\n".encode() + b"\xff\n":
        tee.feed(1, bytes([byte]))
    tee.close()
    assert (tmp_path / "rank-0000.log").read_text() == "café \\x1b[2J\\u202e\n\\xff\n"


def test_a_foreign_programs_output_stays_as_it_is(tmp_path: Path) -> None:
    assert logged(tmp_path, b"\x1b[32mgreen\xff\n") == b"\x1b[32mgreen\xff\n"
