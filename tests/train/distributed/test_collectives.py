"""What a rank receives from a collective operation: right, wrong, and of one rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed as dist

from entrypoint import Failure, World
from train.distributed import collectives
from train.distributed.collectives import Collective
from train.distributed.device import gpu_uuid

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


RANKS = 3


def after(name: str, rank: int = 0, ranks: int = RANKS) -> Collective:
    """The collective of one of the ranks when all have done right."""
    collective = Collective(name, world(ranks, rank), CPU, 200)
    owns = [collectives.rank_numbers(other, 200, CPU) for other in range(ranks)]
    if name == "all-reduce":
        collective.numbers = torch.stack(owns).sum(0)
    elif name == "broadcast":
        collective.numbers = owns[0]
    for received, own in zip(collective.gathered, owns, strict=False):
        received.copy_(own)
    return collective


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("name", collectives.OPERATIONS)
def test_right_numbers_pass(name: str, rank: int) -> None:
    after(name, rank).refuse_wrong_numbers()


@pytest.mark.parametrize("ranks", [1, 2, 64])
def test_the_right_sum_of_many_ranks_passes(ranks: int) -> None:
    after("all-reduce", ranks=ranks).refuse_wrong_numbers()


@pytest.mark.parametrize("at", [0, 100, 199])
@pytest.mark.parametrize("name", collectives.OPERATIONS)
def test_one_wrong_number_is_found_and_named(name: str, at: int) -> None:
    collective = after(name)
    (collective.gathered or [collective.numbers])[-1][at] += 1
    with pytest.raises(Failure, match=f"rank 0 on .* got wrong numbers from the {name}") as caught:
        collective.refuse_wrong_numbers()
    assert caught.value.code == 78
    assert f"number {at} is" in str(caught.value.found)


def test_a_piece_in_the_wrong_place_is_found() -> None:
    collective = after("all-reduce")
    collective.numbers = collective.numbers.roll(1)
    with pytest.raises(Failure, match="wrong numbers"):
        collective.refuse_wrong_numbers()


def test_a_sum_that_left_a_rank_out_is_found() -> None:
    collective = after("all-reduce", ranks=4)
    collective.numbers = after("all-reduce", ranks=3).numbers
    with pytest.raises(Failure, match="wrong numbers"):
        collective.refuse_wrong_numbers()


def checked() -> tuple[str, dict[str, Any]]:
    """The backend, and what one rank measures."""
    with collectives.process_group(world(1), CPU, dist.HashStore(), 60.0) as backend:
        return backend, collectives.check_all_reduce(world(1), CPU)


def test_one_rank_exchanges_with_itself() -> None:
    backend, checks = checked()
    assert (backend, checks["ranks"], checks["bytes_per_s"]) == ("gloo", 1, 0.0)
    assert checks["seconds"] > 0
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
    def refuse(*_: object, **__: object) -> None:
        raise dist.DistBackendError(f"NCCL error in: x.cpp:77, unhandled system error\nx: y\nLast error:\n{reason}")

    monkeypatch.setattr(dist, "all_reduce", refuse)
    with pytest.raises(Failure) as caught:
        checked()
    assert (caught.value.code, f"NCCL: {reason}" == caught.value.found) == (code, True)
    assert not dist.is_initialized()


def test_on_the_cpu_there_is_no_uuid() -> None:
    assert gpu_uuid(CPU) == ""
