"""The last lines of a run: what it has consumed, as far as that is known."""

from __future__ import annotations

import math

import pytest
from made_up_usage import GIB, gpu, rank

from train.logging import resources
from train.logging.resources import format_memory, usage_rows, usage_totals
from train.report.plots import GPU_METRICS


def test_on_a_cpu_cores_and_the_largest_rank_are_told() -> None:
    told = usage_rows([rank(0), rank(1, memory_peak_bytes=3.0 * GIB)], images=1000)
    assert told == {
        "CPU use": "1.5 cores per rank on average",
        "memory": "up to 3.0 GiB per rank (rank 1 on node01)",
    }


def test_use_memory_and_energy_of_gpus_are_told() -> None:
    told = usage_rows(
        [rank(0, gpu()), rank(1, gpu(index=2.0, busy=1000.0, memory_peak_bytes=61.5 * GIB))], images=10_000
    )
    assert told["GPU use"] == "75 % of the time on average, lowest 50 % (node00/0)"
    assert told["GPU memory"] == "up to 61.5 GiB of 80.0 GiB (node01/2)"
    assert told["energy"] == "1.667 Wh of the GPUs, 0.167 Wh per 1,000 images"


def test_what_torch_has_taken_is_told_beside_what_the_gpu_has_given() -> None:
    one = rank(0, gpu(), torch_allocated_bytes=1.5 * GIB, torch_reserved_bytes=2.0 * GIB)
    assert usage_rows([one], images=1)["GPU memory"].endswith("(node00/0); torch's tensors up to 1.5 GiB")


def test_a_gpu_that_has_no_power_to_tell_leaves_the_energy_out() -> None:
    assert "energy" not in usage_rows([rank(0, gpu()), rank(1, gpu(energy_s=0.0))], images=1000)


def test_without_any_image_energy_is_told_alone() -> None:
    assert usage_rows([rank(0, gpu())], images=0)["energy"] == "0.8333 Wh of the GPUs"


@pytest.mark.parametrize(
    ("wh", "told"),
    [
        (0.83333, "0.8333 Wh"),
        (999.96, "1,000 Wh"),
        (1410.2, "1,410 Wh"),
        (9999.6, "10 kWh"),
        (134_400.0, "134.4 kWh"),
        (98_765_000.0, "98,760 kWh"),
    ],
)
def test_energy_is_written_without_an_exponent(wh: float, told: str) -> None:
    assert usage_rows([rank(0, gpu(energy_j=3600 * wh))], images=0)["energy"] == f"{told} of the GPUs"


@pytest.mark.parametrize(("wh", "told"), [(0.11849, "0.118"), (999.7, "1,000"), (12_345.0, "12,300")])
def test_energy_by_image_is_written_without_an_exponent(wh: float, told: str) -> None:
    said = usage_rows([rank(0, gpu(energy_j=3600 * wh))], images=1000)["energy"]
    assert said.endswith(f", {told} Wh per 1,000 images")


def test_energy_by_image_is_left_out_where_a_look_that_is_missing_would_count_for_much() -> None:
    short, long = [rank(0, gpu(), seconds=99.0)], [rank(0, gpu(), seconds=100.0)]
    assert "wh_per_1000_images" not in usage_totals(short, 1000, 5.0)
    assert usage_totals(long, 1000, 5.0)["wh_per_1000_images"] == 0.8333
    told = usage_rows(short, 1000, 5.0)["energy"]
    assert told == "0.8333 Wh of the GPUs (per image: only from 100 s of training on)"


@pytest.mark.parametrize("key", resources.THROTTLE_FIXES)
def test_a_clock_that_was_low_for_long_is_named_with_its_gpu_and_what_to_do(key: str) -> None:
    told = usage_rows([rank(0, gpu(**{key: 0.4})), rank(1, gpu(**{key: 1.2}))], images=1)["throttled"]
    assert told.startswith("node01/0: ")
    assert "12 % of the time. fix: " in told


def test_a_clock_that_was_low_for_a_moment_is_not_worth_a_word() -> None:
    one = [rank(0, gpu(hot_s=0.4))]
    assert "throttled" not in usage_rows(one, images=1)
    assert usage_totals(one, images=1)["throttled"] == {"too hot": 0.04}


def test_each_reason_has_a_line_of_its_own() -> None:
    told = usage_rows([rank(0, gpu(hot_s=2.0, cap_s=3.0))], images=1)["throttled"]
    assert [line.strip().split(" ")[0] for line in told.splitlines()] == ["node00/0:", "node00/0:"]


def test_the_record_holds_the_same_as_numbers() -> None:
    found = usage_totals([rank(0, gpu())], images=1000)
    assert (found["gpu_utilisation_percent"], found["wh"], found["wh_per_1000_images"]) == (50.0, 0.8333, 0.8333)
    assert (found["cpu_cores"], found["memory_peak_bytes"], found["seconds"]) == (1.5, 2 * GIB, 10.0)


def test_the_report_draws_what_is_recorded() -> None:
    ((_, _, told),) = resources.gpu_events([rank(0, gpu())])
    assert {*GPU_METRICS} == {*told}


def test_where_nothing_was_measured_nothing_is_told() -> None:
    unknown = dict.fromkeys(("seconds", "cpu_seconds", "memory_bytes", "memory_peak_bytes"), math.nan)
    assert usage_rows([rank(0, **unknown)], images=1000) == usage_totals([rank(0, **unknown)], images=1000) == {}
    assert usage_rows([], images=0) == {}


def test_a_gpu_that_nvml_does_not_show_leaves_no_line() -> None:
    nothing = dict.fromkeys(gpu(), math.nan)
    assert {*usage_rows([rank(0, nothing)], images=1)} == {"CPU use", "memory"}


@pytest.mark.parametrize(("number", "text"), [(1.5 * GIB, "1.5 GiB"), (340 * 2**20, "340 MiB"), (0, "0 MiB")])
def test_sizes_read_naturally(number: float, text: str) -> None:
    assert format_memory(number) == text
