"""What every micro batch gives, added up in one fixed binary tree: the same bits on any number of ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributed as dist


class Tree:
    """The leaves are the micro batches of a step in their order, each a list of tensors of always the same shapes.

    A rank has so many neighbours of a power of two, and so do the ranks: the lower part of the tree lies inside a
    rank, where one sum for each level waits for its neighbour, the upper part across ranks, where both of a pair add
    what both had. a + b is b + a, bit by bit, so that all ranks hold the same sum.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._partners = [rank ^ (1 << level) for level in range(world_size.bit_length() - 1)]
        self._waiting: list[tuple[int, list[Tensor]]] = []

    def add(self, leaf: list[Tensor]) -> None:
        """Take the next leaf in. Its tensors are the tree's from now on."""
        size = 1
        while self._waiting and self._waiting[-1][0] == size:
            _, left = self._waiting.pop()
            torch._foreach_add_(left, leaf)
            leaf, size = left, 2 * size
        self._waiting.append((size, leaf))

    def total(self) -> list[Tensor]:
        """The sum of all leaves of all ranks; the tree is empty then. All ranks call it together."""
        ((_, sums),) = self._waiting
        self._waiting = []
        return self._over_ranks(sums) if self._partners else sums

    def _over_ranks(self, sums: list[Tensor]) -> list[Tensor]:
        """In one piece for each type of numbers: many small messages would take longer."""
        kinds = dict.fromkeys(tensor.dtype for tensor in sums)
        flats = [torch.cat([tensor.reshape(-1) for tensor in sums if tensor.dtype == kind]) for kind in kinds]
        for partner in self._partners:
            torch._foreach_add_(flats, exchanged(flats, partner))
        sizes = ([tensor.numel() for tensor in sums if tensor.dtype == kind] for kind in kinds)
        pieces = {kind: iter(torch.split(flat, size)) for kind, flat, size in zip(kinds, flats, sizes, strict=True)}
        return [next(pieces[tensor.dtype]).view(tensor.shape) for tensor in sums]


def exchanged(mine: list[Tensor], partner: int) -> list[Tensor]:
    """What `partner` has in the place of `mine`, which it gets in turn."""
    theirs = [torch.empty_like(tensor) for tensor in mine]
    sends = [dist.P2POp(dist.isend, tensor, partner) for tensor in mine]
    receipts = [dist.P2POp(dist.irecv, tensor, partner) for tensor in theirs]
    for work in dist.batch_isend_irecv([*sends, *receipts]):
        work.wait()
    return theirs
