"""What an evaluation leaves behind in the run's folder."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from jobs import built, trained

from train.evaluation import results
from train.logging.metrics_logger import METRICS_FILE, read_events
from train.run.record import BEST_CONFUSION_FILE, CONFUSION_FILE
from train.state import LogWindow


def last(folder: Path) -> dict[str, object]:
    return [event for event in read_events(folder / METRICS_FILE) if event["event"] == "eval"][-1]


def test_the_matrix_of_the_last_evaluation_counts_every_validation_image(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    told = json.loads((tmp_path / CONFUSION_FILE).read_text())
    assert (told["step"], told["classes"]) == (8, list(trainer.dataset.classes))
    assert sum(map(sum, told["matrix"])) == trainer.dataset.num_validation == 16


def test_the_matrix_of_the_best_evaluation_stays_when_a_later_one_is_not_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "is_better", lambda metric, new, old: old is None)  # the first one stays the best
    trainer = trained(tmp_path)
    steps = [json.loads((tmp_path / name).read_text())["step"] for name in (BEST_CONFUSION_FILE, CONFUSION_FILE)]
    assert steps == [trainer.state.best_step, trainer.state.step] == [4, 8]


def test_the_record_has_every_score(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    event, result = last(tmp_path), trainer.state.result
    assert result is not None
    assert {name: event[name] for name in ("accuracy", "loss", "samples", "top5_accuracy", "macro_f1")} == {
        name: result.to_json()[name] for name in ("accuracy", "loss", "samples", "top5_accuracy", "macro_f1")
    }
    assert event["recall"] == list(result.recall or ())


def test_a_matrix_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path,
) -> None:
    (tmp_path / CONFUSION_FILE).mkdir()
    lines = printed(tmp_path)
    assert "\n".join(lines).count("confusion.json is incomplete, training goes on") == 1


def test_each_epoch_has_one_line_with_its_train_loss(tmp_path: Path) -> None:
    lines = printed(tmp_path, "log.every_steps=6", "train.epochs=3")
    assert [line.partition(":")[0] for line in lines] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert all(line.count("val accuracy") == line.count("train loss") == line.count("images/s") == 1 for line in lines)


def test_an_epoch_without_an_evaluation_has_its_line_too(tmp_path: Path) -> None:
    lines = printed(tmp_path, "eval.every_epochs=2", "train.epochs=3")
    assert [line.partition(":")[0] for line in lines] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert ["accuracy" in line for line in lines] == [False, True, True]


def test_a_training_that_ends_inside_an_epoch_says_so(tmp_path: Path) -> None:
    lines = printed(tmp_path, "train.max_steps=6", "data.val_fraction=0.2")
    assert [line.partition(":")[0] for line in lines] == ["epoch 1/2", "step 6/6, in epoch 2/2"]
    assert " s, " not in lines[1]


def test_without_validation_images_each_epoch_has_its_line(tmp_path: Path) -> None:
    lines = printed(tmp_path, "data.val_fraction=0")
    assert [line.partition(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]


def test_a_resumed_epoch_has_no_time_and_the_next_one_has(tmp_path: Path) -> None:
    trained(tmp_path, "train.max_steps=2", "train.epochs=3")
    lines = printed(tmp_path, "train.epochs=3")
    assert [" s, " in line for line in lines] == [False, True, True]


def printed(folder: Path, *settings: str) -> list[str]:
    """The lines of a training."""
    out = io.StringIO()
    with built(folder, *settings, out=out) as trainer:
        trainer.fit()
    return out.getvalue().splitlines()


def test_a_log_window_of_a_version_that_averaged_other_values_is_not_continued(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        trainer.state.window = LogWindow(sums=[[1.0, 2.0, 3.0, 4.0]], since=5.0)
        trainer.begin()
        assert trainer.state.window is None
        assert trainer.loop.running_mean.sums() == [0.0, 0.0, 0.0]
