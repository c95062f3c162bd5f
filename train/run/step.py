"""One optimizer step of one rank: its micro batches of the global batch, and the exchange of their gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from train import keyed
from train.data.loader import Batch
from train.data.sampling import Piece
from train.optim.optimizers import set_rate
from train.run.job import Job
from train.run.now import Now

Stream = Iterator[tuple[Piece, Batch]]


def take(todo: Job, now: Now, stream: Stream) -> None:
    """One optimizer step: this rank's micro batches of the global batch, one exchange of gradients."""
    todo.faults.strike("step", todo.state.step)
    accelerator, seed = todo.runtime.accelerator, todo.config.run.seed
    set_rate(todo.optimizer, todo.schedule(todo.state.step))
    for _ in range(todo.batches.accumulation):
        todo.faults.strike("data", todo.state.step)
        piece, batch = next(stream)
        torch.manual_seed(keyed.seed(keyed.DROPOUT, seed, piece.step, piece.number))
        with accelerator.accumulate(todo.model):
            todo.faults.strike("fwd", todo.state.step)
            logits = todo.model(batch.images)
            loss = todo.criterion(logits, batch.labels)
            todo.faults.strike("bwd", todo.state.step)
            accelerator.backward(loss)
            if accelerator.sync_gradients and todo.config.train.clip_grad_norm is not None:
                accelerator.clip_grad_norm_(todo.model.parameters(), todo.config.train.clip_grad_norm)
            todo.optimizer.step()
            todo.optimizer.zero_grad()
        now.tally.add(loss.detach(), logits.detach(), batch.labels)
    todo.state.step += 1
    if todo.state.average is not None:
        todo.state.average.update(todo.state.step)
    if todo.state.scaler is not None:
        now.skipped = now.skipped + 1 if todo.optimizer.step_was_skipped else 0  # type: ignore[attr-defined]
