"""What is committed, and when nothing is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from jobs import opened, steps_of, trained

from entrypoint import ExitCode, Failure
from train.checkpoint import checkpoint
from train.record import metrics
from train.record.metrics import Metrics
from train.run import now, saving
from train.run.signals import Watch


def events(folder: Path) -> list[dict[str, Any]]:
    return list(metrics.read(folder / metrics.NAME))


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
    found = checkpoint.newest(tmp_path / "checkpoints")
    assert found is not None
    tensors, facts = checkpoint.load(found)
    assert set(tensors) == {"model", "optimizer"}
    assert (facts["state"]["step"], facts["world_size"], facts["config"]["train"]["epochs"]) == (8, 1, 2)


def test_one_step_is_committed_once(tmp_path: Path) -> None:
    trained(tmp_path, "checkpoint.every_steps=4")
    assert sorted(steps_of(events(tmp_path), "checkpoint")) == [4, 8]  # after an evaluation, on time, and at the end


@pytest.mark.parametrize("step", [0, 3])
def test_a_state_without_a_step_is_not_committed(tmp_path: Path, step: int) -> None:
    with opened(tmp_path) as todo:
        todo.state.step = step
        current = now.begin(todo, Watch(), lambda: 0.0)
        current.saved = None
        saving.save(todo, current, Metrics(tmp_path, main=False, step=0, tensorboard=False, warn=print))
    assert (current.saved is not None) == (step > 0)


def test_a_save_that_fails_ends_the_run_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise Failure("no space", fix="free some", code=ExitCode.IO)

    with opened(tmp_path):
        monkeypatch.setattr(checkpoint, "save", full)
        with pytest.raises(Failure, match="no space"):
            trained(tmp_path / "other")


def test_time_spent_on_saving_is_not_training_time(tmp_path: Path) -> None:
    with opened(tmp_path) as todo:
        todo.state.step = 3
        ticks = iter(range(100))
        current = now.begin(todo, Watch(), lambda: float(next(ticks)))
        before = current.stopwatch.seconds
        saving.save(todo, current, Metrics(tmp_path, main=False, step=0, tensorboard=False, warn=print))
        assert current.stopwatch.seconds - before <= 4
