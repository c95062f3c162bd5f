"""`entrypoint doctor`, typed as a user types it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from subprocess import DEVNULL

import pytest
from processes import python

CPU = ("--device", "cpu")


def doctor(*options: str, **environ: str):  # type: ignore[no-untyped-def]
    return python("-m", "entrypoint", "doctor", *options, environ=environ)


def test_a_good_place_ends_with_0_and_says_so(tmp_path: Path) -> None:
    done = doctor(*CPU, "--output", str(tmp_path), HOME=str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("ok    plan ")
    assert "FAIL" not in done.stdout
    assert done.stderr == ""


def test_a_bad_place_ends_with_78_and_a_fix(tmp_path: Path) -> None:
    done = doctor(*CPU, "--output", "/proc/nowhere")
    assert done.returncode == 78
    assert "FAIL  output " in done.stdout
    assert "fix:" in done.stdout.partition("FAIL")[2]


def test_json_is_one_object_that_counts_failures(tmp_path: Path) -> None:
    done = doctor("--json", *CPU, "--output", "/proc/nowhere")
    report = json.loads(done.stdout)
    assert set(report) == {"findings", "failed"}
    assert all(set(each) == {"name", "state", "text", "fix"} for each in report["findings"])
    assert report["failed"] == sum(each["state"] == "fail" for each in report["findings"]) == 1


def test_a_bad_option_is_64_with_a_fix() -> None:
    done = doctor("--bogus")
    assert (done.returncode, "fix:" in done.stderr) == (64, True)


def test_without_a_terminal_there_is_no_colour() -> None:
    assert "\x1b" not in doctor(*CPU).stdout


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_terminal_has_colour_unless_told(variables: dict[str, str], coloured: bool) -> None:
    ours, theirs = os.openpty()
    environ = {"TERM": "xterm", **variables}
    python("-m", "entrypoint", "doctor", *CPU, environ=environ, capture_output=False, stdout=theirs, stdin=DEVNULL)
    os.close(theirs)
    text = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "  plan  " in text
    assert ("\x1b[32mok" in text) == coloured


def test_the_doctor_needs_neither_torch_nor_yaml() -> None:
    code = "import sys, entrypoint.__main__ as m; m.main(['doctor', '--device', 'cpu']); print(sorted(sys.modules))"
    modules = python("-c", code).stdout
    assert "'entrypoint.doctor'" in modules
    assert not any(f"'{name}'" in modules for name in ("torch", "yaml", "numpy"))
