"""What the loop keeps in mind from one step to the next, beside what checkpoints hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from train.checkpoint import store
from train.checkpoint.format import SnapshotBuffers
from train.checkpoint.writer import BackgroundWriter
from train.logging.progress import EpochStats, EpochStatsCounter
from train.logging.running_mean import RunningMean, TrainingStopwatch
from train.run import compiling, deadline, resuming
from train.run.deadline import Times
from train.run.job import Job
from train.run.signals import Watch
from train.run.spike import Readings
from train.run.state import State


@dataclass(slots=True, kw_only=True)
class Saving:
    """A checkpoint that is being written: of which step, knowing which evaluation.

    Seconds for which training stood for it: at once, and before an update, for what the writer had not copied yet.
    """

    step: int
    evaluated: int
    stalled: float
    waited: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One that was: where, and in how many seconds."""

    path: Path
    seconds: float


@dataclass(slots=True, kw_only=True)
class Now:
    """A resumed run begins with a fresh one.

    Times are the clock's seconds, `logged_at` and `stepped_at` the stopwatch's. `saved` is the newest committed
    checkpoint, `evaluated` the step of the last evaluation that it knows of, `saving` the one that is being written
    (by `writer`, on rank 0, from `memory`): `copied` is set once nothing more is read of what a step changes. `lap` is
    the epoch under way, `epoch` what came of one that is over and not told yet. `skipped`: how many steps in a row
    fp16's scaler has left out. `graphs` were compiled so far.
    `late`: rank 0 has seen that the deadline leaves time for nothing but a save. `noted`: a request to stop is.
    """

    tally: RunningMean
    watch: Watch
    stopwatch: TrainingStopwatch
    clock: Callable[[], float]
    saved_at: float
    logged_at: float
    stepped_at: float
    saved: Path | None
    evaluated: int
    times: Times
    writer: BackgroundWriter[Saved | None]
    memory: SnapshotBuffers
    readings: Readings
    lap: EpochStatsCounter
    epoch: EpochStats | None = None
    saving: Saving | None = None
    copied: threading.Event | None = None
    late: bool = False
    noted: bool = False
    skipped: int = 0
    graphs: int = 0

    def unsaved(self, state: State) -> bool:
        """Whether this step, or what was measured at it, is in no checkpoint yet, nor in one that is being written."""
        if self.saving is not None:
            return (self.saving.step, self.saving.evaluated) != (state.step, state.evaluated)
        here = self.saved is not None and self.saved.name == store.step_folder_name(state.step)
        return state.step > 0 and not (here and self.evaluated == state.evaluated)

    def await_copy(self) -> None:
        """Before what only a step's update changes is changed, the writer must have its copy of it."""
        if self.copied is None:
            return
        began = self.clock()
        with self.stopwatch.paused():
            self.copied.wait()
        self.copied = None
        if self.saving is not None:
            self.saving.waited += self.clock() - began

    def stepped(self) -> None:
        """One more step is done: how long did it take?"""
        before, self.stepped_at = self.stepped_at, self.stopwatch.seconds
        self.times.add("step", self.stepped_at - before)


def begin(todo: Job, watch: Watch, clock: Callable[[], float]) -> Now:
    """Start where the job's state stands."""
    stopwatch = TrainingStopwatch(todo.state.seconds, clock=clock)
    size = resuming.size(todo.config, todo.state.network, todo.optimizer)
    at, world, window = todo.state.step, todo.runtime.world, todo.state.window
    sums = window.of(world.rank, world.world_size) if window else (0.0, 0.0, 0.0)
    return Now(
        tally=RunningMean(todo.runtime.device, sums),
        watch=watch,
        stopwatch=stopwatch,
        clock=clock,
        saved_at=clock(),
        logged_at=window.since if window else stopwatch.seconds,
        stepped_at=stopwatch.seconds,
        saved=todo.checkpoints / store.step_folder_name(at) if at else None,
        evaluated=todo.state.evaluated,
        times=Times({"save": deadline.first_save(size)}),
        writer=BackgroundWriter(),
        memory=SnapshotBuffers(),
        readings=Readings(len(todo.classes)),
        lap=_lap(todo, stopwatch.seconds),
        graphs=compiling.counts()["graphs"] if todo.compiled else 0,
    )


def _lap(todo: Job, seconds: float) -> EpochStatsCounter:
    """The epoch that the state stands in, from here on."""
    columns = list(zip(*todo.state.window.sums, strict=True)) if todo.state.window else [(0.0,)] * 3
    loss, _, samples = map(sum, columns)
    return EpochStatsCounter(todo.state.step, seconds, batch=todo.batches.global_, loss=loss, samples=samples)
