"""Signals that come before the ranks are started."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CPU = ("--device", "cpu")


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A real interpreter, in an environment of its own."""
    environ = {"PATH": os.environ["PATH"], "HOME": ".", **variables}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, env=environ)


@pytest.mark.parametrize(("signum", "code"), [("SIGTERM", 75), ("SIGUSR1", 75), ("SIGUSR2", 75), ("SIGINT", 130)])
def test_a_signal_before_the_start_ends_cleanly_even_twice(signum: str, code: int) -> None:
    script = f"""
import os, signal, sys
from train import __main__ as front
def load(*_):
    os.kill(os.getpid(), signal.{signum})
def show(failure):
    os.kill(os.getpid(), signal.{signum})
    return "stopped"
front.training.schema.load = load
front.Failure.__str__ = show
sys.argv = ["train"]
sys.exit(front.main())
"""
    assert python("-c", script).returncode == code


@pytest.mark.parametrize(("signum", "code"), [("SIGTERM", 75), ("SIGINT", 0)])
def test_of_signals_that_the_caller_ignores_only_ctrl_c_stays_ignored(signum: str, code: int) -> None:
    script = f"""
import os, signal, sys
signal.signal(signal.{signum}, signal.SIG_IGN)
from train import __main__ as front
front.COMMANDS["check"] = lambda *_: os.kill(os.getpid(), signal.{signum}) or 0
sys.argv = ["train", "check"]
sys.exit(front.main())
"""
    assert python("-c", script).returncode == code
