"""One decision for all ranks, at the same step."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist

from train.distributed.shared_memory import HostRanks
from train.distributed.vote import (
    NUM_SLOTS,
    WORD_BYTES,
    AllReduceVoteExchange,
    SharedMemoryVoteExchange,
    StopVote,
    Vote,
    VoteExchange,
    open_vote_exchange,
)

QUIET, STOP, SAVE = Vote(), Vote(stop=True), Vote(save=True)
Make = Callable[[int, int], VoteExchange]  # rank, world size
TIMEOUT_S = 20


def over_gloo() -> Make:
    store = dist.HashStore()
    return lambda rank, size: AllReduceVoteExchange(
        _Direct(dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=TIMEOUT_S)))  # type: ignore[arg-type]
    )


def in_memory() -> Make:
    memory = torch.zeros(NUM_SLOTS * WORD_BYTES * 64, dtype=torch.uint8)
    return lambda rank, size: SharedMemoryVoteExchange(
        memory[: NUM_SLOTS * WORD_BYTES * size], rank, [os.getpid()] * size
    )


ways = pytest.mark.parametrize("way", [over_gloo, in_memory])


def decide(way: Callable[[], Make], *wishes: Vote) -> list[Vote]:
    """What ranks come to, each a thread."""
    make = way()

    def vote_of(rank: int) -> Vote:
        agreement = StopVote(make(rank, len(wishes)), lambda: wishes[rank])
        agreement.propose()
        return agreement.result()

    with ThreadPoolExecutor(len(wishes)) as pool:
        return list(pool.map(vote_of, range(len(wishes))))


class _Direct:
    """dist.all_reduce wants a registered group; threads of one process cannot each register one."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group


@pytest.fixture(autouse=True)
def _all_reduce_through_the_group_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_reduce(flags, op, group, async_op):  # type: ignore[no-untyped-def]
        options = dist.AllreduceOptions()
        options.reduceOp = op
        return group.group.allreduce([flags], options)

    monkeypatch.setattr("train.distributed.vote.dist.all_reduce", all_reduce)


@ways
def test_a_wish_of_any_rank_counts_for_all(way: Callable[[], Make]) -> None:
    assert decide(way, QUIET, STOP, QUIET) == [STOP, STOP, STOP]


@ways
def test_different_wishes_add_up(way: Callable[[], Make]) -> None:
    assert decide(way, STOP, SAVE) == [Vote(stop=True, save=True)] * 2


@ways
def test_all_learn_that_a_checkpoint_has_been_written(way: Callable[[], Make]) -> None:
    assert decide(way, QUIET, Vote(written=True)) == [Vote(written=True)] * 2


@ways
def test_nobodys_wish_is_no_decision(way: Callable[[], Make]) -> None:
    assert decide(way, QUIET, QUIET) == [QUIET, QUIET]


@ways
def test_ranks_of_any_speed_take_the_same_decision_at_the_same_step(way: Callable[[], Make]) -> None:
    make, ranks, steps = way(), 3, 300
    order = torch.randint(0, 3, (ranks, steps), generator=torch.Generator().manual_seed(1)).tolist()

    def votes_of(rank: int) -> list[Vote]:
        wishes = iter(SAVE if step % 7 == rank else QUIET for step in range(steps))
        agreement, decisions = StopVote(make(rank, ranks), lambda: next(wishes)), []
        for step in range(steps):
            agreement.propose()
            for _ in range(order[rank][step]):
                threading.Event().wait(1e-4)
            decisions.append(agreement.result())
        return decisions

    with ThreadPoolExecutor(ranks) as pool:
        decisions = list(pool.map(votes_of, range(ranks)))
    assert decisions == [[SAVE if step % 7 < ranks else QUIET for step in range(steps)]] * ranks


def test_a_rank_alone_decides_at_once() -> None:
    wishes = iter([STOP])
    agreement = StopVote(None, lambda: next(wishes))
    agreement.propose()
    assert agreement.result() == STOP


@ways
def test_without_a_proposal_nothing_is_decided(way: Callable[[], Make]) -> None:
    assert StopVote(way()(0, 1), lambda: STOP).result() == QUIET


def test_a_rank_that_has_ended_is_not_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait(TIMEOUT_S)
    board = SharedMemoryVoteExchange(
        torch.zeros(NUM_SLOTS * WORD_BYTES * 2, dtype=torch.uint8), 0, [os.getpid(), ended.pid]
    )
    board.send(QUIET)
    with pytest.raises(dist.DistError, match="rank 1 has ended"):
        board.read()


def test_what_a_rank_has_written_before_it_ended_counts() -> None:
    memory = torch.zeros(NUM_SLOTS * WORD_BYTES * 2, dtype=torch.uint8)
    own, other = (SharedMemoryVoteExchange(memory, rank, [os.getpid(), 2**22 + 1]) for rank in (0, 1))
    own.send(QUIET)
    other.send(STOP)
    assert own.read() == STOP


def one_of(nodes: tuple[int, ...]) -> VoteExchange | None:
    """What rank 0 of a world takes whose ranks lie on these nodes, if its machine can share memory."""
    group = object()
    answers = {int: list(nodes), tuple: [None] * len(nodes), bool: [True] * len(nodes)}

    def all_gather(value: object) -> list[object]:
        return [value, *answers[type(value)][1:]] if not isinstance(value, tuple) else [value] * len(nodes)

    host = HostRanks(node=nodes[0], rank=0, world_size=len(nodes), all_gather=all_gather)
    return open_vote_exchange(group, host)  # type: ignore[arg-type]


def test_ranks_of_one_machine_share_memory() -> None:
    assert isinstance(one_of((0, 0)), SharedMemoryVoteExchange)


def test_ranks_of_several_machines_send_messages() -> None:
    assert isinstance(one_of((0, 1)), AllReduceVoteExchange)


def test_a_process_alone_needs_neither() -> None:
    assert open_vote_exchange(None, HostRanks()) is None
