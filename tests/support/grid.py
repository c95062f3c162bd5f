"""Many short trainings, one after the other, as one rank of a real group: `entrypoint run -- python grid.py FOLDER`.

FOLDER/grid.json maps names to settings; FOLDER/NAME/WORLD_SIZE gets the run. Starting python and torch for each of
them would take ten times as long.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from jobs import built
from runs import TEN_STEPS

from entrypoint import Handover, World, world_from_environ


def main(place: Path) -> None:
    """Train everything in the table."""
    world, handover = world_from_environ(os.environ), Handover.from_environ(os.environ)
    config = place / f"ten-{world.rank}-of-{world.world_size}.yaml"
    config.write_text(TEN_STEPS)
    for name, settings in json.loads((place / "grid.json").read_text()).items():
        os.environ.update(replace(handover, launch_id=f"{handover.launch_id}-{name}").to_environ())
        train(place / name / str(world.world_size), config, settings, world)


def train(folder: Path, config: Path, settings: list[str], world: World) -> None:
    """One of them."""
    folder.mkdir(parents=True, exist_ok=True)
    with built(folder, *settings, config=config, world=world, environ=os.environ) as trainer:
        trainer.fit()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
