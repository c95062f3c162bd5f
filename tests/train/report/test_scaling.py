"""Runs on several numbers of ranks: ratios where they mean something, the reason where they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_up_runs import go_on, history, make_run

from train.report import compare, read
from train.report.compare import ScalingMeasurement
from train.report.document import Paragraph, Picture, Section, Table
from train.report.read import RecordedRun


def runs(folder: Path, *speeds: float, **changes: Any) -> list[RecordedRun]:
    """On 1, 2, 4, ... ranks, at these images per second and rank; the last one with changes."""
    made = []
    for at, speed in enumerate(speeds):
        last = changes if at == len(speeds) - 1 else {}
        made.append(read.load_run(make_run(folder / f"r{at}", ranks=2**at, speed=speed, **last)))
    return made


def section(found: list[RecordedRun], *, anyway: bool = False) -> Section:
    """Which is there."""
    shown = compare.scaling_section(found, compare.find_differences(found), anyway=anyway)
    assert shown is not None
    return shown


def test_speed_up_and_efficiency_stand_in_a_picture_and_a_table(tmp_path: Path) -> None:
    shown = section(runs(tmp_path, 1000, 900, 600))
    (table,) = (block for block in shown.blocks if isinstance(block, Table))
    assert [row[2:] for row in table.rows] == [["1.00", "1", "100%"], ["1.80", "2", "90%"], ["2.40", "4", "60%"]]
    assert any(isinstance(block, Picture) for block in shown.blocks)
    assert "75% or more of the ideal up to 2 processes, not beyond" in str(shown)


def test_two_numbers_of_processes_are_said_to_be_few(tmp_path: Path) -> None:
    assert "Only 2 numbers of processes" in str(section(runs(tmp_path, 1000, 900)))


def test_more_than_the_ideal_is_not_believed() -> None:
    points = [ScalingMeasurement(processes=1, images_per_s=100.0), ScalingMeasurement(processes=2, images_per_s=300.0)]
    assert "An efficiency of 150%" in str(compare.scaling_blocks({"strong scaling": points}, name="x"))


def test_more_than_the_ideal_gets_no_verdict() -> None:
    points = [ScalingMeasurement(processes=1, images_per_s=100.0), ScalingMeasurement(processes=2, images_per_s=300.0)]
    shown = str(compare.scaling_blocks({"strong scaling": points}, name="x"))
    assert "Strong scaling: no verdict is given: an efficiency of 150%" in shown
    assert "of the ideal up to" not in shown


def test_unlike_numbers_of_threads_get_no_verdict(tmp_path: Path) -> None:
    devices = [{"device": f"CPU, {threads} per rank"} for threads in ("2 threads", "1 thread")]
    found = [
        read.load_run(make_run(tmp_path / f"r{ranks}", ranks=ranks, training=device))
        for ranks, device in enumerate(devices, 1)
    ]
    assert "Strong scaling: no verdict is given: not the same threads per rank." in str(section(found))
    assert "of the ideal up to" not in str(section(found))


def test_a_finished_run_that_is_started_again_keeps_its_ranks_and_its_speed(tmp_path: Path) -> None:
    found = runs(tmp_path, 1000, 900)
    go_on(found[1].folder, step=20, ranks=1)
    assert [point.processes for point in compare.scaling_measurements([found[0], read.load_run(found[1].folder)])] == [
        1,
        2,
    ]


def test_first_steps_are_no_speed_and_the_run_is_named(tmp_path: Path) -> None:
    shown = section(runs(tmp_path, 1000, 900, 10_000, events=history(40_000)[:1]))
    assert "r2 is left out: first steps only" in str(shown)
    (table,) = (block for block in shown.blocks if isinstance(block, Table))
    assert [row[0] for row in table.rows] == ["1", "2"]


def test_runs_without_two_speeds_say_what_is_missing(tmp_path: Path) -> None:
    assert "r1 is left out: no log point" in str(section(runs(tmp_path, 1000, 900, events=[])))


def test_unlike_runs_are_neither_strong_nor_weak_scaling_and_get_no_verdict(tmp_path: Path) -> None:
    shown = section(runs(tmp_path, 1000, 900, settings=["train.global_batch_size=300"]), anyway=True)
    assert "trong scaling" not in str(shown)
    assert "of the ideal up to" not in str(shown)


@pytest.mark.parametrize("rates", [[(1, 0.0), (2, 0.0)], [(1, 5.0), (2, 0.0)]])
def test_speeds_of_nothing_are_no_error(rates: list[tuple[int, float]]) -> None:
    points = [ScalingMeasurement(processes=count, images_per_s=rate) for count, rate in rates]
    assert compare.scaling_blocks(
        {"weak scaling": points, "strong scaling": [ScalingMeasurement(processes=1, images_per_s=1)]}, name="x"
    )


def test_a_series_that_is_slow_from_its_first_number_on_is_said_to_be() -> None:
    slow = compare.compute_scaling([ScalingMeasurement(processes=1, images_per_s=10, speed_up=0.5)])
    assert compare.scaling_verdict("weak scaling", slow).startswith("Weak scaling: below 75%")


def test_unlike_runs_get_no_ratio(tmp_path: Path) -> None:
    shown = section(runs(tmp_path, 1000, 900, training={"precision": "bf16"}))
    assert all(isinstance(block, Paragraph) for block in shown.blocks)
    assert "--compare-anyway" in str(shown)


def test_who_insists_gets_the_ratio_with_the_caution(tmp_path: Path) -> None:
    shown = section(runs(tmp_path, 1000, 900, training={"precision": "bf16"}), anyway=True)
    cautions = [block.text for block in shown.blocks if isinstance(block, Paragraph) and block.caution]
    assert cautions[0] == "Not comparable: not the same precision."
    assert any(isinstance(block, Picture) for block in shown.blocks)


def test_runs_of_the_same_size_are_no_scaling(tmp_path: Path) -> None:
    same = [read.load_run(make_run(tmp_path / name)) for name in ("a", "b")]
    assert compare.scaling_section(same, compare.find_differences(same), anyway=True) is None


def test_several_runs_of_one_size_give_their_median_and_their_whole_spread(tmp_path: Path) -> None:
    same = [read.load_run(make_run(tmp_path / str(rate), ranks=1, speed=rate)) for rate in (10.0, 20.0, 60.0)]
    (point,) = compare.scaling_measurements(same)
    assert (point.images_per_s, point.low, point.high) == (20, 10, 60)


@pytest.mark.parametrize("repeated", [False, True])
def test_the_words_say_what_the_bars_are(tmp_path: Path, repeated: bool) -> None:
    found = runs(tmp_path, 1000, 900, 0, events=[])  # the last one is left out
    again = [read.load_run(make_run(tmp_path / "again", ranks=1, speed=950.0))] if repeated else []
    said = str(section([*found, *again]).blocks[0])
    assert ("Bars are the quartiles" in said) is not repeated
    assert ("the lowest quartile of any of them to the highest" in said) is repeated
