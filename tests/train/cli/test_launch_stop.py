"""Signals that come before the ranks are started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from processes import bare_python

from entrypoint import Failure
from train import __main__ as front
from train.cli import launch


@contextmanager
def undisturbed() -> Iterator[None]:
    """Handlers are afterwards what they were."""
    before = {signum: signal.getsignal(signum) for signum in launch.STOP_SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@pytest.mark.parametrize(
    ("signum", "code"), [("SIGTERM", 75), ("SIGUSR1", 75), ("SIGUSR2", 75), ("SIGHUP", 75), ("SIGINT", 130)]
)
def test_a_signal_before_the_start_ends_cleanly_even_twice(signum: str, code: int) -> None:
    script = f"""
import os, signal, sys
from train import __main__ as front
def load(*_):
    os.kill(os.getpid(), signal.{signum})
def show(failure):
    os.kill(os.getpid(), signal.{signum})
    return "stopped"
front.training.load.load_config = load
front.Failure.__str__ = show
sys.argv = ["train"]
sys.exit(front.main())
"""
    assert bare_python("-c", script).returncode == code


@pytest.mark.parametrize(("signum", "code"), [("SIGTERM", 75), ("SIGINT", 0), ("SIGHUP", 0)])
def test_of_signals_that_the_caller_ignores_only_a_terminals_stay_ignored(signum: str, code: int) -> None:
    script = f"""
import os, signal, sys
signal.signal(signal.{signum}, signal.SIG_IGN)
from train import __main__ as front
front.COMMANDS["check"] = lambda *_: os.kill(os.getpid(), signal.{signum}) or 0
sys.argv = ["train", "check"]
sys.exit(front.main())
"""
    assert bare_python("-c", script).returncode == code


@pytest.mark.parametrize(
    ("line", "undone"),
    [
        ("", "the training began"),
        ("--config cfg.yaml optim.lr=1", "the training began"),
        ("predict runs/one photos", "all images were answered; each printed line is complete"),
        ("export runs/one --output model", "the model was written"),
        ("report runs/one", "the report was written"),
        ("--config cfg.yaml check", "the plan was made"),
    ],
)
def test_a_command_that_is_asked_to_stop_says_what_it_has_not_done(line: str, undone: str) -> None:
    with undisturbed(), pytest.raises(Failure, match=f"stopped by SIGTERM before {undone}\n"):
        launch.stop_handler(line.split())(signal.SIGTERM, None)


def test_every_command_of_the_front_door_has_its_words_or_its_own_handler() -> None:
    assert {*front.COMMANDS, *front.COMMAND_MODULES} - {"train", "bench"} == set(launch.STOPPED_BEFORE)
