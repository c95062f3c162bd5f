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
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from train.distributed.shared_memory import HostRanks

NUM_SLOTS: Final = 2  # a rank can be one decision ahead of another, no more: the other must have sent its own before
WORD_BYTES: Final = 8  # bytes, which a processor writes at once: nobody reads one half
FLAG_BITS: Final = 3
# Between two looks at what others have written; and after how long to look whether they live.
POLL_INTERVAL_S, LIVENESS_CHECK_INTERVAL_S = 5e-5, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """stop: save and leave; save: take a checkpoint and go on; written: the checkpoint that was being written is not
    written on any more, be it committed or failed."""

    stop: bool = False
    save: bool = False
    written: bool = False


class VoteExchange(Protocol):
    """How the ranks' wishes come to each other. All ranks call both, in turns."""

    def send(self, wish: Vote) -> None:
        """Send this rank's off, and do not wait."""

    def read(self) -> Vote:
        """What all ranks' last ones come to; waits for those that are late."""


class StopVote:
    """Wishes are sent off before a step and read after it, so that the exchange costs the step no time.

    Any rank's wish counts. Alone, a rank decides at once.
    """

    def __init__(self, exchange: VoteExchange | None, wishes: Callable[[], Vote]) -> None:
        """wishes: what this rank alone would do now. exchange: None for a rank alone."""
        self._exchange, self._wishes = exchange, wishes
        self._sent = False

    def propose(self) -> None:
        """Send this rank's wishes off. All ranks call it, then `result`, once per step."""
        if self._exchange is not None:
            self._exchange.send(self._wishes())
            self._sent = True

    def result(self) -> Vote:
        """What all ranks' last proposals came to; what this rank wishes now where there is one."""
        if self._exchange is None:
            return self._wishes()
        if not self._sent:
            return Vote()
        self._sent = False
        return self._exchange.read()


def open_vote_exchange(group: dist.ProcessGroup | None, host: HostRanks) -> VoteExchange | None:
    """The cheapest that this world has: memory, where all ranks share one machine's. To be called by all ranks."""
    if group is None:
        return None
    if len(set(host.all_gather(host.node))) == 1:
        area = host.area(NUM_SLOTS * WORD_BYTES * host.world_size)
        processes = host.all_gather(os.getpid())
        if area.memory is not None:
            return SharedMemoryVoteExchange(area.memory, host.rank, processes)
    return AllReduceVoteExchange(group)


class AllReduceVoteExchange:
    """Over the network, in the background."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._sent: tuple[dist.Work, Tensor] | None = None

    def send(self, wish: Vote) -> None:
        """See `VoteExchange`."""
        flags = torch.tensor([wish.stop, wish.save, wish.written], dtype=torch.int32)
        work = dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None  # every member of the group gets one
        self._sent = (work, flags)

    def read(self) -> Vote:
        """See `VoteExchange`."""
        assert self._sent is not None
        work, flags = self._sent
        work.wait()
        stop, save, written = flags.tolist()
        return Vote(stop=bool(stop), save=bool(save), written=bool(written))


class SharedMemoryVoteExchange:
    """Among ranks of one machine: each writes a word where the others read it.

    A message, however short, wakes several threads of each process: 0.7 ms of a processor in each step, on two cores
    whose two ranks have a use for both.
    """

    def __init__(self, memory: Tensor, rank: int, processes: Sequence[int]) -> None:
        """memory: uint8 [NUM_SLOTS * WORD_BYTES * ranks], zeros. processes: the ranks' numbers, as the system has
        them."""
        self._words = memory.numpy().view(np.int64).reshape(NUM_SLOTS, len(processes))
        self._rank, self._processes, self._number = rank, processes, 0

    def send(self, wish: Vote) -> None:
        """See `VoteExchange`."""
        self._number += 1
        flags = wish.stop | wish.save << 1 | wish.written << 2
        self._words[self._number % NUM_SLOTS, self._rank] = self._number << FLAG_BITS | flags

    def read(self) -> Vote:
        """See `VoteExchange`.

        Raises:
            DistError: one that is waited for has ended.
        """
        words, least = self._words[self._number % NUM_SLOTS], self._number << FLAG_BITS
        since = time.monotonic()
        while words.min() < least:
            time.sleep(POLL_INTERVAL_S)
            if time.monotonic() - since > LIVENESS_CHECK_INTERVAL_S:
                self._refuse_dead(np.flatnonzero(words < least).tolist())
                since = time.monotonic()
        found = int(np.bitwise_or.reduce(words))
        return Vote(stop=bool(found & 1), save=bool(found & 2), written=bool(found & 4))

    def _refuse_dead(self, late: Sequence[int]) -> None:
        for rank in late:
            if (
                not _is_process_alive(self._processes[rank])
                and self._words[self._number % NUM_SLOTS, rank] < self._number << FLAG_BITS
            ):
                raise dist.DistError(f"rank {rank} has ended")


def _is_process_alive(process: int) -> bool:
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):  # too many open files, or a system without: the parent sees to it
        return True
    try:
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        return not ended.poll(0)
    finally:
        os.close(handle)
