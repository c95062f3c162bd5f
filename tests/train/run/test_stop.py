"""A signal or the deadline stops a run in time, before its first step and in the middle of an evaluation too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jobs import after, built, steps_of
from processes import start_python, wait_until
from runs import Run

from entrypoint import SIGNAL_REPEAT_WINDOW_S, ExitCode, Failure
from entrypoint.run_errors import RunErrors
from train.checkpoint import format
from train.logging.metrics_logger import METRICS_FILE, read_events
from train.run.deadline import Deadline, Durations
from train.run.stop import ReceivedSignal, StopRequest, StopSignals

TERM, INT, USR1, USR2 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def delivered(*events: tuple[float, signal.Signals]) -> tuple[ReceivedSignal | None, list[int]]:
    """What is received after each signal came at its time, and the codes that the process would have ended with."""
    clock, aborted = Clock(), list[int]()
    signals = StopSignals(clock=clock, abort=aborted.append)
    for clock.now, number in events:
        signals.handle(number)
    return signals.received, aborted


@contextmanager
def handled(number: signal.Signals, signals: StopSignals) -> Iterator[None]:
    """Inside, a signal goes to `signals`."""
    before = signal.signal(number, signals.handle)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [TERM, INT, USR1, USR2])
def test_a_real_signal_sets_the_flag_and_nothing_else(number: signal.Signals) -> None:
    signals = StopSignals(clock=lambda: 7.0)
    with handled(number, signals):
        os.kill(os.getpid(), number)
    assert signals.received == ReceivedSignal(name=number.name, at=7.0)


def test_nothing_is_received_before_a_signal_came() -> None:
    assert delivered() == (None, [])


def test_the_first_signal_is_the_cause() -> None:
    assert delivered((1.0, USR1), (5.0, TERM))[0] == ReceivedSignal(name="SIGUSR1", at=1.0)


@pytest.mark.parametrize("number", [TERM, USR1, USR2])
def test_a_signal_may_come_again_at_any_time(number: signal.Signals) -> None:
    assert delivered((1.0, number), (1.01, number), (31.0, number)) == (ReceivedSignal(name=number.name, at=1.0), [])


@pytest.mark.parametrize("later", [0.0, 0.01, SIGNAL_REPEAT_WINDOW_S])
def test_ctrl_c_twice_within_two_seconds_is_one(later: float) -> None:
    assert delivered((1.0, INT), (1.0 + later, INT))[1] == []


def test_ctrl_c_again_after_two_seconds_ends_the_process() -> None:
    assert delivered((1.0, INT), (1.01, INT), (1.1 + SIGNAL_REPEAT_WINDOW_S, INT))[1] == [130]


def test_the_first_ctrl_c_after_another_signal_does_not_abort() -> None:
    assert delivered((1.0, TERM), (9.0, INT))[1] == []


ABORTS = """
import os, signal
from train.run.stop import StopSignals
times = iter([0.0, 3.0])
StopSignals(clock=lambda: next(times)).install()
for _ in range(2):
    os.kill(os.getpid(), signal.SIGINT)
print("still here", flush=True)
"""


def test_an_abort_ends_the_process_with_130_without_cleaning_up() -> None:
    done = subprocess.run([sys.executable, "-c", ABORTS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_watching_needs_no_torch() -> None:
    code = "import sys, train.run.stop; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True).stdout == b"False\n"
    )


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
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (ExitCode.STOPPED, "stopped by SIGTERM before the first step\n")


def sleeps(pid: int) -> bool:
    """Whether a process's main thread waits in the kernel."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


LONG_AGO = Deadline(at=-1e9, wall=1_700_000_000.0)


def watch(*, deadline: Deadline | None = None, received: signal.Signals | None = None) -> StopSignals:
    signals = StopSignals()
    signals.deadline = deadline
    if received:
        signals.handle(received)
    return signals


def lets_pass(count: int, watching: StopSignals, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A signal comes with batch number `count` of the first evaluation; the batches used are listed."""
    used: list[int] = []

    def evaluate(self: Any, shares: Any) -> Any:
        for number, batch in enumerate(real(self, shares), 1):
            used.append(number)
            if len(used) == count:
                watching.handle(signal.SIGTERM)
            yield batch

    from train.data.loader import BatchLoader

    real = BatchLoader.evaluate
    monkeypatch.setattr(BatchLoader, "evaluate", evaluate)
    return used


def test_a_deadline_that_is_near_stops_the_run_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watching = watch()
    after(3, lambda trainer: setattr(watching, "deadline", LONG_AGO), monkeypatch)
    with built(tmp_path, signals=watching) as trainer:
        trainer.fit()
        assert not trainer.is_finished
    assert trainer.state.step == Run(folder=tmp_path).committed() == 3
    assert trainer.loop.stop.cause == "deadline"
    assert str(trainer.loop.stop).startswith("the deadline 2023-11-1")


def test_a_deadline_that_is_far_stops_nothing(tmp_path: Path) -> None:
    with built(tmp_path, signals=watch(deadline=Deadline(at=1e12, wall=1e9))) as trainer:
        trainer.fit()
        assert trainer.is_finished


@pytest.mark.parametrize("is_main", [True, False])
def test_only_rank_0_looks_at_the_clock(is_main: bool) -> None:
    signals = watch(deadline=LONG_AGO)
    assert StopRequest(signals, Durations({}), is_main=is_main, clock=lambda: 0.0).is_made() == is_main


def test_a_signal_is_the_cause_although_the_deadline_is_near_too() -> None:
    signals = watch(deadline=LONG_AGO, received=signal.SIGUSR1)
    stop = StopRequest(signals, Durations({}), is_main=True, clock=lambda: 0.0)
    assert stop.is_made()
    assert (stop.cause, str(stop)) == ("SIGUSR1", "SIGUSR1")


def test_a_signal_in_an_evaluation_does_not_wait_for_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watching = watch()
    used = lets_pass(2, watching, monkeypatch)
    with built(tmp_path, "eval.batch_size=2", signals=watching) as trainer:
        trainer.fit()
    assert used == [1, 2]  # of 8
    assert (Run(folder=tmp_path).committed(), trainer.state.evaluated, trainer.state.result) == (4, 0, None)


def test_an_evaluation_that_was_broken_off_is_made_up_for_and_stands_once_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = watch()
    lets_pass(1, watching, monkeypatch)
    with built(tmp_path, "eval.batch_size=2", signals=watching) as trainer:
        trainer.fit()
    with built(tmp_path, "eval.batch_size=2") as trainer:
        trainer.fit()
    seen = list(read_events(tmp_path / METRICS_FILE))
    assert (steps_of(seen, "eval"), steps_of(seen, "train")) == ([4, 8], [2, 4, 6, 8])


def test_a_signal_with_an_evaluation_due_saves_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watching = watch()
    after(8, lambda trainer: watching.handle(signal.SIGTERM), monkeypatch)
    with built(tmp_path, signals=watching) as trainer:
        trainer.fit()
        assert not trainer.is_finished
    assert (Run(folder=tmp_path).committed(), trainer.state.evaluated) == (8, 4)


def test_while_the_last_save_is_under_way_a_note_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[dict[str, Any]] = []
    real = format.write_snapshot

    def write(*rest: Any) -> Path:
        notes.append(json.loads((tmp_path / "errors" / "stopping.json").read_text()))
        return real(*rest)

    watching = watch()
    after(3, lambda trainer: watching.handle(signal.SIGUSR1), monkeypatch)
    with built(tmp_path, signals=watching) as trainer:
        monkeypatch.setattr(format, "write_snapshot", write)
        trainer.fit()
    assert [note["by"] for note in notes] == ["SIGUSR1"]


def test_a_run_that_ends_by_itself_leaves_no_such_note(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        trainer.fit()
    assert RunErrors.in_run(tmp_path).describe_unfinished_save() is None


def test_where_all_is_saved_already_there_is_nothing_to_note(tmp_path: Path) -> None:
    with built(tmp_path, signals=watch(received=signal.SIGTERM)) as trainer:
        trainer.fit()
    assert RunErrors.in_run(tmp_path).describe_unfinished_save() is None
