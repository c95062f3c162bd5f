"""When a signal ends a rank at once, and when it waits."""

from __future__ import annotations

import signal

import pytest

from entrypoint import ExitCode, Failure
from train.bell import Bell


def test_before_the_first_step_a_signal_ends_the_rank() -> None:
    with pytest.raises(Failure, match="stopped by SIGTERM before the first step") as caught:
        Bell().ring(signal.SIGTERM, None)
    assert caught.value.code == ExitCode.STOPPED


def test_during_an_import_it_waits_for_the_end_of_it() -> None:
    bell, imported = Bell(), []

    def load() -> None:
        with bell.deferred():
            bell.ring(signal.SIGUSR1, None)
            imported.append("torch")

    with pytest.raises(Failure, match="SIGUSR1"):
        load()
    assert imported == ["torch"]


def test_an_import_without_a_signal_changes_nothing() -> None:
    bell = Bell()
    with bell.deferred():
        pass
    with pytest.raises(Failure):
        bell.ring(signal.SIGTERM, None)


def test_once_training_has_begun_it_is_noted_for_the_loop() -> None:
    bell = Bell()
    bell.only_note()
    bell.ring(signal.SIGTERM, None)
    assert bell.watch.received is not None
    assert bell.watch.received.name == "SIGTERM"
