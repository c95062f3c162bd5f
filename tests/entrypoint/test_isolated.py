"""The commands of a plain virtual environment, with a PYTHONPATH that was meant for another program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = (str(BIN / command[0]), *command[1:])
    environ = {**os.environ, **variables}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.needs_torch
@pytest.mark.parametrize("module", ["yaml", "train", "difflib"])
def test_modules_of_the_caller_do_not_reach_train(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text("raise SystemExit('the wrong module')")
    done = run("train", "check", "--device", "cpu", PYTHONPATH=str(tmp_path))
    assert (done.returncode, "the wrong module" in done.stdout + done.stderr) == (0, False)


def test_what_was_kept_out_is_still_said(tmp_path: Path) -> None:
    done = run("entrypoint", "run", "--logs", str(tmp_path / "logs"), "--", "true", PYTHONPATH=str(tmp_path))
    assert "PYTHONPATH" in done.stdout + done.stderr


def test_a_program_that_is_over_asks_for_no_input() -> None:
    """PYTHONINSPECT lets Python read on from its input, whose end gives the exit code 1 or 0."""
    assert run("entrypoint", "no-such-word", PYTHONINSPECT="1").returncode == 64
    done = run("entrypoint", "show", "--device", "cpu", PYTHONINSPECT="1")
    assert (done.returncode, ">>>" in done.stderr) == (0, False)


@pytest.mark.parametrize("variables", [{}, {"PYTHONPATH": "/nonexistent"}])
def test_words_and_exit_codes_pass(variables: dict[str, str]) -> None:
    done = run("entrypoint", "no-such-word", **variables)
    assert (done.returncode, "no-such-word" in done.stderr) == (64, True)
