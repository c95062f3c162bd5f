"""Speed-up and efficiency of 1, 2, 4, ... processes, from the times of their steps, and what a checkout adds."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from stand_ins import on_cpu, replaced

from bench import scaling
from bench.measurements import Measurement, Row, Series
from entrypoint import ExitCode, Failure

COUNTS = argparse.Namespace(processes=[1, 2, 4])


def number(words: str, name: str) -> int:
    match = re.search(rf"{name}[= ](\d+)", words)
    assert match
    return int(match[1])


def linear(words: str) -> float:
    """A machine without a loss, but for four processes: half the speed."""
    count = number(words, "--procs-per-node")
    return number(words, "train.global_batch_size") / count / 100 * (2 if count == 4 else 1)


def measure(folder: Path) -> list[Measurement]:
    return list(scaling.run(on_cpu(folder, arguments=COUNTS)))


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Row]:
    """By what they say was measured."""
    replaced(monkeypatch, linear)
    return {result.target.what: result for result in measure(tmp_path) if isinstance(result, Row)}


def test_speed_up_and_efficiency_are_against_one_process(rows: dict[str, Row]) -> None:
    values = {what: round(row.estimate.value, 6) for what, row in rows.items() if row.estimate}
    assert values == {
        "1 process": 100.0,
        "strong scaling, 2 processes: speed-up, efficiency 100%": 2.0,
        "strong scaling, 4 processes: speed-up, efficiency 50%": 2.0,
        "weak scaling, 2 processes: speed-up, efficiency 100%": 2.0,
        "weak scaling, 4 processes: speed-up, efficiency 50%": 2.0,
    }


def test_every_row_has_a_number_of_its_own(rows: dict[str, Row]) -> None:
    numbers = [row.number for row in rows.values()]
    assert numbers == ["14", "14 strong, 2", "14 strong, 4", "14 weak, 2", "14 weak, 4"]


def test_every_row_says_what_a_process_computed(rows: dict[str, Row]) -> None:
    strong, weak = (rows[f"{kind} scaling, 2 processes: speed-up, efficiency 100%"] for kind in scaling.MODES)
    assert (strong.facts["batch"], weak.facts["batch"]) == (32, 64)


def test_the_series_hold_what_reports_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, linear)
    strong, weak = (result for result in measure(tmp_path) if isinstance(result, Series))
    assert (strong.name, weak.name) == ("scaling-strong", "scaling-weak")
    assert [x for x, _ in strong.lines["images_per_s"]] == [1, 2, 4]
    assert {"low", "high", "ms a step", "speed-up", "efficiency"} < set(weak.lines)


def test_a_number_of_processes_that_fails_is_left_out_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(monkeypatch, lambda words: None if "--procs-per-node 4" in words else linear(words))
    all_found = measure(tmp_path)
    missing = [(result.missing, result.failed) for result in all_found if isinstance(result, Row) and result.missing]
    assert missing == [("out of GPU memory", True), ("out of GPU memory", True)]
    assert [len(result.lines["low"]) for result in all_found if isinstance(result, Series)] == [2, 2]


def test_a_user_s_training_keeps_its_global_batch_or_lets_it_grow(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("train: {global_batch_size: 48, micro_batch_size: 24}\n")
    options = on_cpu(tmp_path, config=str(config))
    planned = scaling.plan_trainings(options, [1, 4])
    words = {key: " ".join(training.program.command) for key, training in planned.items()}
    assert number(words["strong", 4], "train.global_batch_size") == 48
    assert "train.micro_batch_size=auto" in words["strong", 4]
    assert number(words["weak", 4], "train.global_batch_size") == 192
    assert "train.micro_batch_size=auto" not in words["weak", 4]


def grown(folder: Path, batch: int, *counts: int) -> list[int]:
    """The global batches of weak scaling, of a training with this one."""
    (folder / "mine.yaml").write_text(f"train: {{global_batch_size: {batch}}}\n")
    planned = scaling.plan_trainings(on_cpu(folder, config=str(folder / "mine.yaml")), counts)
    weak = [planned[scaling.WEAK, count] for count in counts[1:]]
    return [number(" ".join(world.program.command), "train.global_batch_size") for world in weak]


def test_the_global_batch_grows_as_the_processes_do_where_they_are_no_multiples(tmp_path: Path) -> None:
    assert grown(tmp_path, 48, 2, 3, 5) == [72, 120]


def test_a_global_batch_that_cannot_grow_so_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="from 2 processes to 3") as caught:
        grown(tmp_path, 49, 2, 3)
    assert caught.value.code == ExitCode.USAGE
    assert caught.value.fix.startswith("train.global_batch_size=48 or 50, or other")


def test_each_process_of_a_cpu_has_one_thread(tmp_path: Path) -> None:
    planned = scaling.plan_trainings(on_cpu(tmp_path), [1, 2])
    assert {world.program.environ["OMP_NUM_THREADS"] for world in planned.values()} == {"1"}


def test_numbers_of_processes_are_powers_of_two_and_all() -> None:
    assert scaling.powers_of_two(1) == [1]
    assert scaling.powers_of_two(6) == [1, 2, 4, 6]


def test_without_gpus_both_rows_say_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, lambda words: 1.0)
    options = on_cpu(tmp_path, arguments=argparse.Namespace(processes=[1]), compares=True)
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
    assert {count for _, count in scaling.plan_trainings(on_cpu(tmp_path), counts)} == {1, 2}
