"""The sums of an all-reduce: right, wrong, and of one rank."""

from __future__ import annotations

import pytest
import torch
from torch import distributed as dist

from entrypoint import Failure, World
from train.distributed import allreduce

CPU = torch.device("cpu")


def world(size: int, rank: int = 0) -> World:
    return World(
        rank=rank,
        local_rank=rank,
        world_size=size,
        local_world_size=size,
        node_rank=0,
        num_nodes=1,
        master_addr="127.0.0.1",
        master_port=20_000,
    )


def summed(size: int) -> torch.Tensor:
    return sum((allreduce.make_rank_tensor(rank, 1, CPU) for rank in range(size)), torch.zeros(2**18))


@pytest.mark.parametrize("size", [1, 2, 64])
def test_the_right_sum_passes(size: int) -> None:
    allreduce.refuse_wrong_sum(summed(size), world(size))
    assert summed(size).max() > 0


@pytest.mark.parametrize("at", [0, 1000, 2**18 - 1])
def test_one_wrong_number_is_found_and_named(at: int) -> None:
    numbers = summed(4)
    numbers[at] += 1
    with pytest.raises(Failure, match=r"rank 2 on .* got a wrong sum") as caught:
        allreduce.refuse_wrong_sum(numbers, world(4, rank=2))
    assert caught.value.code == 78
    assert f"number {at} is" in str(caught.value.found)


def test_a_piece_in_the_wrong_place_is_found() -> None:
    with pytest.raises(Failure, match="wrong sum"):
        allreduce.refuse_wrong_sum(summed(2).roll(1), world(2))


def test_a_sum_that_left_a_rank_out_is_found() -> None:
    with pytest.raises(Failure, match="wrong sum"):
        allreduce.refuse_wrong_sum(summed(3), world(4))


def test_one_rank_exchanges_with_itself() -> None:
    found = allreduce.measure_all_reduce(world(1), CPU, dist.HashStore(), 60.0)
    assert (found.backend, found.ranks, found.bytes_per_s) == ("gloo", 1, 0.0)
    assert found.seconds > 0
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("Error while creating shared memory segment /dev/shm/nccl-x, error: No space left on device (28)", 71),
        ("socketProgress: Connection closed by remote peer node02<41234>", 69),
        ("Cuda failure 214 'uncorrectable ECC error encountered'", 78),
    ],
)
def test_what_nccl_warned_of_is_told(monkeypatch: pytest.MonkeyPatch, reason: str, code: int) -> None:
    def refuse(*_: object) -> None:
        raise dist.DistBackendError(f"NCCL error in: x.cpp:77, unhandled system error\nx: y\nLast error:\n{reason}")

    monkeypatch.setattr(dist, "all_reduce", refuse)
    with pytest.raises(Failure) as caught:
        allreduce.measure_all_reduce(world(1), CPU, dist.HashStore(), 60.0)
    assert (caught.value.code, f"NCCL: {reason}" == caught.value.found) == (code, True)
    assert not dist.is_initialized()


def test_on_the_cpu_there_is_no_uuid() -> None:
    assert allreduce.gpu_uuid(CPU) == ""
