"""What the loop keeps in mind from one step to the next, beside what checkpoints hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from train.checkpoint import shelf
from train.record.tally import Stopwatch, Tally
from train.run.job import Job
from train.run.signals import Watch


@dataclass(slots=True, kw_only=True)
class Now:
    """A resumed run begins with a fresh one.

    Times are the clock's seconds, `logged_at` the stopwatch's. `saved` is the newest checkpoint, `evaluated` the step
    of the last evaluation that it knows of, `loss` the last mean read, `skipped` how many steps in a row fp16's scaler
    has left out.
    """

    tally: Tally
    watch: Watch
    stopwatch: Stopwatch
    clock: Callable[[], float]
    saved_at: float
    logged_at: float
    saved: Path | None
    evaluated: int
    loss: float | None = None
    skipped: int = 0


def begin(todo: Job, watch: Watch, clock: Callable[[], float]) -> Now:
    """Start where the job's state stands."""
    stopwatch = Stopwatch(todo.state.seconds, clock=clock)
    at = todo.state.step
    return Now(
        tally=Tally(todo.runtime.device),
        watch=watch,
        stopwatch=stopwatch,
        clock=clock,
        saved_at=clock(),
        logged_at=stopwatch.seconds,
        saved=todo.checkpoints / shelf.name(at) if at else None,
        evaluated=todo.state.evaluated,
    )
