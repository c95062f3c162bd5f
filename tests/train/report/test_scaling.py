"""Runs on several numbers of ranks: ratios where they mean something, the reason where they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from made_up_runs import make_run

from train.plotting.speedup import Point
from train.report import comparing, reading, scaling
from train.report.document import Picture, Section, Table, Words
from train.report.reading import Run


def runs(folder: Path, *speeds: float, **changes: Any) -> list[Run]:
    """On 1, 2, 4, ... ranks, at these images per second and rank; the last one with changes."""
    made = []
    for at, speed in enumerate(speeds):
        last = changes if at == len(speeds) - 1 else {}
        made.append(reading.read(make_run(folder / f"r{at}", ranks=2**at, speed=speed, **last)))
    return made


def section(found: list[Run], *, anyway: bool = False) -> Section:
    """Which is there."""
    shown = scaling.section(found, comparing.likeness(found), anyway=anyway)
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
    points = [Point(processes=1, images_per_s=100.0), Point(processes=2, images_per_s=300.0)]
    assert "An efficiency of 150%" in str(scaling.blocks({"strong scaling": points}, name="x"))


def test_unlike_runs_get_no_ratio(tmp_path: Path) -> None:
    shown = section(runs(tmp_path, 1000, 900, training={"precision": "bf16"}))
    assert all(isinstance(block, Words) for block in shown.blocks)
    assert "--compare-anyway" in str(shown)


def test_who_insists_gets_the_ratio_with_the_caution(tmp_path: Path) -> None:
    shown = section(runs(tmp_path, 1000, 900, training={"precision": "bf16"}), anyway=True)
    cautions = [block.text for block in shown.blocks if isinstance(block, Words) and block.caution]
    assert cautions[0] == "Not comparable: not the same precision."
    assert any(isinstance(block, Picture) for block in shown.blocks)


def test_runs_of_the_same_size_are_no_scaling(tmp_path: Path) -> None:
    same = [reading.read(make_run(tmp_path / name)) for name in ("a", "b")]
    assert scaling.section(same, comparing.likeness(same), anyway=True) is None


def test_several_runs_of_one_size_give_their_median_and_their_whole_spread(tmp_path: Path) -> None:
    same = [reading.read(make_run(tmp_path / str(rate), ranks=1, speed=rate)) for rate in (10.0, 20.0, 60.0)]
    (point,) = scaling.points(same)
    assert (point.images_per_s, point.low, point.high) == (20, 10, 60)
