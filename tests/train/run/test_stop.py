"""A signal or the deadline stops a run in time, in the middle of an evaluation too."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from jobs import after, built, steps_of
from runs import Run

from entrypoint.run_errors import RunErrors
from train.checkpoint import format
from train.logging.metrics_logger import METRICS_FILE, read_events
from train.run.deadline import Deadline, Durations
from train.run.stop import StopRequest, StopSignals

LONG_AGO = Deadline(at=-1e9, wall=1_700_000_000.0)


def watch(*, deadline: Deadline | None = None, received: signal.Signals | None = None) -> StopSignals:
    found = StopSignals()
    found.deadline = deadline
    if received:
        found.handle(received)
    return found


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
    found: list[dict[str, Any]] = []
    real = format.write_snapshot

    def write(*rest: Any) -> Path:
        found.append(json.loads((tmp_path / "errors" / "stopping.json").read_text()))
        return real(*rest)

    watching = watch()
    after(3, lambda trainer: watching.handle(signal.SIGUSR1), monkeypatch)
    with built(tmp_path, signals=watching) as trainer:
        monkeypatch.setattr(format, "write_snapshot", write)
        trainer.fit()
    assert [note["by"] for note in found] == ["SIGUSR1"]


def test_a_run_that_ends_by_itself_leaves_no_such_note(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        trainer.fit()
    assert RunErrors.in_run(tmp_path).describe_unfinished_save() is None


def test_where_all_is_saved_already_there_is_nothing_to_note(tmp_path: Path) -> None:
    with built(tmp_path, signals=watch(received=signal.SIGTERM)) as trainer:
        trainer.fit()
    assert RunErrors.in_run(tmp_path).describe_unfinished_save() is None
