"""From the run's state to a committed checkpoint, agreed by all ranks, written by one, while training goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from entrypoint import Failure
from train import files
from train.checkpoint import format, store
from train.logging.metrics import MetricsLogger
from train.run import resuming, state, stop
from train.run.health import diverged, refuse_bad_statistics, sound
from train.run.job import Job
from train.run.now import Now, Saved, Saving
from train.run.state import Window

BEST: Final = "best.json"
LATER: Final = ("optimizer", "ema")  # groups that nothing but a step's update changes: `Now.await_copy`


def save(todo: Job, now: Now, metrics: MetricsLogger) -> None:
    """Take a snapshot of what is not kept yet, and let it be written while training goes on: see `settle`.

    Never one with numbers that are not finite. One at a time: the one before is waited for.
    """
    sound(todo, now)
    if todo.state.step == 0 or not now.unsaved(todo.state):
        return
    settle(todo, now, metrics)
    refuse_bad_statistics(todo, now)
    todo.pulse.beat("save", step=todo.state.step)
    with now.stopwatch.paused():
        began = now.saved_at = now.clock()
        todo.state.seconds = now.stopwatch.seconds
        todo.state.window = Window(sums=todo.runtime.gathered(now.tally.numbers()), since=now.logged_at)
        if todo.runtime.is_main:
            now.writer.begin(_commit(todo, now, began))
        stalled = now.clock() - began
    now.saving = Saving(step=todo.state.step, evaluated=todo.state.evaluated, stalled=stalled)


def settle(todo: Job, now: Now, metrics: MetricsLogger) -> None:
    """Wait until what is being written is committed, if anything is. All ranks learn of it, or of what went wrong.

    Raises:
        Failure: as `format.write_snapshot`; DIVERGED for weights that are not finite.
    """
    if now.saving is None:
        return
    saving, now.saving = now.saving, None
    todo.pulse.beat("save", step=todo.state.step)
    with now.stopwatch.paused():
        saved = todo.runtime.shared(lambda: now.writer.result(lambda: stop.note_wanted(todo, now)))
    if saved is None:
        raise diverged(todo, now, "weights that are not finite")
    now.saved, now.evaluated = saved.path, saving.evaluated
    now.times.add("save", saved.seconds)
    stood = saving.stalled + saving.waited
    metrics.write("checkpoint", step=saving.step, seconds=saved.seconds, stalled_seconds=stood)


def written(now: Now) -> bool:
    """Whether a checkpoint was being written and is not any more, for `Decision.written`. On rank 0."""
    return now.saving is not None and now.writer.over


@contextmanager
def finished(todo: Job, now: Now) -> Iterator[None]:
    """However training ends in this block, what is being written is finished first, and named as what is kept."""
    try:
        with now.writer:
            try:
                yield
            finally:
                todo.pulse.beat("save", step=todo.state.step)  # the writer may need longer than a step may take
    except Failure as failure:
        with suppress(Failure, RuntimeError):  # it failed too, or there was none
            saved = now.writer.result()
            failure.kept = str(saved.path) if saved else failure.kept
        raise


def tell_best(todo: Job) -> None:
    """Let best.json say what the state does. On rank 0 only.

    A kill may have come between the checkpoint and it, or the run went back to before there was a best.
    """
    best = _best(todo)
    if best is None:
        files.remove(todo.folder / BEST)
    else:
        files.write_json(todo.folder / BEST, best)


def _best(todo: Job) -> dict[str, Any] | None:
    step, best = todo.state.best_step, todo.state.best
    if step is None or best is None:
        return None
    return {"step": step, "checkpoint": str(place(todo, step).relative_to(todo.folder)), **best.to_json()}


def place(todo: Job, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return todo.checkpoints / store.step_folder_name(step)


def _commit(todo: Job, now: Now, began: float) -> Callable[[], Saved | None]:
    """A copy of all there is now, as an action for the writer. On rank 0 only.

    best.json names a checkpoint once it is there, and older ones go once no file names them. None: the weights are not
    finite, and nothing was written.
    """
    step, best_step, keep = todo.state.step, todo.state.best_step, todo.config.checkpoint.keep
    facts = resuming.facts(todo.config, todo.runtime, todo.data, todo.state)
    taking = format.begin_snapshot(step, state.tensors(todo.state), facts, now.memory, later=LATER)
    now.copied, best = taking.copied, _best(todo)

    def commit() -> Saved | None:
        taken = taking.finish()
        todo.faults.strike("save", step)
        if not format.all_finite(taken.files[f"model{format.TENSORS_SUFFIX}"]):
            return None
        if todo.claim:
            todo.claim.refuse_lost()
        path = format.write_snapshot(todo.checkpoints, taken)
        if best is not None and best_step == step:
            files.write_json(todo.folder / BEST, best)
        store.prune_checkpoints(todo.checkpoints, keep=keep, best=best_step, trusted=step)
        return Saved(path=path, seconds=now.clock() - began)

    return commit
