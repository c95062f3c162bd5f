"""What a rank needs to write its exit file at any time: its place in the world, the run folder, the last step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from entrypoint import Heartbeat, World
from train.fault_injection import FaultInjector
from train.run.lock import RunLock
from train.run.stop import StopSignals

if TYPE_CHECKING:
    from train.logging.trackers import Trackers
    from train.trainer import Trainer


@dataclass(slots=True, kw_only=True)
class RankContext:
    """One rank of one start. It exists before torch is loaded; `trainer` is set once there is one.

    lock: of the run's folder, on rank 0. previous_stop: a note about the start before this one. nccl_log: the file to
    which NCCL writes its warnings. trackers: on rank 0, once training begins.
    """

    world: World
    folder: Path
    faults: FaultInjector = field(default_factory=FaultInjector)
    lock: RunLock | None = None
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    signals: StopSignals = field(default_factory=StopSignals)
    previous_stop: str | None = None
    nccl_log: Path | None = None
    trainer: Trainer | None = None
    trackers: Trackers | None = None

    @property
    def step(self) -> int | None:
        """The last finished step; None before there is a trainer."""
        return self.trainer.state.step if self.trainer else None

    def end_trackers(self, exit_code: int) -> None:
        """Tell the trackers how this start ended. If another start has locked the folder by now, it goes on in their
        runs, and they are told nothing."""
        if self.trackers is not None:
            is_lock_lost = self.lock is not None and self.lock.is_lost()
            self.trackers.end(None if is_lock_lost else exit_code)
