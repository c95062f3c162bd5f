"""What an evaluation leaves behind in the run's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import trained

from train.record import metrics
from train.run.announce import CONFUSION


def last(folder: Path) -> dict[str, object]:
    return [event for event in metrics.read(folder / metrics.NAME) if event["event"] == "eval"][-1]


def test_the_matrix_of_the_last_evaluation_counts_every_held_out_image(tmp_path: Path) -> None:
    todo, _ = trained(tmp_path)
    told = json.loads((tmp_path / CONFUSION).read_text())
    assert (told["step"], told["classes"]) == (8, list(todo.classes))
    assert sum(map(sum, told["matrix"])) == todo.held_out == 16


def test_the_record_has_every_score(tmp_path: Path) -> None:
    todo, _ = trained(tmp_path)
    event, result = last(tmp_path), todo.state.result
    assert result is not None
    assert {name: event[name] for name in ("accuracy", "loss", "samples", "top5_accuracy", "macro_f1")} == {
        name: getattr(result, name) for name in ("accuracy", "loss", "samples", "top5_accuracy", "macro_f1")
    }
    assert event["recall"] == list(result.recall or ())


def test_a_matrix_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / CONFUSION).mkdir()
    todo, _ = trained(tmp_path)
    assert todo.state.step == 8
    assert capsys.readouterr().out.count("confusion.json is incomplete, training goes on") == 1
