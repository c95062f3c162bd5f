"""One optimizer step of one rank: its micro batches of the global batch, and the exchange of their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from train import rng
from train.data.loader import Batch
from train.data.sampler import MicroBatch
from train.distributed.bitwise import Exact
from train.distributed.runtime import refuse_unused_parameters
from train.logging import running_mean
from train.optim.optimizer import set_learning_rate
from train.run import spoil
from train.run.job import Job
from train.run.now import Now

Stream = Iterator[tuple[MicroBatch, Batch]]
ALL: Final = nullcontext()  # with the exchange of gradients


def take(todo: Job, now: Now, stream: Stream) -> None:
    """One optimizer step: this rank's micro batches of the global batch, one exchange of gradients."""
    todo.faults.strike("step", todo.state.step)
    spoil.parameters(todo.faults, todo.state.step, todo.state.network)
    set_learning_rate(todo.optimizer, todo.schedule(todo.state.step))
    if todo.exact is None:
        _fast(todo, now, stream)
    else:
        _bitwise(todo, now, stream, todo.exact)
    todo.state.step += 1
    if todo.state.average is not None:
        todo.state.average.update(todo.state.step)
    if todo.state.scaler is not None:
        now.skipped = now.skipped + 1 if todo.optimizer.step_was_skipped else 0  # type: ignore[attr-defined]


def _fast(todo: Job, now: Now, stream: Stream) -> None:
    """Gradients add up in .grad, and DDP exchanges them during the last backward pass."""
    last = todo.batches.accumulation - 1
    for number in range(todo.batches.accumulation):
        batch = _next(todo, stream)
        with ALL if number == last else todo.runtime.accelerator.no_sync(todo.model):
            loss, right = _gradients(todo, batch)
        now.tally.take(loss, right, batch.labels.numel())
    refuse_unused_parameters(todo.model)
    _update(todo, now)


def _bitwise(todo: Job, now: Now, stream: Stream, exact: Exact) -> None:
    """All that micro batches give adds up in one tree, whichever rank computed it."""
    exact.open()
    for _ in range(todo.batches.accumulation):
        batch = _next(todo, stream)
        exact.add(running_mean.sum_micro_batch(*_gradients(todo, batch), batch.labels.numel()))
    loss, right, _ = exact.close()
    _update(todo, now)
    if todo.runtime.is_main:  # every rank has the total: one counts it
        now.tally.take(loss / todo.batches.global_, right, todo.batches.global_)


def _next(todo: Job, stream: Stream) -> Batch:
    """The next micro batch, and torch's generator set for it."""
    todo.pulse.beat("step", "reads data")
    todo.faults.strike("data", todo.state.step)
    piece, batch = next(stream)
    todo.runtime.seed(rng.derive_seed(rng.DROPOUT, todo.config.run.seed, piece.step, piece.number))
    return batch


def _gradients(todo: Job, batch: Batch) -> tuple[Tensor, Tensor]:
    """Forward and backward; returns the mean loss and the number of right answers, on the device."""
    todo.pulse.at("forward")
    todo.faults.strike("fwd", todo.state.step)
    if todo.compiled is not None and todo.compiled.replayed:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
    logits = todo.model(batch.images)
    loss = spoil.loss(todo.faults, todo.state.step, todo.criterion(logits, batch.labels))
    todo.pulse.at("backward")
    todo.faults.strike("bwd", todo.state.step)
    todo.runtime.backward(loss)
    return loss.detach(), running_mean.count_correct(logits.detach(), batch.labels)


def _update(todo: Job, now: Now) -> None:
    """The optimizer's step, with clipped gradients where the config says so. It forgets them."""
    todo.pulse.at("optimizer")
    now.await_copy()
    if todo.config.train.clip_grad_norm is not None:
        todo.runtime.accelerator.unscale_gradients()  # then torch's own: Accelerate's loads sharded tensors first
        nn.utils.clip_grad_norm_(todo.model.parameters(), todo.config.train.clip_grad_norm)
    optimizer = bare(todo.optimizer)
    optimizer.step()
    if todo.compiled is not None and todo.compiled.stable:
        optimizer.zero_grad(set_to_none=False)
    else:
        _forget(optimizer)


def _forget(optimizer: Optimizer) -> None:
    """The gradients. zero_grad does the same, and tells torch's profiler twice, which costs more."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def bare(optimizer: Optimizer) -> Optimizer:
    """What Accelerate has wrapped, unless it scales losses: in each step it looks on disk whether an optimizer that
    nobody uses is installed (`is_lomo_available`: 8 system calls), and reads the signature of zero_grad.
    """
    inside = getattr(optimizer, "optimizer", optimizer)
    return optimizer if getattr(optimizer, "scaler", None) else inside
