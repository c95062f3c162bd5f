"""A rank compares what it is given with what it should have been given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed as dist

from entrypoint import ExitCode, Failure
from train.bench.collectives import OPERATIONS, Operation

RANKS = 3


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stand-ins for the collectives, of three ranks, which do right; `spoil` is added to what they give."""
    state = SimpleNamespace(spoil=0.0)

    def all_reduce(numbers: torch.Tensor) -> None:
        numbers.mul_(RANKS).add_(RANKS * (RANKS - 1) / 2 + state.spoil)

    def gather(numbers: torch.Tensor, into: list[torch.Tensor], dst: int) -> None:
        for rank, place in enumerate(into):
            place.copy_(numbers + rank + state.spoil)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "broadcast", lambda numbers, src: numbers.add_(state.spoil))
    monkeypatch.setattr(dist, "gather", gather)
    return state


def made(name: str) -> Operation:
    world = SimpleNamespace(world_size=RANKS, rank=0)
    return OPERATIONS[name](SimpleNamespace(world=world, device=torch.device("cpu")), 200)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OPERATIONS)
def test_right_numbers_pass(name: str, others: Any) -> None:
    made(name).check(name)


@pytest.mark.parametrize("name", OPERATIONS)
def test_wrong_numbers_are_refused(name: str, others: Any) -> None:
    others.spoil = 1.0
    with pytest.raises(Failure, match=f"wrong after a {name}") as caught:
        made(name).check(name)
    assert caught.value.code == ExitCode.NODE
