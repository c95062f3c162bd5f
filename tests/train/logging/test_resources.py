"""The numbers of all ranks, put together and taken apart again."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from made_up_usage import GIB, gpu, rank, row

from train.logging import resources


@pytest.mark.parametrize("gpus", [0, 1, 3])
def test_the_sum_of_what_ranks_send_tells_what_each_has_sent(gpus: int) -> None:
    sent = [
        rank(number, *[gpu(index=float(at)) for at in range(gpus)], cpu_seconds=1.0 * number) for number in range(3)
    ]
    columns: Sequence[list[float]] = [resources.place_among_ranks(row(one), rank=one.number, ranks=3) for one in sent]
    everyone = [sum(numbers) for numbers in zip(*columns, strict=True)]
    assert len(everyone) == 3 * resources.values_per_rank(gpus)
    assert str(resources.split_by_rank(everyone, hosts=["node00", "node01", "node02"], gpus=gpus)) == str(tuple(sent))


def test_what_one_rank_does_not_know_spoils_no_other() -> None:
    sent = [rank(0, gpu(), memory_bytes=math.nan), rank(1, gpu())]
    columns = [resources.place_among_ranks(row(one), rank=one.number, ranks=2) for one in sent]
    first, second = resources.split_by_rank(
        [sum(pair) for pair in zip(*columns, strict=True)], hosts=["a", "b"], gpus=1
    )
    assert math.isnan(first.process["memory_bytes"])
    assert second.process["memory_bytes"] == GIB


def test_a_ranks_line_holds_its_cores_and_its_memory() -> None:
    ((name, labels, values),) = resources.rank_events([rank(1)])
    assert (name, labels) == ("1", {"rank": 1, "host": "node01"})
    assert values == {"cpu_cores": 1.5, "memory_bytes": GIB}


def test_torchs_own_memory_is_told_where_there_is_a_gpu() -> None:
    ((_, _, values),) = resources.rank_events([rank(0, gpu(), torch_allocated_bytes=5.0, torch_reserved_bytes=7.0)])
    assert (values["torch_allocated_bytes"], values["torch_reserved_bytes"]) == (5, 7)


def test_means_are_over_the_time_since_the_line_before() -> None:
    before = rank(0, gpu(), seconds=10.0, cpu_seconds=15.0)
    now = rank(0, gpu(busy=900.0, busy_s=14.0, energy_j=3400.0, energy_s=14.0), seconds=14.0, cpu_seconds=23.0)
    ((_, _, of_gpu),) = resources.gpu_events([now], [before])
    ((_, _, of_rank),) = resources.rank_events([now], [before])
    assert (of_gpu["utilisation_percent"], of_gpu["power_w"], of_rank["cpu_cores"]) == (100.0, 100.0, 2.0)


@pytest.mark.parametrize("seconds", [10.0, math.nan])
def test_what_was_not_measured_since_has_no_line(seconds: float) -> None:
    before, now = rank(0, gpu()), rank(0, gpu(), seconds=seconds)
    assert resources.rank_events([now], [before]) == resources.gpu_events([now], [before]) == []


@pytest.mark.parametrize(("instance", "name"), [(math.nan, "node00/3"), (1.0, "node00/3:1")])
def test_a_gpu_is_named_by_its_host_and_its_number(instance: float, name: str) -> None:
    ((called, labels, _),) = resources.gpu_events([rank(0, gpu(index=3.0, instance=instance))])
    assert (called, labels) == (name, {"gpu": name})


def test_a_gpu_that_nvml_does_not_show_has_no_line() -> None:
    assert resources.gpu_events([rank(0, gpu(index=math.nan))]) == []


def test_what_an_instance_does_not_tell_is_unknown_and_the_rest_is_told() -> None:
    ((_, _, values),) = resources.gpu_events([rank(0, gpu(busy_s=0.0, energy_s=0.0, temperature_c=math.nan))])
    assert math.isnan(values["utilisation_percent"])
    assert math.isnan(values["power_w"])
    assert (values["temperature_c"], values["memory_bytes"]) == (None, 3 * GIB)


def test_why_a_clock_was_low_since_the_line_before_is_told_in_words() -> None:
    before, now = rank(0, gpu(hot_s=3.0)), rank(0, gpu(hot_s=4.0, cap_s=2.0), seconds=14.0)
    ((_, _, values),) = resources.gpu_events([now], [before])
    assert values["throttled"] == ["too hot", "at its power limit"]
    ((_, _, calm),) = resources.gpu_events([rank(0, gpu())])
    assert "throttled" not in calm
