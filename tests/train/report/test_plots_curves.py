"""Curves of one run, and of several over each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_up_runs import found_finished, make_run

from train.report import plots, read
from train.report.document import Paragraph, Picture
from train.report.read import RecordedRun


def run(folder: Path) -> RecordedRun:
    """One that was read back."""
    return read.load_run(make_run(folder))


def test_one_run_shows_training_beside_validation_by_epoch(tmp_path: Path) -> None:
    loss, scores, _, speed = plots.single_run_panels(run(tmp_path / "run"))
    assert (loss.x, [series.name for series in loss.series]) == ("epoch", ["train loss", "val loss"])
    assert list(loss.series[1].x) == [1.0, 2.0]
    assert list(scores.series[1].y) == [50.0, 75.0]
    assert list(speed.series[0].y)[-1] == 2000


def test_several_runs_share_their_panels(tmp_path: Path) -> None:
    panels = plots.comparison_panels([run(tmp_path / name) for name in ("a", "b")])
    assert [[series.name for series in panel.series] for panel in panels] == [["a", "b"]] * 4


def test_runs_without_a_known_epoch_are_drawn_by_step(tmp_path: Path) -> None:
    old = make_run(tmp_path / "old")
    (old / "run.json").write_text(json.dumps({"starts": []}))
    panels = plots.comparison_panels([read.load_run(old), run(tmp_path / "new")])
    assert {panel.x for panel in panels} == {"step"}
    assert list(panels[1].series[1].x) == [10.0, 20.0]


def test_a_start_that_went_on_is_marked(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    record = json.loads((folder / "run.json").read_text())
    record["starts"].append({"step": 15, "world_size": 4})
    (folder / "run.json").write_text(json.dumps(record))
    assert plots.restart_marks(read.load_run(folder)) == {1.5: "goes on, 4 ranks"}


def test_a_start_that_trained_nothing_is_not_marked(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    found_finished(folder, step=20)
    assert plots.restart_marks(read.load_run(folder)) == {}


def test_a_run_without_a_line_has_words_instead_of_a_picture(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", events=[])
    (block,) = plots.curves_section([read.load_run(folder)]).blocks
    assert isinstance(block, Paragraph)


def test_the_picture_says_what_it_shows(tmp_path: Path) -> None:
    first, *others = plots.curves_section([run(tmp_path / "run")]).blocks
    assert isinstance(first, Picture)
    assert (first.name, first.alt, len(others)) == ("curves-loss", "Loss by epoch, run", 3)


@pytest.mark.parametrize(("classes", "told"), [(5, False), (6, True)])
def test_the_best_five_are_drawn_where_there_are_more(tmp_path: Path, classes: int, told: bool) -> None:
    scores = plots.single_run_panels(read.load_run(make_run(tmp_path / "run", training={"classes": classes})))[1]
    assert ("val top-5" in [series.name for series in scores.series]) == told
