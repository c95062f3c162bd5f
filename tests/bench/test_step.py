"""Time of a step beside scripts that do the same by hand: what becomes of the times that sides tell."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from benches import by_number

from bench import processes, step
from bench.harness import Pairs
from bench.measurements import Row
from bench.processes import BenchOptions, Program
from entrypoint import ExitCode, Failure, LaunchOptions

EVERY = 4  # steps of an epoch
BROKEN = -1.0  # seconds of a step of one that ends instead


class Stand:
    """In the place of a process that trains. Its steps take so many seconds."""

    def __init__(self, program: Program, seconds: float) -> None:
        self.program, self.seconds, self.steps = program, seconds, 1
        self.facts = {"batch": 10, "ranks": 1, "first_step_s": 9 * seconds}
        self.facts |= {"compile_s": seconds, "graphs": 3, "steps_per_epoch": EVERY}

    def step_seconds(self) -> float:
        return self.seconds

    def step_and_cpu_seconds(self) -> tuple[float, float]:
        return self.seconds, 2 * self.seconds

    def steps_in(self, seconds: float) -> int:
        return max(1, round(seconds / self.seconds))

    def request(self, **request: Any) -> dict[str, Any]:
        """After a warm-up of 2 steps; the first step of an epoch takes twice as long."""
        last = 2 + request["steps"]
        return {
            "last": last,
            "graphs": 3,
            "stamps": [self.seconds * (1 + (n > 1 and n % EVERY == 1)) for n in range(3, last + 1)],
        }


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Row]]:
    """Run some rows with sides that take so many seconds, in the order in which they are started."""

    def run(numbers: str, *seconds: float, device: str = "cpu", **more: Any) -> dict[str, Row]:
        left = cycle(seconds)  # some rows start all sides several times

        @contextmanager
        def start_programs(options: BenchOptions, *programs: Program) -> Iterator[list[Stand]]:
            stands = [Stand(program, next(left)) for program in programs]
            if any(stand.seconds == BROKEN for stand in stands):
                raise Failure("a side has ended", found="first\nlast words", fix="", code=ExitCode.PEER)
            yield stands

        monkeypatch.setattr(processes, "start_programs", start_programs)
        arguments = argparse.Namespace(rows=numbers.split(","))
        options = BenchOptions(
            device="cpu",
            launch=LaunchOptions(),
            scratch=tmp_path,
            environ={},
            log=lambda line: None,
            arguments=arguments,
        )
        return by_number(list(step.run(replace(options, device=device, **more))))

    return run


Measured = Callable[..., dict[str, Row]]


def value(row: Row) -> float:
    """The median."""
    assert row.estimate is not None, row.missing
    return row.estimate.value


def test_our_speed_is_told_as_a_share_of_the_bare_loops(measured: Measured) -> None:
    rows = measured("3", 1.0, 2.0, 4.0, 2.0)
    assert (value(rows["3a"]), value(rows["3b"])) == (2.0, 0.5)


def test_a_row_keeps_the_absolute_figures_of_both_sides(measured: Measured) -> None:
    facts = measured("3", 1.0, 2.0, 1.0, 1.0)["3a"].facts
    assert (facts["ours_images_per_s"], facts["peer_images_per_s"]) == (10.0, 5.0)
    assert (facts["ours_first_step_s"], facts["ours_compile_s"], facts["peer"]) == (9.0, 1.0, "bare")


def test_the_loops_own_time_is_what_it_takes_over_the_bare_one(measured: Measured) -> None:
    rows = measured("4", 130e-6, 100e-6, 300e-6)
    assert value(rows["4a"]) == pytest.approx(30.0)
    assert value(rows["4b"]) == pytest.approx(0.15)


def test_an_accelerate_that_is_no_slower_than_the_bare_loop_is_not_divided_by(measured: Measured) -> None:
    row = measured("4", 130e-6, 100e-6, 100e-6)["4b"]
    assert row.estimate is None
    assert "noise" in (row.missing or "")


def test_the_pause_is_that_of_the_steps_in_which_an_epoch_begins(measured: Measured) -> None:
    assert value(measured("6", 0.5)["6"]) == 1.0


def test_the_step_before_the_first_epoch_is_no_boundary() -> None:
    assert step.boundary_pauses([9.0, 1.0, 1.0, 1.0, 3.0, 1.0], 1, 4) == ([2.0], 1.0)


def test_a_second_start_is_compared_with_the_first(measured: Measured) -> None:
    rows = measured("10", 10.0, 1.0, pairs=1)
    assert (value(rows["10a"]), value(rows["10b"])) == (0.1, 0.0)
    both = {"cold_s": 100.0, "warm_s": 10.0, "cold_compile_s": 10.0, "warm_compile_s": 1.0}
    assert rows["10a"].facts == both


def test_two_processes_take_pairs_enough_for_a_lower_bound(measured: Measured) -> None:
    row = measured("13", 1.0, 1.0)["13"]
    assert row.estimate is not None
    assert row.estimate.of == 200


def test_the_share_of_the_devices_rate_counts_the_networks_own_products() -> None:
    product_s = 2 * step.PRODUCT**3 / 1e15  # a device of 1 PFLOP/s
    step_s = 100 * step.GFLOP * 1e9 / 0.5e15
    assert step.utilisation(Pairs(ours=(step_s,), peer=(product_s,)), 100).value == pytest.approx(0.5)


def test_on_a_gpu_both_rows_of_the_reference_workload_are_measured(measured: Measured) -> None:
    rows = measured("1", 1.0, 3.0, 0.1, device="cuda")
    assert value(rows["1"]) == 3.0
    assert rows["2"].estimate is not None


def test_beside_the_recipe_a_block_is_an_epoch_or_more(measured: Measured) -> None:
    facts = measured("1", 1.0, 3.0, 0.1, device="cuda")["1"].facts
    assert facts["steps_of_a_block"] == 50_000 // 256


@pytest.mark.parametrize(("numbers", "device"), [("1", "cpu"), ("4,13", "cuda")])
def test_what_the_device_cannot_show_says_why(measured: Measured, numbers: str, device: str) -> None:
    rows = measured(numbers, device=device)
    assert rows
    assert all(row.estimate is None and row.missing for row in rows.values())


def test_a_row_that_goes_wrong_is_told_and_the_next_ones_are_measured(measured: Measured) -> None:
    rows = measured("3,6", 1.0, 1.0, BROKEN, 1.0, 1.0)
    assert (rows["3a"].failed, rows["3b"].failed) == (False, True)
    assert rows["3b"].missing == "a side has ended; first; last words"
    assert value(rows["6"]) == 1.0


def test_unknown_rows_are_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="99"):
        step._parse_rows("3,99")
