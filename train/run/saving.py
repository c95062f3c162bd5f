"""From the run's state to a committed checkpoint, agreed by all ranks and written by one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from train.checkpoint import checkpoint, shelf
from train.files import durable
from train.record.metrics import Metrics
from train.run import resuming, state
from train.run.health import refuse_bad_weights, sound
from train.run.job import Job
from train.run.now import Now


def save(todo: Job, now: Now, metrics: Metrics) -> None:
    """Commit the state, unless it is committed already. Never one with numbers that are not finite."""
    sound(todo, now)
    if todo.state.step == 0 or _is_committed(todo, now):
        return
    refuse_bad_weights(todo, now)
    with now.stopwatch.paused():
        todo.state.seconds = now.stopwatch.seconds
        began = now.clock()
        now.saved = todo.runtime.shared(lambda: _commit(todo))
        now.saved_at, now.evaluated = now.clock(), todo.state.evaluated
    metrics.write("checkpoint", step=todo.state.step, seconds=now.saved_at - began)


def tell_best(todo: Job) -> None:
    """Let best.json say what the state does: a kill may have come between the checkpoint and it. On rank 0 only."""
    step, best = todo.state.best_step, todo.state.best
    if step is not None and best is not None:
        place = todo.checkpoints.relative_to(todo.folder) / shelf.name(step)
        durable.write_json(todo.folder / "best.json", {"step": step, "checkpoint": str(place), **asdict(best)})


def _is_committed(todo: Job, now: Now) -> bool:
    """This step, and what was measured at it: a resumed run may measure where the earlier start did not."""
    here = now.saved is not None and now.saved.name == shelf.name(todo.state.step)
    return here and now.evaluated == todo.state.evaluated


def _commit(todo: Job) -> Path:
    """On rank 0 only."""
    todo.faults.strike("save", todo.state.step)
    best, keep, tensors = todo.state.best_step, todo.config.checkpoint.keep, state.tensors(todo.state)
    facts = resuming.facts(todo.config, todo.runtime, todo.data, todo.state)
    path = checkpoint.save(todo.checkpoints, step=todo.state.step, tensors=tensors, state=facts, keep=keep, best=best)
    if best == todo.state.step:
        tell_best(todo)
    return path
