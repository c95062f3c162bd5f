"""What ranks of one machine share."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hosts import together
from worlds import FIRST

from entrypoint import ExitCode, Failure
from train.distributed import shared_memory
from train.distributed.shared_memory import SINGLE_RANK, HostMemory, HostRanks


def written(nodes: list[int]) -> list[list[int]]:
    """What each rank sees, once each has written its number plus 1 at its own place."""

    def run(host: HostRanks) -> HostMemory:
        area = host.area(len(nodes))
        if area.memory is not None:
            area.memory[host.rank] = host.rank + 1
        return area

    return [[] if area.memory is None else area.memory.tolist() for area in together(run, nodes)]


def test_ranks_of_one_machine_see_what_the_others_write() -> None:
    assert written([0, 0, 0]) == [[1, 2, 3]] * 3


def test_machines_share_nothing_with_each_other() -> None:
    assert written([0, 1, 0, 1]) == [[1, 0, 3, 0], [0, 2, 0, 4]] * 2


def test_a_rank_that_is_alone_on_its_machine_has_its_own_memory() -> None:
    assert written([0, 1, 1]) == [[], [0, 2, 3], [0, 2, 3]]
    assert SINGLE_RANK.area(8).memory is None


def test_nothing_is_left_open() -> None:
    before = os.listdir("/proc/self/fd")
    written([0, 0])
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize("shut", ["_create_memory_file", "_open_memory_file"])
def test_where_the_system_lets_nobody_share_each_has_its_own(shut: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, shut, lambda *_: None)
    assert written([0, 0]) == [[], []]


def test_another_file_under_the_number_that_was_told_is_not_taken(tmp_path: Path) -> None:
    with (tmp_path / "other").open("w") as other:
        assert shared_memory._open_memory_file((os.getpid(), other.fileno(), (0, 0, 0))) is None


def test_what_the_first_rank_of_a_machine_finds_is_all_of_its_ranks() -> None:
    results = together(lambda host: host.first(lambda: f"rank {host.rank}"), [0, 1, 0, 1])
    assert results == ["rank 0", "rank 1"] * 2


@pytest.mark.parametrize(
    ("node_ranks", "marks", "nodes"),
    [
        ([0, 0, 1, 1], "abab", [0, 1, 0, 1]),
        ([0, 0, 1, 1], "aabb", [0, 0, 1, 1]),
        ([0, 0, 1, 1], "aaaa", [0, 0, 1, 1]),
        ([0, 1, 0, 1], "abab", [0, 1, 0, 1]),
    ],
    ids=["dealt out in turn", "as told", "two networks of one machine", "told in turn"],
)
def test_a_nodes_number_that_was_counted_up_gives_way_to_its_machines_mark(
    node_ranks: list[int], marks: str, nodes: list[int]
) -> None:
    def run(host: HostRanks) -> int:
        world = replace(FIRST, rank=host.rank, world_size=4, num_nodes=2, node_rank=node_ranks[host.rank])
        return shared_memory.host_ranks(world, host.all_gather, machine=lambda: marks[host.rank]).node

    assert together(run, [0] * 4) == nodes


def test_a_machines_mark_stays_the_same() -> None:
    assert shared_memory.read_boot_id() == shared_memory.read_boot_id() != ""


def test_a_failure_on_one_machine_ends_all_ranks() -> None:
    def look(host: HostRanks) -> None:
        if host.node == 1:
            raise Failure("gone", fix="-", code=ExitCode.NO_INPUT)

    def run(host: HostRanks) -> int:
        with pytest.raises(Failure, match="gone") as caught:
            host.first(lambda: look(host))
        return caught.value.code

    assert together(run, [0, 0, 1, 1]) == [ExitCode.NO_INPUT] * 4


def arrays_of(host: HostRanks) -> tuple[str, list[Any]]:
    """A result with arrays of several types and sizes, one of them twice and one empty."""
    letters = np.frombuffer(f"rank {host.rank}".encode(), np.uint8)
    return f"of {host.rank}", [letters, np.arange(100_000) + host.rank, np.zeros((0, 3)), letters]


def shared(nodes: list[int]) -> list[tuple[str, list[Any]]]:
    return together(lambda host: host.first_shared(lambda: arrays_of(host)), nodes)


@pytest.mark.parametrize(
    ("nodes", "first"), [([0, 0, 0], [0, 0, 0]), ([0, 1, 0, 1], [0, 1, 0, 1]), ([0, 1, 1], [0, 1, 1])], ids=str
)
def test_a_result_with_arrays_is_that_of_the_first_rank_of_the_machine(nodes: list[int], first: list[int]) -> None:
    for (result, (letters, numbers, none, _)), rank in zip(shared(nodes), first, strict=True):
        assert (result, bytes(letters)) == (f"of {rank}", f"rank {rank}".encode())
        np.testing.assert_array_equal(numbers, np.arange(100_000) + rank)
        assert (none.shape, none.dtype) == ((0, 3), np.float64)


def test_an_array_that_is_listed_twice_stays_one_array() -> None:
    assert [arrays[0] is arrays[3] for _, arrays in shared([0, 0])] == [True, True]


def test_arrays_of_a_result_are_in_memory_once() -> None:
    (_, first), (_, second) = shared([0, 0])
    first[1][7] = -1
    assert second[1][7] == -1


def test_shared_arrays_are_aligned() -> None:
    assert [array.flags.aligned for _, arrays in shared([0, 0]) for array in arrays] == [True] * 8


def test_arrays_do_not_pass_through_the_exchange_of_all_ranks() -> None:
    sizes = []

    def run(host: HostRanks) -> None:
        def all_gather(value: Any) -> list[Any]:
            sizes.append(len(pickle.dumps(value)))
            return host.all_gather(value)

        replace(host, all_gather=all_gather).first_shared(lambda: arrays_of(host))

    together(run, [0, 0, 1, 1])
    assert max(sizes) < 2000


def test_without_any_byte_to_share_the_ranks_meet_as_often() -> None:
    results = together(lambda host: host.first_shared(lambda: (host.rank, [np.zeros(host.node)])), [0, 0, 1, 1])
    assert [(result, len(arrays[0])) for result, arrays in results] == [(0, 0), (0, 0), (2, 1), (2, 1)]


def test_one_rank_gets_its_own_arrays() -> None:
    result, arrays = arrays_of(SINGLE_RANK)
    same, own = SINGLE_RANK.first_shared(lambda: (result, arrays))
    assert same is result
    assert all(array is other for array, other in zip(arrays, own, strict=True))


@pytest.mark.parametrize("shut", ["_create_memory_file", "_open_memory_file"])
def test_where_memory_cannot_be_shared_each_rank_makes_the_arrays(shut: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, shut, lambda *_: None)
    assert [bytes(arrays[0]) for _, arrays in shared([0, 0, 1])] == [b"rank 0", b"rank 1", b"rank 2"]


def test_a_failure_on_one_machine_ends_all_ranks_that_wait_for_arrays() -> None:
    def fail(host: HostRanks) -> tuple[str, list[Any]]:
        if host.node == 1:
            raise Failure("gone", fix="-", code=ExitCode.NO_INPUT)
        return arrays_of(host)

    def run(host: HostRanks) -> int:
        with pytest.raises(Failure, match="gone") as caught:
            host.first_shared(lambda: fail(host))
        return caught.value.code

    assert together(run, [0, 0, 1, 1]) == [ExitCode.NO_INPUT] * 4


@pytest.mark.parametrize(("bound", "each"), [([range(8)] * 2, 4), ([range(4), range(4, 8)], 4), ([range(3)] * 2, 1)])
def test_processors_are_those_of_the_affinity_divided_among_who_has_the_same(
    bound: list[range], each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory.os, "sched_getaffinity", lambda _: set(bound[0]))
    others = [(0, sorted(value)) for value in bound]
    assert HostRanks(world_size=2, all_gather=lambda value: others).cores() == each


def test_a_quota_of_time_is_divided_among_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory.os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(shared_memory, "num_usable_cores", lambda: 4)  # docker run --cpus=4
    assert HostRanks(world_size=2, all_gather=lambda value: [value] * 2).cores() == 2
