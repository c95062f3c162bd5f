"""GPU use where it was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from made_up_runs import make_run, of_gpus

from train.report import plots, read
from train.report.document import Paragraph, Picture, Table
from train.report.read import RecordedRun


def run(folder: Path, events: Sequence[dict[str, Any]]) -> RecordedRun:
    """One with these lines."""
    return read.load_run(make_run(folder / "run", events=events))


def test_each_gpu_has_its_means_and_peaks(tmp_path: Path) -> None:
    table = plots.gpu_table(plots.gpu_columns(run(tmp_path, of_gpus(2))))
    assert [row[:5] for row in table.rows] == [
        ["node01/0", "90", "90", "11", "12"],
        ["node01/1", "91", "91", "11", "12"],
    ]
    assert table.head[1:3] == ["GPU use, %: mean", "GPU use, %: highest"]


def test_what_was_recorded_is_drawn(tmp_path: Path) -> None:
    *pictures, table = plots.gpu_section(run(tmp_path, of_gpus(20))).blocks
    assert isinstance(table, Table)
    names = [picture.name for picture in pictures if isinstance(picture, Picture)]
    assert names == ["gpus-gpu-use", "gpus-memory", "gpus-power"]  # temperature was not recorded


def test_gpus_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    assert list(plots.gpu_columns(run(tmp_path, of_gpus(11))))[-2:] == ["node01/9", "node01/10"]


def test_a_run_without_gpus_says_not_measured(tmp_path: Path) -> None:
    (block,) = plots.gpu_section(run(tmp_path, [])).blocks
    assert isinstance(block, Paragraph)
    assert block.text.startswith("Not measured")


def test_lines_without_a_time_or_a_number_are_left_out(tmp_path: Path) -> None:
    lines = [{"event": "gpu", "gpu": "a", "utilisation_percent": 3}, {"event": "gpu", "gpu": "b", "time": 1}]
    assert plots.gpu_table(plots.gpu_columns(run(tmp_path, lines))).rows == [["b"]]


def test_the_mean_is_over_the_time_and_a_wait_between_two_starts_is_none(tmp_path: Path) -> None:
    """Lines get rarer in a long run: 10 of a second each, 2 of 100 s each, and 2 after a day in the queue."""
    times = [*range(10), 109, 209, 86_400, 86_500]
    lines = [
        {"event": "gpu", "gpu": "a", "time": 1.0 + at, "utilisation_percent": 100 if at < 100 else 50} for at in times
    ]
    ((_, mean, highest),) = plots.gpu_table(plots.gpu_columns(run(tmp_path, lines))).rows
    assert (mean, highest) == ("51.2", "100")


def test_lines_of_ranks_are_not_kept_in_memory(tmp_path: Path) -> None:
    made = run(tmp_path, [{"event": "rank", "time": 7.0}, {"event": "train", "step": 1, "time": 9.0}])
    assert (list(made.events), made.recorded) == (["train"], (7.0, 9.0))
