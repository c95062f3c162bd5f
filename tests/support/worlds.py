"""Places in the world for tests: one rank alone, and both of two on one machine."""

from __future__ import annotations

from dataclasses import replace

from entrypoint import World
from entrypoint.world import world_to_environ

ALONE = World(
    rank=0,
    local_rank=0,
    world_size=1,
    local_world_size=1,
    node_rank=0,
    num_nodes=1,
    master_addr="127.0.0.1",
    master_port=29999,
)
FIRST = replace(ALONE, world_size=2, local_world_size=2, master_port=1)
SECOND = replace(FIRST, rank=1, local_rank=1)
# Rank 0 of two on two hosts.
APART = replace(FIRST, local_world_size=1, num_nodes=2)

# What the parent sets for a rank that is alone.
CONTRACT = world_to_environ(ALONE)
