"""Run by each rank: look for the largest micro batch, with less memory on the second rank than on the first."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ranks
import torch
from pretended import Pretended
from torch import distributed as dist
from worlds import ALONE

from entrypoint import Heartbeat
from train import batch_size
from train.config import load
from train.config.batches import compute_batch_sizes
from train.config.resolved import resolve
from train.data import registry
from train.distributed.runtime import Runtime


def run(folder: Path, rank: int, world: int, *rooms: str) -> None:
    """Write what this rank came to."""
    memory = Pretended(room=int(rooms[rank]))
    batch_size.get_device_memory = lambda device: memory  # type: ignore[assignment,return-value]
    config = load.load_config(None, ["model.args.width=4", "data.image_size=8", "data.classes=2", "optim.lr=0.1"])
    engine: Any = SimpleNamespace(autocast=nullcontext, scaler=None, gradient_accumulation_steps=1)
    runtime = Runtime(
        world=replace(ALONE, rank=rank, world_size=world),
        device=torch.device("cpu"),
        precision="fp32",
        cores=1,
        accelerator=engine,
        parallel="ddp",
        cpu_group=dist.group.WORLD,
    )
    splits = registry.open_splits(config.data)
    resolved, batches = resolve(config, config, splits.task), compute_batch_sizes(64 * world, "auto", world)
    found, _ = batch_size.find_micro_batch(resolved, splits, runtime, batches, batch_size.NO_CACHE, Heartbeat())
    (folder / f"{rank}.json").write_text(json.dumps([found.micro, found.accumulation]))


if __name__ == "__main__":
    ranks.main(run)
