"""Scaling next to DataParallel and a simulated network."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from stand_ins import on_cpu, replaced

from bench import scaling
from train.bench.measurements import Row
from train.bench.scaling import plan_trainings


def test_without_gpus_both_rows_say_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, lambda words: 1.0)
    options = on_cpu(tmp_path, arguments=argparse.Namespace(processes=[1]))
    rows = {row.number: row.missing for row in scaling.run(options) if isinstance(row, Row)}
    assert rows == {"14": None, "14 DataParallel": "needs two GPUs", "14 wire": "needs a GPU"}


def test_a_wire_is_simulated_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, lambda words: 1.0 if "--alpha-us 0" in words else 1.25)
    (row,) = scaling.simulated_wire(on_cpu(tmp_path, device="cuda"))
    assert isinstance(row, Row)
    assert row.estimate is not None
    assert (row.estimate.value, row.facts["simulated"]) == (0.8, True)


def test_on_gpus_dataparallel_takes_the_same_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = replaced(monkeypatch, lambda words: 1.0 if "dataparallel.py" in words else 0.5)
    (row,) = scaling.data_parallel(on_cpu(tmp_path, device="cuda", pairs=2), 2)
    assert isinstance(row, Row)
    assert row.estimate is not None
    assert seen == ["ddp", "ddp", "dataparallel", "dataparallel"]
    assert (row.estimate.value, row.facts["gpus"]) == (2.0, 2)


def test_a_peer_that_ends_is_a_failed_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, lambda words: None)
    options = on_cpu(tmp_path, device="cuda")
    rows = [*scaling.data_parallel(options, 2), *scaling.simulated_wire(options)]
    assert [(row.missing, row.failed) for row in rows if isinstance(row, Row)] == [("out of GPU memory", True)] * 2


def test_the_command_line_has_the_numbers_of_processes(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    scaling.add_arguments(parser)
    counts = parser.parse_args(["--processes", "2,1"]).processes
    assert {count for _, count in plan_trainings(on_cpu(tmp_path), counts)} == {1, 2}
