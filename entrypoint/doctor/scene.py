"""What a check is told: the environment, what was asked for, and what would be started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from entrypoint.cgroups import Place
from entrypoint.options import Options
from entrypoint.plan import Plan

_NOTHING_ASKED = Options()
OUTPUT = Path("runs")  # what `train` writes to where nothing else is said


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The place that is looked at.

    plan: None where a start would be refused. root: where /proc, /sys and /dev are looked for (tests have their own).
    output: the folder that runs are kept in. workers: data workers of each rank, where their number is known.
    """

    environ: Mapping[str, str]
    options: Options = _NOTHING_ASKED
    plan: Plan | None = None
    root: Place = "/"
    output: Path = OUTPUT
    workers: int | None = None

    @property
    def ranks_here(self) -> int:
        """Ranks that share this machine, as far as that is known."""
        return self.plan.world.local_world_size if self.plan else self.options.procs_per_node or 1

    @property
    def ranks_of_task(self) -> int:
        """Ranks that share what this task may use: a task for each rank has its own processors."""
        return self.plan.spawn if self.plan else self.ranks_here

    @property
    def on_cpu(self) -> bool:
        """Whether ranks compute on processors; where nobody knows, they do not."""
        return self.plan is not None and self.plan.device == "cpu"

    @property
    def several_nodes(self) -> bool:
        """Whether ranks of other machines have to be reached."""
        return self.plan is not None and self.plan.world.num_nodes > 1
