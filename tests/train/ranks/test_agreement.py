"""One decision for all ranks, at the same step."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch import distributed as dist

from train.ranks.agreement import Agreement, Decision

QUIET, STOP, SAVE = Decision(), Decision(stop=True), Decision(save=True)


def decide(*wishes: Decision) -> list[Decision]:
    """What ranks come to, each a thread with a gloo group of its own."""
    store = dist.HashStore()

    def one(rank: int) -> Decision:
        group = dist.ProcessGroupGloo(store, rank, len(wishes), timedelta(seconds=20))
        agreement = Agreement(_Direct(group), lambda: wishes[rank])  # type: ignore[arg-type]
        agreement.propose()
        return agreement.decided()

    with ThreadPoolExecutor(len(wishes)) as pool:
        return list(pool.map(one, range(len(wishes))))


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

    monkeypatch.setattr("train.ranks.agreement.dist.all_reduce", all_reduce)


def test_a_wish_of_any_rank_counts_for_all() -> None:
    assert decide(QUIET, STOP, QUIET) == [STOP, STOP, STOP]


def test_different_wishes_add_up() -> None:
    assert decide(STOP, SAVE) == [Decision(stop=True, save=True)] * 2


def test_all_learn_which_step_has_been_written() -> None:
    assert decide(QUIET, Decision(written=3_000_000_000)) == [Decision(written=3_000_000_000)] * 2


def test_nobodys_wish_is_no_decision() -> None:
    assert decide(QUIET, QUIET) == [QUIET, QUIET]


def test_a_rank_alone_decides_at_once() -> None:
    wishes = iter([STOP])
    agreement = Agreement(None, lambda: next(wishes))
    agreement.propose()
    assert agreement.decided() == STOP


def test_without_a_proposal_nothing_is_decided() -> None:
    assert Agreement(_Direct(None), lambda: STOP).decided() == QUIET  # type: ignore[arg-type]
