"""Run by each rank of `entrypoint run`: seconds per step of both modes by turns, on one machine, in one process.

mode_steps.py FILE TURNS: rank 0 writes {network: {mode: {"wall": [...], "cpu": [...]}}}, cpu over all ranks.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from jobs import built
from runs import TEN_STEPS

from entrypoint import Handover, World, world_from_environ

MODES = ("fast", "bitwise")
WARM = 2  # steps that allocate, and are not counted
# 8 micro batches of 16 images.
SETTINGS = (
    *("data.image_size=16", "data.samples=1600", "data.val_fraction=0", "train.max_steps=10"),
    *("train.global_batch_size=128", "train.micro_batch_size=16"),
)
NETS = {"small_cnn": ("model.args.width=16",), "small_cnn, width 48": ("model.args.width=48",)}


def main(file: Path, turns: int) -> None:
    """Measure everything."""
    world, handover = world_from_environ(os.environ), Handover.from_environ(os.environ)
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(TEN_STEPS)
        for turn in range(turns):
            for number, net in enumerate(NETS):
                for mode in MODES:
                    launch_id = f"{handover.launch_id}-{turn}-{number}-{mode}"
                    os.environ.update(replace(handover, launch_id=launch_id).to_environ())
                    kept = found.setdefault(net, {}).setdefault(mode, {"wall": [], "cpu": []})
                    measure(Path(folder), config, world, [*SETTINGS, *NETS[net], f"train.reproducible={mode}"], kept)
    if world.rank == 0:
        file.write_text(json.dumps(found))


def measure(folder: Path, config: Path, world: World, settings: list[str], kept: dict[str, list[float]]) -> None:
    """The seconds of each step of one job."""
    with built(folder, *settings, config=config, world=world, environ=os.environ) as trainer:
        trainer.begin()
        stream = trainer.loader.train(trainer.sampler.micro_batches(0))
        for at in range(trainer.steps.total):
            wall, cpu = time.monotonic(), time.process_time()
            trainer.train_step(stream)
            cpus = trainer.runtime.all_gather(time.process_time() - cpu)
            if at >= WARM:
                kept["wall"].append(time.monotonic() - wall)
                kept["cpu"].append(sum(cpus))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
