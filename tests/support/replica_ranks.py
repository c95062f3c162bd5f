"""One rank of several that compare their replicas: `wrong` lists the ranks on which one bit has flipped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ranks
import torch
from torch import distributed as dist
from torch import nn

from entrypoint import Failure
from train.distributed import replica_check
from train.distributed.runtime import Runtime


def runtime(rank: int, world: int) -> Any:
    """What `compare` needs of a rank."""
    place = SimpleNamespace(rank=rank, world_size=world)
    ready = SimpleNamespace(world=place, cpu_group=dist.group.WORLD, device=torch.device("cpu"))
    ready.all_gather = lambda value: Runtime.all_gather(ready, value)
    ready.barrier = lambda: Runtime.barrier(ready)
    return ready


def run(folder: Path, rank: int, world: int, wrong: str) -> None:
    """Train one step, flip, compare, and write what came out; who is wrong leaves at once, as a worker does."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.ones(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    net[1].running_mean.fill_(rank)
    if rank in json.loads(wrong):
        next(net.parameters()).data.view(torch.int32)[0, 0, 0, 0] ^= 1
    message = None
    try:
        replica_check.check_replicas(runtime(rank, world), net, optimizer, 7)
    except Failure as failure:
        message = failure.as_json()
    (folder / f"{rank}.json").write_text(json.dumps(message))
    if message:
        os._exit(0)


if __name__ == "__main__":
    ranks.main(run)
