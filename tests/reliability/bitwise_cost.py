"""What train.reproducible bitwise costs: images per second and CPU time of both modes, by turns on the same machine.

bitwise_cost.py     TURNS=3 of each; one thread for each rank in both modes
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import mode_steps
import trials
from processes import python
from trials import Trial

GLOBAL = 128


def measured(ranks: int, turns: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Seconds per step by network and mode, as `mode_steps` tells."""
    with tempfile.TemporaryDirectory(prefix="cost-") as place:
        file = Path(place) / "found.json"
        launch = ["-m", "entrypoint", "run", "--device", "cpu", "--procs-per-node", str(ranks), "--", sys.executable]
        environ = {"OMP_NUM_THREADS": "1"}
        done = python(*launch, mode_steps.__file__, str(file), str(turns), environ=environ, cwd=place, timeout=1800)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        return dict(json.loads(file.read_text()))


def compared(turns: int) -> Iterator[Trial]:
    """One line for each network and number of ranks; no figure makes it fail. Medians: others may use the machine."""
    for ranks in (1, 2):
        for net, modes in measured(ranks, turns).items():
            wall, cpu = (
                {mode: statistics.median(modes[mode][clock]) for mode in mode_steps.MODES} for clock in ("wall", "cpu")
            )
            figures = {
                "ranks": ranks,
                "images_per_s": {mode: round(GLOBAL / seconds) for mode, seconds in wall.items()},
                "images_per_s_ratio": round(wall["fast"] / wall["bitwise"], 3),
                "cpu_time_ratio": round(cpu["bitwise"] / cpu["fast"], 3),
            }
            yield Trial(
                row=net, injector="none", process="step", expected=None, observed=None, ok=True, figures=figures
            )


if __name__ == "__main__":
    sys.exit(trials.run("bitwise_cost", compared(int(os.environ.get("TURNS") or 3)), threads_per_rank=1))
