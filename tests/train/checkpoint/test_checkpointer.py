"""What is committed, and when nothing is."""

from __future__ import annotations

import errno
import json
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from jobs import after, built, steps_of, trained
from processes import python

from entrypoint import ExitCode, Failure, Heartbeat
from train import files
from train.checkpoint import format, store
from train.checkpoint.checkpointer import run_in_background
from train.checkpoint.format import FileData, Snapshot
from train.evaluation.results import EvaluationResult
from train.logging.metrics_logger import METRICS_FILE, read_events
from train.trainer import Trainer


def events(folder: Path) -> list[dict[str, Any]]:
    return list(read_events(folder / METRICS_FILE))


def save(trainer: Trainer) -> None:
    """A save, waited for."""
    trainer.save()
    trainer.checkpointer.wait()


def begin(trainer: Trainer, clock: Callable[[], float]) -> None:
    """Begin to train with this clock."""
    trainer.clock = clock
    trainer.begin()


def test_the_best_result_names_a_checkpoint_that_is_there(tmp_path: Path) -> None:
    trained(tmp_path, "checkpoint.keep=1")
    best = json.loads((tmp_path / "best.json").read_text())
    assert (tmp_path / best["checkpoint"] / "manifest.json").exists()
    assert best["accuracy"] == max(event["accuracy"] for event in events(tmp_path) if event["event"] == "eval")


def test_a_kill_between_a_checkpoint_and_best_json_is_made_up_for_at_the_next_start(tmp_path: Path) -> None:
    trained(tmp_path)
    before = (tmp_path / "best.json").read_bytes()
    (tmp_path / "best.json").unlink()
    trained(tmp_path)
    assert (tmp_path / "best.json").read_bytes() == before


def test_no_best_is_named_where_the_run_goes_on_from_before_there_was_one(tmp_path: Path) -> None:
    trained(tmp_path, "eval.every_epochs=2", "checkpoint.every_steps=4")
    (tmp_path / "checkpoints" / "step-00000008" / "manifest.json").unlink()
    with built(tmp_path) as trainer:
        trainer.begin()
        trainer.checkpointer.write_best_file()
    assert not (tmp_path / "best.json").exists()


def test_what_a_resumed_run_measures_at_its_first_step_is_kept(tmp_path: Path) -> None:
    trained(tmp_path, "eval.every_epochs=2", "checkpoint.every_steps=4")
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000008")
    (tmp_path / "best.json").unlink()
    for _ in range(2):
        trained(tmp_path, "train.max_steps=4")
    assert steps_of(events(tmp_path), "eval") == [4]
    assert json.loads((tmp_path / "best.json").read_text())["step"] == 4


def test_a_checkpoint_holds_what_a_start_needs_and_what_it_belongs_to(tmp_path: Path) -> None:
    trained(tmp_path)
    checkpoint = store.newest_checkpoint(tmp_path / "checkpoints")
    assert checkpoint is not None
    tensors, facts = format.load_checkpoint(checkpoint)
    assert set(tensors) == {"model", "optimizer"}
    assert (facts["state"]["step"], facts["world_size"], facts["config"]["train"]["epochs"]) == (8, 1, 2)


def test_one_step_is_committed_once(tmp_path: Path) -> None:
    trained(tmp_path, "checkpoint.every_steps=4")
    assert sorted(steps_of(events(tmp_path), "checkpoint")) == [4, 8]  # after an evaluation, on time, and at the end


@pytest.mark.parametrize("step", [0, 3])
def test_a_state_without_a_step_is_not_committed(tmp_path: Path, step: int) -> None:
    with built(tmp_path) as trainer:
        begin(trainer, lambda: 0.0)
        trainer.state.step = step
        save(trainer)
    assert (trainer.checkpointer.newest is not None) == (step > 0)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going, seen, real = threading.Event(), list[int](), format.write_snapshot

    def slow(*arguments: Any) -> Path:
        assert going.wait(60)
        return real(*arguments)

    after(4, lambda trainer: (seen.append(trainer.state.step), going.set()), monkeypatch)  # type: ignore[arg-type]
    with built(tmp_path, "checkpoint.every_steps=2", "data.val_fraction=0", "train.max_steps=5") as trainer:
        monkeypatch.setattr(format, "write_snapshot", slow)
        trainer.fit()
    assert seen == [4]
    assert steps_of(events(tmp_path), "checkpoint") == [2, 4, 5]


def test_moments_do_not_change_before_the_writer_has_its_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ("data.val_fraction=0", "train.max_steps=3", "checkpoint.every_steps=2")
    updated, real = threading.Event(), Snapshot.finish

    def slow(taking: Snapshot) -> dict[str, FileData]:
        updated.wait(1)  # the next update, if it does not wait, comes sooner
        return real(taking)

    trained(tmp_path / "quick", *settings)
    after(3, lambda trainer: updated.set(), monkeypatch)
    with built(tmp_path / "slow", *settings) as trainer:
        monkeypatch.setattr(Snapshot, "finish", slow)
        trainer.fit()
    both = [
        format.load_checkpoint(store.checkpoint_at_step(tmp_path / name / "checkpoints", 2))[0]
        for name in ("quick", "slow")
    ]
    assert both[0]["optimizer"]
    assert all(torch.equal(tensor, both[1]["optimizer"][name]) for name, tensor in both[0]["optimizer"].items())


def test_a_checkpoint_counts_once_it_is_committed_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, real = threading.Event(), format.write_snapshot
    with built(tmp_path) as trainer:
        monkeypatch.setattr(format, "write_snapshot", lambda *rest: (going.wait(60), real(*rest))[1])
        begin(trainer, lambda: 0.0)
        trainer.state.step, trainer.state.best_step = 3, 3
        trainer.state.best = EvaluationResult.from_json({"accuracy": 0.5, "loss": 1.0, "samples": 16})
        checkpointer = trainer.checkpointer
        trainer.save()
        before = (checkpointer.newest, checkpointer.is_written, (tmp_path / "best.json").exists())
        going.set()
        trainer.checkpointer.wait()
        assert before == (None, False, False)
    assert (checkpointer.newest, checkpointer.pending) == (tmp_path / "checkpoints" / "step-00000003", None)
    assert json.loads((tmp_path / "best.json").read_text())["step"] == 3


def test_the_older_ones_go_after_the_new_one_and_the_file_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for module, name in ((store, "commit_checkpoint"), (files, "write_json"), (store, "prune_checkpoints")):
        real = getattr(module, name)
        stand_in = lambda *a, _real=real, _name=name, **k: (order.append(_name), _real(*a, **k))[1]  # noqa: E731
        monkeypatch.setattr(module, name, stand_in)
    with built(tmp_path) as trainer:
        order.clear()
        trainer.fit()
    assert order[:3] == ["commit_checkpoint", "write_json", "prune_checkpoints"]


def test_training_that_fails_still_commits_what_is_being_written_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trainer: Trainer) -> None:
        raise Failure("a rank is gone", fix="look there", code=ExitCode.PEER)

    real = format.write_snapshot
    monkeypatch.setattr(format, "write_snapshot", lambda *rest: (time.sleep(0.2), real(*rest))[1])
    after(3, fail, monkeypatch)
    with pytest.raises(Failure, match="a rank is gone") as caught:
        trained(tmp_path, "checkpoint.every_steps=2")
    assert caught.value.kept == str(tmp_path / "checkpoints" / "step-00000002")
    assert store.newest_checkpoint(tmp_path / "checkpoints")


def test_the_wait_for_it_counts_as_a_save_and_not_as_a_step_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trainer: Trainer) -> None:
        raise Failure("diverged", fix="look there", code=ExitCode.DIVERGED)

    phases = list[str]()
    monkeypatch.setattr(Heartbeat, "beat", lambda pulse, phase, *point, **step: phases.append(phase))
    after(3, fail, monkeypatch)
    with pytest.raises(Failure, match="diverged"):
        trained(tmp_path, "checkpoint.every_steps=2")
    assert phases[-1] == "save"


@pytest.mark.parametrize("error", [OSError(errno.EDQUOT, "quota"), OSError(errno.EIO, "disk"), MemoryError()], ids=repr)
def test_what_goes_wrong_behind_training_ends_it_with_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def make(*rest: Any) -> None:
        raise error

    trained(tmp_path, "train.max_steps=2")
    expected = MemoryError if isinstance(error, MemoryError) else Failure
    with built(tmp_path, "train.max_steps=8", "checkpoint.every_steps=1") as trainer:
        monkeypatch.setattr(store, "commit_checkpoint", make)
        with pytest.raises(expected) as caught:
            trainer.fit()
    if isinstance(caught.value, Failure):
        assert (caught.value.code, caught.value.kept) == (74, str(tmp_path / "checkpoints" / "step-00000002"))
        assert ("quota" in caught.value.fix) == (error.args[0] == errno.EDQUOT)


def test_the_record_says_how_long_a_save_took_and_how_long_training_stood(tmp_path: Path) -> None:
    trained(tmp_path)
    event = next(event for event in events(tmp_path) if event["event"] == "checkpoint")
    assert 0 <= event["stalled_seconds"] <= event["seconds"]


def test_the_wait_before_an_update_counts_as_standing_still_and_not_as_training(tmp_path: Path) -> None:
    class Copied(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            ticks.extend(range(10))
            return True

    ticks: list[int] = []
    with built(tmp_path) as trainer:
        begin(trainer, lambda: float(len(ticks)))
        checkpointer, stopwatch = trainer.checkpointer, trainer.loop.stopwatch
        checkpointer.copied = Copied()
        before = stopwatch.seconds
        checkpointer.wait_for_copy()
        checkpointer.wait_for_copy()
    assert (checkpointer.waited, stopwatch.seconds - before) == (10.0, 0.0)


def test_a_save_that_fails_ends_the_run_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise Failure("no space", fix="free some", code=ExitCode.IO)

    monkeypatch.setattr(format, "write_snapshot", full)
    with pytest.raises(Failure, match="no space"):
        trained(tmp_path)


def test_time_spent_on_saving_is_not_training_time(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        ticks = count()
        begin(trainer, lambda: float(next(ticks)))
        trainer.state.step = 3
        before = trainer.loop.stopwatch.seconds
        save(trainer)
        assert trainer.loop.stopwatch.seconds - before <= 4


def test_a_checkpoint_knows_the_seconds_of_training_and_no_others(tmp_path: Path) -> None:
    now = [0.0]
    with built(tmp_path) as trainer:
        begin(trainer, lambda: now[0])
        trainer.state.step, now[0] = 3, 10.0
        save(trainer)
    assert trainer.state.seconds == 10.0


def test_the_result_of_the_writer_is_what_its_action_returned_or_raised() -> None:
    def fail() -> None:
        raise Failure("the disk is full", fix="free some", code=ExitCode.IO)

    assert run_in_background(lambda: 7).result() == 7
    with pytest.raises(Failure, match="the disk is full"):
        run_in_background(fail).result()


def test_the_end_of_training_waits_for_the_writer_whatever_ended_it(tmp_path: Path) -> None:
    done, going = list[bool](), threading.Event()
    with built(tmp_path) as trainer:
        trainer.begin()
        with suppress(KeyError), trainer.checkpointer.finishing():
            trainer.checkpointer.commit = run_in_background(lambda: float(done.append(going.wait(60)) is None))
            threading.Timer(0.01, going.set).start()
            raise KeyError
    assert done == [True]


ABORTED = """
import os, signal, time
from pathlib import Path
from jobs import built
from train.checkpoint.checkpointer import run_in_background
from train.run.stop import StopSignals
ticks = iter([0.0, 3.0])
StopSignals(clock=lambda: next(ticks)).install()
with built(Path("run")) as trainer:
    trainer.begin()
    checkpointer = trainer.checkpointer
    checkpointer.pending = (1, 0)
    checkpointer.commit = run_in_background(
        lambda: [os.kill(os.getpid(), signal.SIGINT) or time.sleep(0.2) for _ in range(2)] and time.sleep(600)
    )
    checkpointer.wait()
"""


def test_a_second_ctrl_c_aborts_while_a_commit_is_waited_for(tmp_path: Path) -> None:
    support = str(Path(jobs.__file__).parent)
    assert python("-c", ABORTED, cwd=tmp_path, environ={"PYTHONPATH": support}, timeout=60).returncode == 130
