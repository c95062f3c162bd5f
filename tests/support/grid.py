"""Many short trainings, one after the other, as one rank of a real group: `entrypoint run -- python grid.py FOLDER`.

FOLDER/grid.json maps names to settings; FOLDER/NAME/WORLD_SIZE gets the run. Starting python and torch for each of
them would take ten times as long.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jobs import ALONE, built
from processes import python, unmeasured
from runs import TEN_STEPS, Run

from entrypoint import Handover, World, world_from_environ


def train_table(folder: Path, ranks: int, table: Mapping[str, Sequence[str]]) -> None:
    """Train FOLDER/NAME/RANKS for each name and its settings; settings of later words replace those before them."""
    (folder / "grid.json").write_text(json.dumps(table))
    launch = ["-m", "entrypoint", "run", "--device", "cpu", "--procs-per-node", str(ranks), "--"]
    ended = python(*launch, sys.executable, __file__, str(folder), cwd=folder, env=unmeasured(), timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:] + ended.stdout[-2000:]


def train_ten_steps(folder: Path, settings: Sequence[str] = (), world: World = ALONE) -> Run:
    """Train one run in this process, as one rank of `world`; settings: what differs from TEN_STEPS."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder.parent / f"ten-{world.rank}-of-{world.world_size}.yaml"
    config.write_text(TEN_STEPS)
    with built(folder, *settings, config=config, world=world, environ=os.environ) as trainer:
        trainer.fit()
    return Run(folder=folder)


def main(folder: Path) -> None:
    """Train everything in the table, as one rank."""
    world, handover = world_from_environ(os.environ), Handover.from_environ(os.environ)
    for name, settings in json.loads((folder / "grid.json").read_text()).items():
        os.environ.update(replace(handover, launch_id=f"{handover.launch_id}-{name}").to_environ())
        train_ten_steps(folder / name / str(world.world_size), settings, world)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
