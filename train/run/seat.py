"""Who a rank is, and how far it has come: what its ending needs, whenever it comes. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from entrypoint import World
from train.faults import Faults

if TYPE_CHECKING:
    from train.run.job import Job


@dataclass(slots=True, kw_only=True)
class Seat:
    """One rank of one start. `job` is set as soon as there is something to train."""

    world: World
    folder: Path
    faults: Faults = field(default_factory=Faults)
    job: Job | None = None

    @property
    def step(self) -> int | None:
        """The last finished step; None while there is nothing to train yet."""
        return self.job.state.step if self.job else None
