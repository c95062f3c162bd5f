"""What a checkpoint adds: measured by both sides, and judged from pairs of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from benches import quick

from bench import checkpoint, processes
from bench.measurements import Row
from bench.processes import BenchOptions, Program, RunningProgram


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saves")


@pytest.fixture(scope="module")
def blocks(folder: Path) -> dict[str, dict[str, float]]:
    """A block with a checkpoint of ours and of the peer: both really save."""
    options = quick(folder)
    with processes.start_programs(options, checkpoint.our_program(options), checkpoint.peer_program(options)) as both:
        return {running.program.name: run_block(running) for running in both}


def run_block(running: RunningProgram) -> dict[str, float]:
    running.request(steps=1, save=False)
    return running.request(steps=2, save=True)


@pytest.mark.parametrize("name", ["saves", "saving"])
def test_a_block_with_a_checkpoint_tells_how_long_it_stood(blocks: dict[str, dict[str, float]], name: str) -> None:
    assert 0 < blocks[name]["save_s"] < blocks[name]["seconds"]


def test_both_leave_their_checkpoints(blocks: dict[str, dict[str, float]], folder: Path) -> None:
    assert len(list((folder / "saves" / "checkpoints").glob("step-*/manifest.json"))) == 2
    assert len(list((folder / "states").glob("checkpoints/*/model.safetensors"))) == 2


def test_each_side_goes_first_in_turns_and_so_does_the_block_with_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[str] = []

    def side(name: str) -> RunningProgram:
        def request(*, steps: int, save: bool) -> dict[str, float]:
            requests.append(f"{name}{'+' if save else '-'}")
            return {"seconds": 1.0, "save_s": 0.5}

        return cast(RunningProgram, SimpleNamespace(steps=3, request=request))

    @contextmanager
    def start_programs(options: BenchOptions, *programs: Program) -> Iterator[list[RunningProgram]]:
        yield [side("m"), side("s")]

    monkeypatch.setattr(processes, "start_programs", start_programs)
    monkeypatch.setattr(checkpoint, "steps_for_a_save", lambda program: 3)
    checkpoint._measure_blocks(quick(tmp_path, quick=False), {}, 3)
    assert "".join(requests) == "m+m-s+s-" + "s+s-m+m-" + "m-m+s-s+" + "s-s+m-m+"


def test_both_circumstances_are_told_and_each_row_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(
        options: BenchOptions, variables: dict[str, str], num_pairs: int
    ) -> tuple[checkpoint.Blocks, checkpoint.Blocks]:
        threads = float(variables["OMP_NUM_THREADS"])
        return [{"extra_s": threads, "save_s": threads, "copy_s": 0.1}], [{"extra_s": 1.0, "save_s": 1.0}]

    monkeypatch.setattr(checkpoint, "_measure_blocks", measure)
    monkeypatch.setattr(checkpoint, "num_usable_cores", lambda: 4)
    rows = [row for row in checkpoint.run(quick(tmp_path)) if isinstance(row, Row)]
    values = {row.number: row.estimate.value for row in rows if row.estimate}
    assert values == {"11a": 3.0, "11b": 4.0, "11a, all cores at work": 4.0, "11b, one core free": 3.0}


def test_each_circumstance_has_folders_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[str] = []

    @contextmanager
    def start_programs(options: BenchOptions, *programs: Program) -> Iterator[list[RunningProgram]]:
        folders.extend(program.command[list(program.command).index("--folder") + 1] for program in programs)
        block = {"seconds": 1.0, "save_s": 0.5, "copy_s": 0.1}
        yield [cast(RunningProgram, SimpleNamespace(steps=1, request=lambda **_: block)) for _ in programs]

    monkeypatch.setattr(processes, "start_programs", start_programs)
    monkeypatch.setattr(checkpoint, "num_usable_cores", lambda: 2)
    assert len(list(checkpoint.run(quick(tmp_path)))) == 4
    assert len(set(folders)) == 4


def test_a_fast_save_is_judged_by_the_peers_median() -> None:
    ours = [{"extra_s": extra, "save_s": 0.01, "copy_s": 0.005} for extra in (0.1, 0.1, 0.4)]
    stock = [{"extra_s": extra, "save_s": 0.2} for extra in (0.5, 0.5, 0.1)]
    rows = checkpoint.compute_rows(ours, stock)
    assert [round(row.estimate.value, 6) for row in rows.values() if row.estimate] == [0.2, 0.05]
    assert rows["11a"].facts["save_state_extra_s"] == 0.5
    assert rows["11b"].facts["copy_s"] == 0.005


def test_noise_larger_than_a_save_is_no_value() -> None:
    pair = [{"extra_s": -0.1, "save_s": 0.2, "copy_s": 0.1}]
    rows = checkpoint.compute_rows(pair, pair)
    assert (rows["11a"].estimate, rows["11b"].estimate is not None) == (None, True)
