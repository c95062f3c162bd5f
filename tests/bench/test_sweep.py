"""Which setting is recommended, from what each takes of time and memory."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import pytest
from stand_ins import on_cpu, replaced

from bench import sweep
from bench.measurements import Measurement, Row, Series
from bench.processes import Program
from bench.sweep import Setting
from bench.training import Speed, TimedTraining

ARGUMENTS = argparse.Namespace(micro=[8, 16], workers=["auto", "2"], precisions=["fp32"], cpus=[1])
CONFIG = "train: {global_batch_size: 32}\n"


def measure(folder: Path) -> list[Measurement]:
    (folder / "mine.yaml").write_text(CONFIG)
    return list(sweep.run(on_cpu(folder, config=str(folder / "mine.yaml"), arguments=ARGUMENTS)))


def last(all_found: list[Measurement]) -> Row:
    """The recommended one."""
    return next(result for result in all_found if isinstance(result, Row) and result.number == "recommended")


def test_the_fastest_is_recommended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, lambda words: 0.25 if "micro_batch_size=16" in words and "workers=2" in words else 1.0)
    what = last(measure(tmp_path)).target.what
    assert what == (
        "recommended: train.micro_batch_size=16 data.loader=workers data.workers=2 train.precision=fp32, "
        "--cpus-per-task=1"
    )


def test_of_those_as_fast_the_one_that_takes_less_is_recommended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(monkeypatch, lambda words: 0.99 if "data.workers=2" in words else 1.0)
    assert "data.workers" not in last(measure(tmp_path)).target.what


def timed(workers: str, loader: str) -> tuple[Setting, Speed]:
    """As fast as any other."""
    training = TimedTraining(name="w", program=Program(name="w", command=[], environ={}))
    speed = Speed(training=training, seconds=(1.0,) * 5, images=64, facts={"loader": loader})
    return Setting(micro=64, workers=workers, precision="fp32", cpus=2), speed


@pytest.mark.parametrize(("came_to", "taken"), [("8 workers", False), ("1 worker", True), ("memory", True)])
def test_auto_counts_as_the_workers_that_it_starts(came_to: str, taken: bool) -> None:
    what = sweep.recommend([timed("auto", came_to), timed("2", "2 workers")], procs=1).target.what
    assert ("data.workers=2" not in what) is taken


def test_each_setting_has_a_row_with_its_memory_and_a_point_in_both_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(monkeypatch, lambda words: 1.0)
    all_found = measure(tmp_path)
    whats = [result.target.what for result in all_found if isinstance(result, Row) and result.number == "sweep"]
    assert whats[0] == "train.micro_batch_size=8 train.precision=fp32, 1 CPU a process: 1.00 GB"
    assert len(whats) == 4
    plots = {result.name: result.lines for result in all_found if isinstance(result, Series)}
    assert plots["sweep"]["fp32, 2, 1 CPUs"] == [(8, 64.0), (16, 64.0)]  # the stand-in's batch
    assert plots["sweep-memory"]["fp32, auto, 1 CPUs"] == [(8, 1.0), (16, 1.0)]


def test_a_setting_that_runs_out_of_memory_is_told_and_not_recommended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(monkeypatch, lambda words: None if "micro_batch_size=16" in words else 1.0)
    all_found = measure(tmp_path)
    missing = [result for result in all_found if isinstance(result, Row) and result.missing == "out of GPU memory"]
    assert len(missing) == 2
    assert "micro_batch_size=8 " in last(all_found).target.what


def test_where_nothing_runs_nothing_is_recommended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, lambda words: None)
    assert {result.missing for result in measure(tmp_path) if isinstance(result, Row)} == {"out of GPU memory"}


def test_by_default_the_grid_divides_the_global_batch_and_fits_the_machine(tmp_path: Path) -> None:
    settings = sweep.grid(on_cpu(tmp_path), procs=1)
    assert {setting.micro for setting in settings} == {16, 64}
    assert {setting.precision for setting in settings} == {"fp32", "bf16"}
    assert max(setting.cpus for setting in settings) == len(os.sched_getaffinity(0))
    assert len(sweep.grid(on_cpu(tmp_path, quick=True), procs=1)) == 2


def test_a_setting_is_written_as_a_user_writes_it() -> None:
    words = Setting(micro=8, workers="memory", precision="bf16", cpus=2).words()
    assert words == ["train.micro_batch_size=8", "data.loader=memory", "train.precision=bf16"]


@pytest.mark.parametrize(("read", "text"), [(sweep._parse_workers, "many"), (sweep._parse_precisions, "no")])
def test_what_is_no_setting_is_refused(read: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        read(text)
