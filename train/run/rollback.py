"""From a loss that jumped back to the last committed checkpoint, in place and once in a run: train.spike rollback."""

from __future__ import annotations

from entrypoint import ExitCode, Failure
from train.checkpoint import format, store
from train.checkpoint.format import Snapshot
from train.logging.metrics import MetricsLogger
from train.logging.progress import Progress, pluralize
from train.run import state
from train.run.job import Job
from train.run.spike import Jump


def back(todo: Job, jump: Jump) -> None:
    """Give every rank the state of the last checkpoint, which remembers from now on that it was gone back to.

    All ranks call it. The next step is the one after that checkpoint, with the samples that belong to it.

    Raises:
        Failure: DIVERGED where there is no checkpoint; IO and others where it cannot be written.
    """
    todo.pulse.beat("save")
    todo.pulse.beat("save", step=todo.state.step)  # reading one takes about as long
    step = todo.runtime.shared(lambda: _last(todo, jump))
    tensors, facts = format.load_checkpoint(format.checkpoint_at_step(todo.checkpoints, step))
    state.restore(todo.state, tensors, facts["state"])
    todo.runtime.barrier()  # rank 0 replaces the folder: not under a rank that still reads it
    todo.state.rollbacks += 1
    told = facts | {"state": facts["state"] | {"rollbacks": todo.state.rollbacks}}
    todo.runtime.shared(lambda: _write(todo, format.take_snapshot(step, tensors, told)))


def tell(todo: Job, jump: Jump, metrics: MetricsLogger, progress: Progress) -> None:
    """Say where the run goes on. `metrics` was opened anew, without the steps that are left out."""
    lost = jump.step - todo.state.step
    metrics.write("rollback", step=todo.state.step, seen_at=jump.step, loss=jump.loss, usual=jump.usual)
    where = todo.checkpoints / store.step_folder_name(todo.state.step)
    progress.back(todo.state.step)
    progress.say(
        f"warning: {jump}; back by {pluralize(lost, 'step')} to {where}, once in a run (train.spike: rollback)"
    )


def _write(todo: Job, taken: Snapshot) -> None:
    """On rank 0 only, and not into a folder that is another start's by now."""
    if todo.claim:
        todo.claim.refuse_lost()
    format.write_snapshot(todo.checkpoints, taken)


def _last(todo: Job, jump: Jump) -> int:
    """On rank 0 only."""
    found = format.newest_checkpoint(todo.checkpoints)
    if found is None:
        raise Failure(
            f"{jump}, and there is no checkpoint to go back to",
            fix="lower optim.lr, lengthen optim.warmup_epochs, or save earlier: checkpoint.every_steps",
            code=ExitCode.DIVERGED,
        )
    return found.step
