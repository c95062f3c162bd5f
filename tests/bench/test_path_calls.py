"""Which of the calls that strace has seen are counted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from processes import unmeasured

from bench import path_calls
from entrypoint import ExitCode, Failure

SEEN = """\
10   execve("/bin/python", ["python", "-m", "train"], 0x7 /* 9 vars */) = 0
10   openat(AT_FDCWD, "/etc/passwd", O_RDONLY) = 3
11   execve("/lost/python", ["python", "-m", "train.worker"], 0x7 /* 9 vars */) = -1 ENOENT (No such file)
12   execve("/bin/python", ["python", "-m", "train.worker"], 0x7 /* 9 vars */) = 0
12   newfstatat(AT_FDCWD, "/usr", {st_mode=S_IFDIR|0755}, 0) = 0
13   openat(AT_FDCWD, "/proc/self/maps", O_RDONLY) = 4
12   +++ exited with 0 +++
"""


def test_calls_of_one_thread_are_counted() -> None:
    assert path_calls.count_lines(SEEN.splitlines(), "train.worker") == 3
    assert path_calls.count_lines(SEEN.splitlines(), None) == 2
    assert path_calls.count_lines(SEEN.splitlines(), "another") == 0


def test_a_call_that_another_thread_interrupts_is_counted_once() -> None:
    interrupted = '12   openat(AT_FDCWD, "/usr" <unfinished ...>\n12   <... openat resumed>, O_RDONLY) = 3\n'
    assert path_calls.count_lines((SEEN + interrupted).splitlines(), "train.worker") == 4


def test_a_start_that_another_thread_interrupts_is_one() -> None:
    start = '12   execve("/bin/python", ["python", "-m", "train.worker"], 0x7 /* 9 vars */'
    resumed = "12   <... execve resumed>)             = "  # strace aligns the results of short lines
    interrupted = SEEN.replace(f"{start}) = 0\n", f"{start} <unfinished ...>\n13   +++ exited with 0 +++\n{resumed}0\n")
    assert interrupted != SEEN
    assert path_calls.count_lines(interrupted.splitlines(), "train.worker") == 3
    failed = interrupted.replace(f"{resumed}0", f"{resumed}-1 EACCES")
    assert path_calls.count_lines(failed.splitlines(), "train.worker") == 0


@pytest.mark.skipif(path_calls.find_strace(unmeasured()) is None, reason="strace is not here")
def test_a_program_that_is_not_seen_is_told_and_has_not_asked_for_nothing(tmp_path: Path) -> None:
    program = path_calls.find_strace(unmeasured())
    assert program is not None
    with pytest.raises(Failure, match="did not see") as caught:
        path_calls.count_path_calls(program, [sys.executable, "-c", "pass"], {}, tmp_path, mark="train.worker")
    assert caught.value.code == ExitCode.PEER


@pytest.mark.skipif(path_calls.find_strace(unmeasured()) is None, reason="strace is not here")
def test_a_program_that_asks_more_is_seen_to_ask_more(tmp_path: Path) -> None:
    program = path_calls.find_strace(unmeasured())
    assert program is not None
    few, many = (
        path_calls.count_path_calls(
            program, [sys.executable, "-c", f"import os; [os.stat('/') for _ in range({n})]"], {}, tmp_path
        )
        for n in (10, 35)
    )
    assert many - few == 25


@pytest.mark.skipif(path_calls.find_strace(unmeasured()) is None, reason="strace is not here")
def test_a_program_that_fails_is_told(tmp_path: Path) -> None:
    program = path_calls.find_strace(unmeasured())
    assert program is not None
    with pytest.raises(Failure, match="broken") as caught:
        path_calls.count_path_calls(program, [sys.executable, "-c", "raise SystemExit('broken')"], {}, tmp_path)
    assert caught.value.code == ExitCode.PEER
