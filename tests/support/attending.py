"""Ranks that sign in, one after the other, at a store in memory."""

from __future__ import annotations

from torch import distributed as dist

from entrypoint import World
from train.distributed import rendezvous


def signed(*ranks: tuple[World, str]) -> dist.Store:
    """The store after each of them has come, with its GPU."""
    store = dist.HashStore()
    for world, gpu in ranks:
        rendezvous.register_rank(store, world, gpu)
    return store
