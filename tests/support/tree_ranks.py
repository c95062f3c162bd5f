"""Run by each rank of several: its leaves of eight go into the tree; what it got is kept."""

from __future__ import annotations

from pathlib import Path

import ranks
import torch
from safetensors.torch import save_file
from torch import Tensor

from train.parallel.bitwise import ReductionTree

LEAVES = 8


def leaf(number: int) -> list[Tensor]:
    """Numbers whose sum depends on the order of adding, of two types and a shape without places."""
    source = torch.Generator().manual_seed(number)
    several = torch.randn(50, 3, generator=source).exp()
    return [several, several.double()[0] * 3, several.sum(), several.t().clone()]


def total(rank: int, world: int) -> list[Tensor]:
    """The tree's sum on this rank."""
    tree, share = ReductionTree(rank, world), LEAVES // world
    for number in range(rank * share, (rank + 1) * share):
        tree.add(leaf(number))
    return tree.total()


def run(folder: Path, rank: int, world: int) -> None:
    """Add up twice: a tree is empty again after its total."""
    first, second = total(rank, world), total(rank, world)
    assert all(map(torch.equal, first, second))
    save_file({str(index): tensor for index, tensor in enumerate(first)}, folder / f"{rank}.safetensors")


if __name__ == "__main__":
    ranks.main(run)
