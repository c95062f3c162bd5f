"""The JSON of a bench, as a benchmark writes it, becomes a section of a report."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import measurements, report, targets
from bench.estimates import estimate_median
from bench.measurements import Measurement, Series
from bench.report import BenchResults, TargetRatio
from entrypoint import ExitCode, Failure
from train.report.document import Paragraph, Picture, Table

LINES = {
    "images_per_s": [(1, 100.0), (2, 180.0), (4, 300.0)],
    "low": [(1, 90.0)],
    "speed-up": [(2, 1.9)],
    "high": [(1, 110.0)],
}
SCALING = Series(name="scaling-strong", title="Strong", x="processes", y="images/s", lines=LINES)
OTHER = Series(name="comm", title="All-reduce", x="MB", y="ms", lines={"t": [(1, 2.0)], "ideal": [(1, 1.0)]})


def written(folder: Path, *results: Measurement) -> BenchResults:
    """By the bench's own code, and read back."""
    path = folder / "bench.json"
    path.write_text(json.dumps(measurements.as_json(results, {"cpu": "x", "cores": 2})))
    return report.read_bench(path)


def test_rows_stand_beside_their_targets(tmp_path: Path) -> None:
    met, missed = targets.measured("7", estimate_median([5.0] * 5)), targets.measured("8", estimate_median([0.9] * 5))
    bench = written(tmp_path, met, missed, targets.unmeasured("1", "needs a GPU"))
    (table,) = (block for block in report.bench_section(bench).blocks if isinstance(block, Table))
    assert [row[3:5] for row in table.rows] == [
        ["yes", "5"],
        ["no", "0.9"],
        ["-", "not measured: needs a GPU"],
    ]
    pictures = [block.alt for block in report.bench_section(bench).blocks if isinstance(block, Picture)]
    assert pictures == ["1 of 2 targets are reached"]


def test_a_series_over_processes_becomes_speed_up(tmp_path: Path) -> None:
    section = report.bench_section(written(tmp_path, SCALING, OTHER))
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    assert [row[2] for row in table.rows] == ["1.00", "1.90", "3.00"]
    assert table.head[0] == "strong scaling: processes"
    names = [block.name for block in section.blocks if isinstance(block, Picture)]
    assert names == ["bench-1-scaling-speed-up", "bench-1-scaling-efficiency", "bench-1-1"]


def test_the_bars_of_a_speed_up_are_explained_where_there_are_any(tmp_path: Path) -> None:
    without = replace(SCALING, lines={name: line for name, line in LINES.items() if name not in ("low", "high")})
    for series, count in ((SCALING, 1), (OTHER, 0), (without, 0)):
        words = [
            block.text
            for block in report.bench_section(written(tmp_path, series)).blocks
            if isinstance(block, Paragraph)
        ]
        assert sum("Bars on speed-up" in text for text in words) == count


def test_a_row_is_reached_where_the_bench_says_so(tmp_path: Path) -> None:
    unsure = estimate_median([0.9, 0.9, 0.99, 0.99, 0.99])  # the bounds hold the target
    section = report.bench_section(written(tmp_path, targets.measured("13", unsure)))
    pictures = [block.alt for block in section.blocks if isinstance(block, Picture)]
    assert (unsure.value, pictures) == (0.99, ["0 of 1 targets are reached"])


def test_a_logarithm_is_for_what_is_above_nothing() -> None:
    assert report._log_base({"log_x": True}, "log_x", [1, 10]) == 10
    assert report._log_base({"log_x": True}, "log_x", [0, 10]) is None


@pytest.mark.parametrize("text", ["[]", "{}", "", "[" * 100_000])
def test_what_is_no_bench_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(Failure) as refused:
        report.read_bench(tmp_path / "a.json")
    assert refused.value.code == ExitCode.DATA


def test_a_pipe_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(Failure, match="cannot be read"):
        report.read_bench(tmp_path / "a.json")


def test_objects_of_another_shape_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    odd: dict[str, Any] = {
        "rows": [7, {}, {"value": "x", "target": "≥ much"}],
        "series": [{}, {"lines": {"a": [1, [2]]}}],
    }
    (tmp_path / "a.json").write_text(json.dumps(odd))
    section = report.bench_section(report.read_bench(tmp_path / "a.json"))
    assert len([block for block in section.blocks if isinstance(block, Picture)]) == 2  # of series, "not measured"


@pytest.mark.parametrize(
    ("value", "target", "at_least", "share"), [(3.0, 2.5, True, 1.2), (2.0, 2.5, True, 0.8), (20, 40, False, 2)]
)
def test_right_of_one_is_reached(value: float, target: float, at_least: bool, share: float) -> None:
    assert report.share_of_target(value, target, at_least=at_least) == pytest.approx(share)


def test_a_target_of_nothing_is_reached_by_nothing() -> None:
    assert report.share_of_target(0, 0, at_least=False) == 1
    assert report.share_of_target(8, 0, at_least=False) < 1


def test_rows_become_a_picture() -> None:
    rows = [TargetRatio(name="row", share=share, low=share, high=2, met=share > 1) for share in (0.5, 1.2)]
    assert report.draw_ratios("bench", rows).startswith(b"\x89PNG")
