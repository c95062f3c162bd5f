"""One flipped bit on one rank is seen by all, and blamed on the one that has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from torch import Tensor, nn

from train.distributed import replica_check
from train.distributed.replica_check import Replica, hash_tensors

SCRIPT = str(Path(__file__).parents[2] / "support" / "replica_ranks.py")
KINDS = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]


def compared(folder: Path, count: int, *wrong: int) -> list[dict[str, Any] | None]:
    """What each rank says."""
    ranks.together(SCRIPT, count, folder / "ranks", json.dumps(wrong))
    return [json.loads((folder / "ranks" / f"{rank}.json").read_text()) for rank in range(count)]


def codes(reports: list[dict[str, Any] | None]) -> list[int | None]:
    return [report["code"] if report else None for report in reports]


def test_equal_replicas_with_batch_statistics_of_their_own_go_on(tmp_path: Path) -> None:
    assert compared(tmp_path, 2) == [None, None]


def test_of_three_the_one_that_differs_is_named_and_only_it_blames_its_node(tmp_path: Path) -> None:
    reports = compared(tmp_path, 3, 1)
    assert codes(reports) == [69, 78, 69]
    assert all(report and report["found"].startswith("rank 1 (") and "step 7" in report["what"] for report in reports)


def test_of_two_nobody_can_tell_and_both_are_named(tmp_path: Path) -> None:
    reports = compared(tmp_path, 2, 1)
    assert codes(reports) == [78, 78]
    assert reports[0]
    assert "rank 0" in reports[0]["found"]
    assert "no majority can tell" in reports[0]["found"]


@pytest.mark.parametrize(
    ("digests", "suspects"),
    [
        ([5], []),
        ([5, 5, 5], []),
        ([5, 6, 5], [1]),
        ([5, 6], [0, 1]),
        ([5, 5, 6, 6], [0, 1, 2, 3]),
        ([7, 5, 6], [0, 1, 2]),
    ],
)
def test_a_majority_is_more_than_half(digests: list[int], suspects: list[int]) -> None:
    given = [Replica(rank=rank, host="h", gpu="", digest=digest) for rank, digest in enumerate(digests)]
    assert [replica.rank for replica in replica_check.find_suspects(given)] == suspects


@pytest.mark.parametrize(("gpu", "command"), [("", "journalctl -k"), ("GPU 0, UUID x", "nvidia-smi")])
def test_the_memory_that_is_to_be_tested_is_that_of_the_device(gpu: str, command: str) -> None:
    two = [Replica(rank=rank, host="h", gpu=gpu, digest=rank) for rank in range(2)]
    assert command in replica_check.divergence_failure(two, two, 3).fix


def test_ranks_of_different_kinds_are_told_that_they_round_differently() -> None:
    mixed = [
        Replica(rank=rank, host="h", gpu="", processor=name, digest=rank) for rank, name in enumerate(("V100", "H100"))
    ]
    assert "round differently: H100, V100" in replica_check.divergence_failure(mixed, mixed, 3).fix


@pytest.mark.parametrize("every", [61, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_any_one_bit_changes_the_digest(kind: torch.dtype, every: int) -> None:
    values = torch.arange(40).to(kind)
    bits, before = values.view(torch.uint8), hash_tensors([values]).item()
    for number in range(0, len(bits) * 8, every):
        bits[number // 8] ^= 1 << number % 8
        assert hash_tensors([values]).item() != before
        bits[number // 8] ^= 1 << number % 8
    assert hash_tensors([values]).item() == before


ALIKE: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "channels-last": lambda x: [x.to(memory_format=torch.channels_last)],
    "flat": lambda x: [x.reshape(-1)],
}


@pytest.mark.parametrize("laid", ALIKE.values(), ids=ALIKE)
def test_layout_does_not_count(laid: Callable[[Tensor], list[Tensor]]) -> None:
    values = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    assert hash_tensors(laid(values)) == hash_tensors([values])


def test_pieces_do_not_stand_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_check, "CHUNK_NUMEL", 8)
    values = torch.arange(20.0)
    swapped = torch.cat([values[8:16], values[:8], values[16:]])
    assert hash_tensors([values]) == hash_tensors([values.clone()])
    assert len({hash_tensors(given).item() for given in ([values], [swapped], [values[:8], values[8:]])}) == 2


def test_numbers_that_change_places_change_the_digest() -> None:
    assert hash_tensors([torch.tensor([1.0, 2.0])]) != hash_tensors([torch.tensor([2.0, 1.0])])


def test_the_optimizers_moments_count() -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert len(replica_check.optimizer_tensors(optimizer)) == 6
