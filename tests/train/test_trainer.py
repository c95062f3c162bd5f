"""What the loop does at which step, and which runs it refuses to keep."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from images import write_classes
from jobs import after, built, steps_of, trained
from runs import Run

from entrypoint import Failure
from train.data.sampler import MicroBatch
from train.evaluation import validator
from train.logging.metrics_logger import METRICS_FILE, read_events
from train.run.stop import StopSignals


def events(folder: Path) -> list[dict[str, Any]]:
    return list(read_events(folder / METRICS_FILE))


def test_a_run_logs_measures_and_commits_at_its_steps(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    seen = events(tmp_path)
    assert trainer.state.step == 8
    assert steps_of(seen, "train") == [2, 4, 6, 8]
    assert steps_of(seen, "eval") == [4, 8]
    assert Run(folder=tmp_path).committed() == 8


def test_max_steps_ends_in_the_middle_of_an_epoch_and_measures_there(tmp_path: Path) -> None:
    trainer = trained(tmp_path, "train.max_steps=3")
    assert (trainer.state.step, trainer.state.evaluated, Run(folder=tmp_path).committed()) == (3, 3, 3)


@pytest.mark.parametrize(
    ("setting", "saved"), [("checkpoint.every_steps=3", {3, 6}), ("checkpoint.every_minutes=1e-9", set(range(1, 8)))]
)
def test_checkpoints_come_at_the_steps_and_times_asked_for(tmp_path: Path, setting: str, saved: set[int]) -> None:
    trained(tmp_path, setting)
    assert saved <= set(steps_of(events(tmp_path), "checkpoint"))


def test_without_validation_images_nothing_is_measured(tmp_path: Path) -> None:
    trainer = trained(tmp_path, "data.val_fraction=0")
    assert (trainer.state.result, Run(folder=tmp_path).committed()) == (None, 10)


def test_an_evaluation_that_does_not_fit_the_gpu_names_its_own_batch_and_not_the_trainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")  # no GPU said it here

    monkeypatch.setattr(validator, "broadcast_buffers", full)
    with pytest.raises(Failure, match="in the evaluation") as caught:
        trained(tmp_path, "eval.batch_size=8")
    assert (caught.value.code, caught.value.fix.split()[1]) == (71, "eval.batch_size=2")


def test_the_learning_rate_follows_the_optimizer_steps(tmp_path: Path) -> None:
    trainer = trained(tmp_path, "log.every_steps=1")
    rates = [event["lr"] for event in events(tmp_path) if event["event"] == "train"]
    assert rates == [trainer.schedule(step) for step in range(8)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("clip", ["null", "0.01"])
def test_every_precision_and_clipping_trains_to_finite_weights(tmp_path: Path, precision: str, clip: str) -> None:
    trainer = trained(tmp_path, f"train.precision={precision}", f"train.clip_grad_norm={clip}", "train.max_steps=2")
    assert all(parameter.isfinite().all() for parameter in trainer.state.network.parameters())


@pytest.mark.parametrize("kind", ["ddp", "dp", "none"])
def test_every_kind_of_parallel_measures_in_the_precision_it_trains_in(tmp_path: Path, kind: str) -> None:
    def loss(folder: str, *settings: str) -> object:
        trainer = trained(tmp_path / folder, *settings, "train.precision=bf16", "train.max_steps=2")
        return trainer.state.result

    assert loss(kind, f"train.parallel={kind}") == loss("other")


def test_clipping_shortens_the_step(tmp_path: Path) -> None:
    def moved(folder: str, *settings: str) -> float:
        with built(tmp_path / folder, *settings, "train.max_steps=1", "optim.weight_decay=0") as trainer:
            before = torch.cat([p.detach().flatten().clone() for p in trainer.state.network.parameters()])
            trainer.fit()
            return float(
                (torch.cat([p.detach().flatten() for p in trainer.state.network.parameters()]) - before).norm()
            )

    assert moved("clipped", "train.clip_grad_norm=0.001") < moved("free") / 10


def test_a_signal_ends_the_run_after_the_step_it_came_in_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = StopSignals()
    after(3, lambda trainer: signals.handle(signal.SIGUSR1), monkeypatch)
    with built(tmp_path, signals=signals) as trainer:
        trainer.fit()
    assert trainer.state.step == Run(folder=tmp_path).committed() == 3


def test_a_signal_before_the_first_step_saves_nothing(tmp_path: Path) -> None:
    signals = StopSignals()
    signals.handle(signal.SIGTERM)
    with built(tmp_path, signals=signals) as trainer:
        trainer.fit()
        assert trainer.checkpointer.newest is None
    assert (trainer.state.step, Run(folder=tmp_path).committed()) == (0, None)


def test_a_stopped_run_goes_on_and_sees_each_sample_once_per_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals, seen = StopSignals(), []
    after(3, lambda trainer: signals.handle(signal.SIGTERM), monkeypatch)
    for start_signals in (signals, StopSignals()):
        with built(tmp_path, signals=start_signals) as trainer:
            monkeypatch.setattr(type(trainer.loader), "train", listened(type(trainer.loader).train, seen))
            trainer.fit()
            monkeypatch.undo()
    assert [len(seen), sorted(seen[:64]), sorted(seen[64:])] == [128, list(range(64)), list(range(64))]


TIMES = {"time", "images_per_s", "seconds", "stalled_seconds"}


def lines(folder: Path) -> list[dict[str, Any]]:
    """What the record says of training and evaluation, apart from times."""
    said = [event for event in events(folder) if event["event"] in ("train", "eval")]
    return [{key: value for key, value in event.items() if key not in TIMES} for event in said]


def test_a_run_that_is_stopped_between_log_points_writes_the_same_lines_as_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for steps in (1, 4, 5, 8):  # at 4 and 8 an evaluation is due
        signals = StopSignals()
        with monkeypatch.context() as patch, built(tmp_path / "often", "log.every_steps=3", signals=signals) as trainer:
            after(steps, lambda trainer, signals=signals: signals.handle(signal.SIGTERM), patch)  # type: ignore[misc]
            trainer.fit()
    trained(tmp_path / "often", "log.every_steps=3")
    trained(tmp_path / "once", "log.every_steps=3")
    assert lines(tmp_path / "often") == lines(tmp_path / "once")
    assert steps_of(lines(tmp_path / "once"), "train") == [3, 6]


def test_the_speed_of_a_log_point_counts_the_time_before_a_restart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = StopSignals()
    after(3, lambda trainer: signals.handle(signal.SIGTERM), monkeypatch)
    with built(tmp_path, "log.every_steps=4", signals=signals) as trainer:
        trainer.fit()
        logged_at = trainer.loop.logged_at
    with built(tmp_path, "log.every_steps=4") as trainer:
        trainer.clock = lambda: 0.0
        trainer.begin()
        assert trainer.loop.logged_at == logged_at < trainer.state.seconds


def test_fewer_epochs_than_a_run_has_had_do_no_step(tmp_path: Path) -> None:
    trained(tmp_path)
    trainer = trained(tmp_path, "train.epochs=1")
    assert trainer.state.step == 8
    assert trainer.checkpointer.newest == tmp_path / "checkpoints" / "step-00000008"


def listened(real: Any, seen: list[int]) -> Callable[..., Iterator[tuple[MicroBatch, Any]]]:
    """A loader's `train` that writes down which samples were used."""

    def train(self: Any, pieces: Iterator[MicroBatch]) -> Iterator[tuple[MicroBatch, Any]]:
        for piece, batch in real(self, pieces):
            seen.extend(piece.samples.tolist())
            yield piece, batch

    return train


def test_a_finished_run_started_again_does_no_step(tmp_path: Path) -> None:
    trained(tmp_path)
    before = events(tmp_path)
    trainer = trained(tmp_path)
    assert events(tmp_path) == before
    assert trainer.checkpointer.newest == tmp_path / "checkpoints" / "step-00000008"


def test_more_epochs_continue_a_finished_run(tmp_path: Path) -> None:
    trained(tmp_path)
    trainer = trained(tmp_path, "train.epochs=3")
    assert (trainer.state.step, steps_of(events(tmp_path), "train")[-1]) == (12, 12)


@pytest.mark.parametrize(("loader", "first"), [("memory", 2), ("workers", 0)])
def test_the_record_counts_the_images_that_were_skipped(tmp_path: Path, loader: str, first: int) -> None:
    write_classes(tmp_path / "images", one=40, two=40)
    for path in sorted((tmp_path / "images").rglob("*.*"))[::50]:
        path.write_bytes(path.read_bytes()[:40])
    own = ("data.name=folder", f"data.root={tmp_path}/images", "data.samples=10000", "data.val_fraction=0")
    trained(tmp_path / "run", *own, f"data.loader={loader}", "data.workers=0", "data.max_bad_images=2")
    counts = [event["bad_images"] for event in events(tmp_path / "run") if event["event"] == "train"]
    assert first <= counts[0] <= counts[-1] == 2  # type: ignore[operator]
