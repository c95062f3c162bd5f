"""Who a rank is, and how far it has come: what its ending needs, whenever it comes. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from entrypoint import Heartbeat, World
from train.fault_injection import FaultInjector
from train.run.lock import RunLock

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
    faults: FaultInjector = field(default_factory=FaultInjector)
    claim: RunLock | None = None
    pulse: Heartbeat = field(default_factory=Heartbeat)
    before: str | None = None
    warnings: Path | None = None
    job: Job | None = None

    @property
    def step(self) -> int | None:
        """The last finished step; None while there is nothing to train yet."""
        return self.job.state.step if self.job else None
