"""Long curves keep their ends and spikes in few points, and short ones every point."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from made_up_runs import BEGAN, make_run

from train.report import plots, read
from train.report.curves import MAX_POINTS, Curve

LENGTHS = (MAX_POINTS + 1, 10 * MAX_POINTS + 7, 300_000)


def curve_of(values: list[float]) -> Curve:
    curve = Curve()
    for step, value in enumerate(values):
        curve.add(step, value)
    return curve


def test_a_short_curve_keeps_every_point() -> None:
    values = [math.sin(step) for step in range(MAX_POINTS - 1)]
    assert curve_of(values).points().tolist() == [[step, value] for step, value in enumerate(values)]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_long_curve_keeps_few_points_with_its_ends_and_each_spike(length: int) -> None:
    values = [1.0] * length
    spikes = {length // 7: 90.0, length // 2: -90.0, length - 3: 80.0}
    for step, value in spikes.items():
        values[step] = value
    points = curve_of(values).points()
    assert len(points) <= 2 * MAX_POINTS
    assert (points[0].tolist(), points[-1].tolist()) == ([0, 1], [length - 1, 1])
    assert {x: y for x, y in points.tolist() if y != 1} == spikes


@pytest.mark.parametrize("length", LENGTHS)
def test_the_points_that_are_kept_lie_evenly_over_the_curve(length: int) -> None:
    gaps = np.diff(curve_of([0.0] * length).points()[:, 0])
    assert gaps.max() <= length / 100


def test_a_value_that_is_no_number_hides_no_spike() -> None:
    values = [math.nan, 5.0, *[1.0] * 6] * MAX_POINTS
    assert np.nanmax(curve_of(values).points()[:, 1]) == 5


def test_points_come_in_the_order_of_x() -> None:
    curve = Curve()
    for x in (3.0, 1.0, 2.0):
        curve.add(x, 10 * x)
    assert curve.points().tolist() == [[1, 10], [2, 20], [3, 30]]


def write_lines(folder: Path, count: int) -> Path:
    """As many log points and lines of a GPU: all rates but one are 100, and the GPU is half idle."""
    lines = []
    for step in range(1, count + 1):
        time = BEGAN + step
        lines.append({"event": "train", "step": step, "time": time, "loss": 1.0, "images_per_s": 100.0})
        lines.append({"event": "gpu", "step": step, "time": time, "gpu": "a", "utilisation_percent": 100 * (step % 2)})
    lines[2 * (count // 3)]["loss"] = 50.0
    make_run(folder, events=lines)
    return folder


def test_a_report_of_many_lines_draws_the_spike_and_counts_all_lines(tmp_path: Path) -> None:
    run = read.load_run(write_lines(tmp_path / "run", 5000))
    steps, losses = run.column("train", "loss")
    assert len(steps) <= 2 * MAX_POINTS
    assert max(losses) == 50
    throughput = read.measured_throughput(run)
    assert throughput is not None
    assert throughput.images_per_s == 100
    assert read.training_seconds(run) == pytest.approx(5000 * 256 / 100)
    assert plots.gpu_table({"a": [run.metrics.gpus["a"]]}).rows == [["a", "50", "100"]]


def test_the_memory_of_a_report_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for count in (4000, 40_000):
        folder = write_lines(tmp_path / str(count), count)
        tracemalloc.start()
        read.load_run(folder)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    grown = (tmp_path / "40000/metrics.jsonl").stat().st_size - (tmp_path / "4000/metrics.jsonl").stat().st_size
    assert peaks[1] - peaks[0] < grown / 5


def test_lists_of_an_evaluation_are_not_kept(tmp_path: Path) -> None:
    event = {"event": "eval", "step": 1, "accuracy": 0.5, "recall": [0.1] * 100}
    folder = make_run(tmp_path / "run", events=[event])
    assert "recall" in json.loads((folder / "metrics.jsonl").read_text())
    assert read.load_run(folder).metrics.events["eval"] == [{"event": "eval", "step": 1, "accuracy": 0.5}]
