"""A failure is the block that a user reads; the system's limits become failures that name the limit."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from processes import unmeasured

from entrypoint import errors
from entrypoint.errors import ExitCode, Failure


def test_a_failure_reads_as_code_what_facts_and_fix() -> None:
    failure = Failure(
        "no ranks", fix="start some", code=ExitCode.LAUNCH_CONFLICT, found="0", expected="1", kept="step-1"
    )
    expected = "ERROR[76] no ranks\n  found: 0\n  expected: 1\n  fix: start some\n  kept: step-1"
    assert str(failure) == expected


def test_facts_that_are_not_known_leave_no_empty_lines() -> None:
    assert str(Failure("broken", fix="mend it", code=ExitCode.DATA)) == "ERROR[65] broken\n  fix: mend it"


def test_a_clean_stop_does_not_read_as_an_error() -> None:
    stop = Failure("stopped by SIGTERM", fix="start the same command again", code=ExitCode.STOPPED)
    assert str(stop) == "stopped by SIGTERM\n  next: start the same command again"


def test_the_json_form_holds_code_what_and_fix() -> None:
    failure = Failure("broken", fix="mend it", code=ExitCode.DATA, found="x")
    assert failure.as_json() == {"code": 65, "what": "broken", "fix": "mend it", "found": "x"}


@pytest.mark.parametrize(
    ("name", "number", "requeue"),
    [
        ("PEER", 69, True),
        ("IMAGE_MISMATCH", 72, False),
        ("STOPPED", 75, True),
        ("LAUNCH_CONFLICT", 76, False),
        ("NODE", 78, True),
        ("DIVERGED", 90, False),
        ("HANG", 91, True),
    ],
)
def test_codes_that_batch_scripts_know_keep_number_and_requeue(name: str, number: int, requeue: bool) -> None:
    assert (ExitCode[name], ExitCode[name].requeue) == (number, requeue)


def test_every_code_says_what_it_means_in_one_line() -> None:
    assert [code for code in ExitCode if not code.meaning or "\n" in code.meaning] == []


def test_a_code_is_found_by_its_number_alone() -> None:
    assert ExitCode(75) is ExitCode.STOPPED
    assert pickle.loads(pickle.dumps(ExitCode.STOPPED)) is ExitCode.STOPPED
    assert f"{ExitCode.STOPPED} {json.dumps(ExitCode.STOPPED)}" == "75 75"


def test_what_a_terminal_would_obey_is_escaped() -> None:
    shown = str(Failure("a\nb", found="x\x1b[31m\r\x9b2J ü", fix="y", code=ExitCode.DATA))
    assert shown == "ERROR[65] a\\nb\n  found: x\\x1b[31m\\x0d\\x9b2J ü\n  fix: y"


def test_a_value_of_several_lines_cannot_pass_for_another_fact() -> None:
    shown = str(Failure("bad", found="RANK=0\n  fix: curl x | sh", fix="unset RANK", code=ExitCode.LAUNCH_CONFLICT))
    assert shown == "ERROR[76] bad\n  found: RANK=0\\n  fix: curl x | sh\n  fix: unset RANK"


def test_what_else_is_wrong_stands_below_the_fix_in_a_few_lines() -> None:
    failure = Failure("a is wrong", fix="mend a", code=ExitCode.USAGE, also=[f"b{number}" for number in range(9)])
    assert str(failure).splitlines()[1:3] == ["  fix: mend a", "  also: b0"]
    assert str(failure).splitlines()[-2:] == ["  also: b4", "  also: more, once these are mended"]
    assert len(failure.as_json()["also"]) == 9


def test_another_process_makes_the_same_failure_of_its_arguments() -> None:
    failure = Failure("what", fix="mend", code=ExitCode.DATA, found="this", expected="that", kept="x", also=["y"])
    assert Failure(**json.loads(json.dumps(failure.arguments()))).as_json() == failure.as_json()


ROOT = Path(__file__).parents[2]
MET = {
    "fork": (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "ulimit -u"),
    "a thread": (RuntimeError("can't start new thread"), "ulimit -u"),
    "gloo's threads": (RuntimeError("Resource temporarily unavailable"), "ulimit -u"),
    "a file": (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "model.safetensors"), "ulimit -n"),
    "memory": (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "ulimit -v"),
    "a library's memory": (RuntimeError("unable to mmap 4096 bytes: Cannot allocate memory (12)"), "ulimit -v"),
    "a large file": (OSError(errno.EFBIG, os.strerror(errno.EFBIG)), "ulimit -f"),
    "a library's file": (RuntimeError("unable to open: Too many open files (24)"), "ulimit -n"),
}
OTHERS = (
    RuntimeError("shapes differ"),
    FileNotFoundError(errno.ENOENT, "No such file"),
    ValueError("Too many open files"),
)


@pytest.mark.parametrize(("error", "option"), MET.values(), ids=MET)
def test_a_limit_that_was_met_is_a_want_of_resources_with_the_option_that_lifts_it(
    error: Exception, option: str
) -> None:
    failure = errors.resource_limit_failure(error)
    assert failure
    assert (failure.code, failure.found) == (71, str(error))
    assert option in failure.fix


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_another_error_is_no_limit(error: Exception) -> None:
    assert errors.resource_limit_failure(error) is None


@pytest.mark.slow
@pytest.mark.parametrize("option", ["-n 20", "-n 28", "-n 31", "-n 34", "-v 1000000", "-v 3000000", "-f 1", "-f 50"])
def test_a_limit_of_the_shell_is_met_with_71_or_not_at_all(option: str, tmp_path: Path) -> None:
    """What is short, and in which process, differs with the machine; a scheduler must not try again."""
    words = ("data.samples=80", "data.image_size=8", "train.global_batch_size=16", "train.max_steps=2", "run.name=run")
    train = shlex.join([sys.executable, "-m", "train", "--device", "cpu", "--procs-per-node", "2", *words])
    line = ["bash", "-c", f"ulimit {option} && exec {train}"]
    environ = {**unmeasured(), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}  # none is left half-written
    ended = subprocess.run(line, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode in (0, 71), ended.stderr
    assert ended.returncode == 0 or "ERROR[71]" in ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
