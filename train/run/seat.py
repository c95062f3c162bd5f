"""Who a rank is, and how far it has come: what its ending needs, whenever it comes. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from entrypoint import Pulse, World
from train.faults import Faults
from train.record.claim import Claim

if TYPE_CHECKING:
    from train.run.job import Job


@dataclass(slots=True, kw_only=True)
class Seat:
    """One rank of one start. `job` is set as soon as there is something to train.

    claim: on rank 0, the lease of the run's folder that its parent holds. before: what is to be said of the last start.
    warnings: the file to which NCCL writes its own.
    """

    world: World
    folder: Path
    faults: Faults = field(default_factory=Faults)
    claim: Claim | None = None
    pulse: Pulse = field(default_factory=Pulse)
    before: str | None = None
    warnings: Path | None = None
    job: Job | None = None

    @property
    def step(self) -> int | None:
        """The last finished step; None while there is nothing to train yet."""
        return self.job.state.step if self.job else None
