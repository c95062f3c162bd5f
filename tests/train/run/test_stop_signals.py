"""When a signal ends a rank at once, and when it waits."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from processes import start_python, wait_until

from entrypoint import ExitCode, Failure
from train.run.stop import StopSignals


def open_signals() -> StopSignals:
    """One whose rank knows where to write the reason."""
    signals = StopSignals()
    signals.exit_on_signal(lambda failure: None)
    return signals


def test_before_the_first_step_a_signal_ends_the_rank() -> None:
    with pytest.raises(Failure, match="stopped by SIGTERM before the first step") as caught:
        open_signals().handle(signal.SIGTERM, None)
    assert caught.value.code == ExitCode.STOPPED


def test_a_signal_says_what_was_not_done_as_the_rank_words_it() -> None:
    signals = open_signals()
    signals.when = "before the evaluation was over"
    with pytest.raises(Failure, match="stopped by SIGINT before the evaluation was over"):
        signals.handle(signal.SIGINT, None)


def test_before_the_reason_can_be_written_it_waits() -> None:
    signals = StopSignals()
    signals.handle(signal.SIGTERM, None)
    with pytest.raises(Failure, match="SIGTERM"):
        signals.exit_on_signal(lambda failure: None)


def test_during_an_import_it_waits_for_the_end_of_it() -> None:
    signals, imported = open_signals(), []

    def load() -> None:
        with signals.deferred():
            signals.handle(signal.SIGUSR1, None)
            imported.append("torch")

    with pytest.raises(Failure, match="SIGUSR1"):
        load()
    assert imported == ["torch"]


def test_an_import_without_a_signal_changes_nothing() -> None:
    signals = open_signals()
    with signals.deferred():
        pass
    with pytest.raises(Failure):
        signals.handle(signal.SIGTERM, None)


def test_once_training_has_begun_it_is_noted_for_the_loop() -> None:
    signals = open_signals()
    signals.record_only()
    signals.handle(signal.SIGTERM, None)
    assert signals.received is not None
    assert signals.received.name == "SIGTERM"


# The main thread waits in C, as it does for other ranks: a lock taken twice, which no signal interrupts.
DEAF = """
import ctypes, os
from train.run import stop

stop.REACTION_TIME_S = 0.1
here = stop.StopSignals()
here.exit_on_signal(lambda failure: (print(failure.what, flush=True), os._exit(failure.code)))
here.install()
lock = ctypes.create_string_buffer(64)
ctypes.CDLL(None).pthread_mutex_lock(lock)
print("deaf", flush=True)
ctypes.CDLL(None).pthread_mutex_lock(lock)
"""


def test_a_rank_whose_main_thread_waits_in_c_ends_all_the_same(tmp_path: Path) -> None:
    with start_python("-c", DEAF, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "deaf\n"
        wait_until(lambda: sleeps(process.pid), "the main thread waits")
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (ExitCode.STOPPED, "stopped by SIGTERM before the first step\n")


def sleeps(pid: int) -> bool:
    """Whether a process's main thread waits in the kernel."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
