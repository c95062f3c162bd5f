"""One binary tree, cut into any power of two of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import tree_ranks
from ranks import together
from safetensors.torch import load_file
from torch import Tensor

from train.parallel.bitwise import ReductionTree


def reference(leaves: list[list[Tensor]]) -> list[Tensor]:
    """The tree as its definition says: halves, each added up alone."""
    if len(leaves) == 1:
        return leaves[0]
    middle = len(leaves) // 2
    return [a + b for a, b in zip(reference(leaves[:middle]), reference(leaves[middle:]), strict=True)]


def expected() -> list[Tensor]:
    return reference([tree_ranks.leaf(number) for number in range(tree_ranks.LEAVES)])


def test_a_rank_alone_adds_up_the_whole_tree() -> None:
    assert all(map(torch.equal, tree_ranks.total(0, 1), expected()))


def test_the_order_of_the_tree_matters() -> None:
    in_a_row = sum(tree_ranks.leaf(number)[0] for number in range(tree_ranks.LEAVES))
    assert not torch.equal(in_a_row, expected()[0])


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_rank_of_several_holds_the_same_bits(ranks: int, tmp_path: Path) -> None:
    together(tree_ranks.__file__, ranks, tmp_path / "ranks")
    for rank in range(ranks):
        found = load_file(tmp_path / "ranks" / f"{rank}.safetensors")
        assert all(torch.equal(found[str(place)], tensor) for place, tensor in enumerate(expected())), rank


def test_a_level_holds_one_sum_only() -> None:
    tree = ReductionTree(0, 1)
    for number in range(7):
        tree.add(tree_ranks.leaf(number))
    assert [size for size, _ in tree._waiting] == [4, 2, 1]
