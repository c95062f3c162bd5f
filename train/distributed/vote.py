"""All ranks vote at each step whether to stop or to save, and all get the same result.

A single rank notices a signal or the clock. The vote turns that into an action that all ranks take
at the same step.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from train.distributed.shared_memory import HostRanks

NUM_SLOTS: Final = 2  # a rank is at most one vote ahead of another: it must have read the other's last vote before
WORD_BYTES: Final = 8  # a processor writes so many bytes at once: no rank reads half of a word
FLAG_BITS: Final = 3
# Seconds between two reads of the other ranks' words, and between two checks whether these ranks are alive.
POLL_INTERVAL_S, LIVENESS_CHECK_INTERVAL_S = 5e-5, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One rank's vote, or the result of all.

    stop: save and exit. save: save a checkpoint and continue. written: the writing of the last
    checkpoint has ended, committed or failed.
    """

    stop: bool = False
    save: bool = False
    written: bool = False


class StopVote:
    """Combines the ranks' votes by a logical OR: one rank's vote is enough to stop or to save.

    Votes are sent before a step and read after it, so that the exchange costs the step no time. Without other ranks the
    vote counts immediately.
    """

    def __init__(self, exchange: VoteExchange | None, current_vote: Callable[[], Vote]) -> None:
        """current_vote: what this rank alone would do. exchange: None for a single rank."""
        self._exchange, self._current_vote = exchange, current_vote
        self._sent = False

    def propose(self) -> None:
        """Send this rank's vote. All ranks call it, then `result`, once per step."""
        if self._exchange is not None:
            self._exchange.send(self._current_vote())
            self._sent = True

    def result(self) -> Vote:
        """The result of all ranks' last votes; a single rank's current vote."""
        if self._exchange is None:
            return self._current_vote()
        if not self._sent:
            return Vote()
        self._sent = False
        return self._exchange.read()


def open_vote_exchange(group: dist.ProcessGroup | None, host: HostRanks) -> VoteExchange | None:
    """The cheapest exchange: shared memory if all ranks are on one machine, else the network. All ranks call it."""
    if group is None:
        return None
    if len(set(host.all_gather(host.node))) == 1:
        area = host.area(NUM_SLOTS * WORD_BYTES * host.world_size)
        processes = host.all_gather(os.getpid())
        if area.memory is not None:
            return SharedMemoryVoteExchange(area.memory, host.rank, processes)
    return AllReduceVoteExchange(group)


class AllReduceVoteExchange:
    """Exchanges votes over the network, in the background."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._sent: tuple[dist.Work, Tensor] | None = None

    def send(self, vote: Vote) -> None:
        """Send this rank's vote without waiting. All ranks call `send` and `read` in turn."""
        flags = torch.tensor([vote.stop, vote.save, vote.written], dtype=torch.int32)
        work = dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None  # every member of the group gets one
        self._sent = (work, flags)

    def read(self) -> Vote:
        """The result of all ranks' last votes; waits for ranks that are late."""
        assert self._sent is not None
        work, flags = self._sent
        work.wait()
        stop, save, written = flags.tolist()
        return Vote(stop=bool(stop), save=bool(save), written=bool(written))


class SharedMemoryVoteExchange:
    """Exchanges votes among the ranks of one machine: each rank writes a word that the others read.

    A message, however short, wakes several threads of each process. That costs 0.7 ms of CPU time in each step,
    measured with two ranks on two cores.
    """

    def __init__(self, memory: Tensor, rank: int, processes: Sequence[int]) -> None:
        """memory: uint8 [NUM_SLOTS * WORD_BYTES * ranks], zeros. processes: the ranks' process ids."""
        self._words = memory.numpy().view(np.int64).reshape(NUM_SLOTS, len(processes))
        self._rank, self._processes, self._number = rank, processes, 0

    def send(self, vote: Vote) -> None:
        """As `AllReduceVoteExchange.send`."""
        self._number += 1
        flags = vote.stop | vote.save << 1 | vote.written << 2
        self._words[self._number % NUM_SLOTS, self._rank] = self._number << FLAG_BITS | flags

    def read(self) -> Vote:
        """As `AllReduceVoteExchange.read`.

        Raises:
            DistError: a rank that this rank waits for has ended.
        """
        words, least = self._words[self._number % NUM_SLOTS], self._number << FLAG_BITS
        since = time.monotonic()
        while words.min() < least:
            time.sleep(POLL_INTERVAL_S)
            if time.monotonic() - since > LIVENESS_CHECK_INTERVAL_S:
                self._refuse_dead(np.flatnonzero(words < least).tolist())
                since = time.monotonic()
        flags = int(np.bitwise_or.reduce(words))
        return Vote(stop=bool(flags & 1), save=bool(flags & 2), written=bool(flags & 4))

    def _refuse_dead(self, late: Sequence[int]) -> None:
        for rank in late:
            if (
                not _is_process_alive(self._processes[rank])
                and self._words[self._number % NUM_SLOTS, rank] < self._number << FLAG_BITS
            ):
                raise dist.DistError(f"rank {rank} has ended")


VoteExchange = AllReduceVoteExchange | SharedMemoryVoteExchange


def _is_process_alive(process: int) -> bool:
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return False
    except (
        OSError,
        AttributeError,
    ):  # too many open files, or no pidfd_open: the parent process watches the ranks anyway
        return True
    try:
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        return not ended.poll(0)
    finally:
        os.close(handle)
