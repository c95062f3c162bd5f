"""One optimizer step of one rank: its micro batches of the global batch, and the exchange of their gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from train import keyed
from train.data.loader import Batch
from train.data.sampling import Piece
from train.optim.optimizers import set_rate
from train.record import tally
from train.run import spoil
from train.run.exact import Exact
from train.run.job import Job
from train.run.now import Now

Stream = Iterator[tuple[Piece, Batch]]


def take(todo: Job, now: Now, stream: Stream) -> None:
    """One optimizer step: this rank's micro batches of the global batch, one exchange of gradients."""
    todo.pulse.beat("step", step=todo.state.step)
    todo.faults.strike("step", todo.state.step)
    spoil.parameters(todo.faults, todo.state.step, todo.state.network)
    set_rate(todo.optimizer, todo.schedule(todo.state.step))
    if todo.exact is None:
        _fast(todo, now, stream)
    else:
        _bitwise(todo, now, stream, todo.exact)
    todo.state.step += 1
    todo.pulse.beat("step", step=todo.state.step)
    if todo.state.average is not None:
        todo.state.average.update(todo.state.step)
    if todo.state.scaler is not None:
        now.skipped = now.skipped + 1 if todo.optimizer.step_was_skipped else 0  # type: ignore[attr-defined]


def _fast(todo: Job, now: Now, stream: Stream) -> None:
    """Gradients add up in .grad, and DDP exchanges them during the last backward pass."""
    accelerator = todo.runtime.accelerator
    for _ in range(todo.batches.accumulation):
        batch = _next(todo, stream)
        with accelerator.accumulate(todo.model):
            sums = _gradients(todo, batch)
            if accelerator.sync_gradients:
                _clip(todo)
            todo.optimizer.step()
            todo.optimizer.zero_grad()
        now.tally.take(sums)


def _bitwise(todo: Job, now: Now, stream: Stream, exact: Exact) -> None:
    """All that micro batches give adds up in one tree, whichever rank computed it."""
    exact.open()
    for _ in range(todo.batches.accumulation):
        exact.add(_gradients(todo, _next(todo, stream)))
    total = exact.close()
    _clip(todo)
    todo.optimizer.step()
    todo.optimizer.zero_grad()
    if todo.runtime.is_main:  # every rank has the total: one counts it
        now.tally.take(total)


def _next(todo: Job, stream: Stream) -> Batch:
    """The next micro batch, and torch's generator set for it."""
    todo.pulse.beat("step", "reads data")
    todo.faults.strike("data", todo.state.step)
    piece, batch = next(stream)
    torch.manual_seed(keyed.seed(keyed.DROPOUT, todo.config.run.seed, piece.step, piece.number))
    return batch


def _gradients(todo: Job, batch: Batch) -> Tensor:
    """Forward and backward; returns what the tally takes."""
    todo.pulse.beat("step", "forward")
    todo.faults.strike("fwd", todo.state.step)
    logits = todo.model(batch.images)
    loss = spoil.loss(todo.faults, todo.state.step, todo.criterion(logits, batch.labels))
    todo.pulse.beat("step", "backward")
    todo.faults.strike("bwd", todo.state.step)
    todo.runtime.accelerator.backward(loss)
    return tally.sums(loss.detach(), logits.detach(), batch.labels)


def _clip(todo: Job) -> None:
    todo.pulse.beat("step", "optimizer")
    if todo.config.train.clip_grad_norm is not None:
        todo.runtime.accelerator.clip_grad_norm_(todo.model.parameters(), todo.config.train.clip_grad_norm)
