"""Training, from its first step to its last: `fit` is the table of contents."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch

from entrypoint import ExitCode, Failure
from train import checkpoint, durable, job, keyed, shelf
from train.agreement import Agreement, Decision
from train.evaluation import evaluate
from train.job import Job
from train.loader import Batch
from train.metrics import Metrics
from train.optim import set_rate
from train.progress import Progress
from train.sampling import Piece, blocks
from train.signals import Watch
from train.tally import Means, Stopwatch, Tally

Stream = Iterator[tuple[Piece, Batch]]
EVALUATION_BATCH: Final = 256  # eval.batch_size auto: no gradients are kept, so that it fits wherever training does
SKIPPED: Final = 20  # fp16: so many steps in a row without finite gradients is not the scaler's search any more


@dataclass(slots=True, kw_only=True)
class Now:
    """What the loop itself keeps in mind between steps; a resumed run begins with a fresh one."""

    tally: Tally
    watch: Watch
    stopwatch: Stopwatch
    clock: Callable[[], float]
    saved_at: float
    logged_at: float
    saved: Path | None
    loss: float | None = None
    skipped: int = 0


def fit(
    todo: Job, watch: Watch, metrics: Metrics, progress: Progress, clock: Callable[[], float] = time.monotonic
) -> Now:
    """Train from where the state stands to the end, or to the step at which all ranks agree to stop.

    Returns with the last step committed. `todo.state.step` tells which of the two it was.

    Raises:
        Failure: DIVERGED; IO and others from a save; DATA for an image that cannot be read.
    """
    now, state, agreement = _begin(todo, watch, clock), todo.state, Agreement(todo.runtime.control)
    stream = todo.loader.train(todo.course.pieces(state.step))
    while True:
        if _evaluation_is_due(todo):
            measure(todo, now, metrics, progress)
        decision = agreement.decided(_wishes(todo, now))
        if state.step >= todo.steps.total or decision.stop:
            break
        if decision.save or _save_is_due(todo):
            save(todo, now, metrics)
        agreement.propose(_wishes(todo, now))
        step(todo, now, stream)
        progress.step()
        if state.step % todo.config.log.every_steps == 0:
            log(todo, now, metrics, progress)
    save(todo, now, metrics)
    return now


def step(todo: Job, now: Now, stream: Stream) -> None:
    """One optimizer step: this rank's micro batches of the global batch, one exchange of gradients."""
    accelerator, seed = todo.runtime.accelerator, todo.config.run.seed
    set_rate(todo.optimizer, todo.schedule(todo.state.step))
    for _ in range(todo.batches.accumulation):
        piece, batch = next(stream)
        torch.manual_seed(keyed.seed(keyed.DROPOUT, seed, piece.step, piece.number))
        with accelerator.accumulate(todo.model):
            logits = todo.model(batch.images)
            loss = todo.criterion(logits, batch.labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients and todo.config.train.clip_grad_norm is not None:
                accelerator.clip_grad_norm_(todo.model.parameters(), todo.config.train.clip_grad_norm)
            todo.optimizer.step()
            todo.optimizer.zero_grad()
        now.tally.add(loss.detach(), logits.detach(), batch.labels)
    todo.state.step += 1
    if todo.state.scaler is not None:
        now.skipped = now.skipped + 1 if todo.optimizer.step_was_skipped else 0  # type: ignore[attr-defined]


def log(todo: Job, now: Now, metrics: Metrics, progress: Progress) -> None:
    """Read the sums of the last steps, on all ranks; write and show them."""
    means = _sound(todo, now)
    now.tally.clear()
    if means is None:
        return
    seconds, now.logged_at = now.stopwatch.seconds - now.logged_at, now.stopwatch.seconds
    at, per_s = todo.state.step, means.samples / seconds
    epoch = (at - 1) // todo.steps.per_epoch + 1
    values = {"loss": means.loss, "accuracy": means.accuracy, "lr": todo.schedule(at - 1), "images_per_s": per_s}
    metrics.write("train", step=at, epoch=epoch, **values)
    progress.measured(step=at, epoch=epoch, epochs=todo.config.train.epochs, loss=means.loss, images_per_s=per_s)


def measure(todo: Job, now: Now, metrics: Metrics, progress: Progress) -> None:
    """Evaluate, and commit what is better than all before."""
    state, world = todo.state, todo.runtime.world
    size = EVALUATION_BATCH if todo.config.eval.batch_size == "auto" else todo.config.eval.batch_size
    mine = blocks(todo.held_out, size, rank=world.rank, world_size=world.world_size)
    with now.stopwatch.paused():
        state.result = evaluate(state.network, todo.loader.evaluate(mine), todo.runtime)
    state.evaluated = state.step
    epoch = -(-state.step // todo.steps.per_epoch)
    metrics.write("eval", step=state.step, epoch=epoch, **asdict(state.result))
    progress.evaluated(
        step=state.step, epoch=epoch, epochs=todo.config.train.epochs, result=state.result, loss=now.loss
    )
    if state.best is None or state.result.accuracy > state.best.accuracy:
        state.best, state.best_step = state.result, state.step
        save(todo, now, metrics)


def save(todo: Job, now: Now, metrics: Metrics) -> None:
    """Commit the state, unless this step is committed already. Never one with numbers that are not finite."""
    _sound(todo, now)
    if todo.state.step == 0 or (now.saved is not None and now.saved.name == shelf.name(todo.state.step)):
        return
    _refuse_bad_weights(todo, now)
    with now.stopwatch.paused():
        todo.state.seconds = now.stopwatch.seconds
        began = now.clock()
        now.saved = todo.runtime.shared(lambda: _commit(todo))
        now.saved_at = now.clock()
    metrics.write("checkpoint", step=todo.state.step, seconds=now.saved_at - began)


def _begin(todo: Job, watch: Watch, clock: Callable[[], float]) -> Now:
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
    )


def _evaluation_is_due(todo: Job) -> bool:
    """After every so many epochs, and at the end. Not again where a resumed run has it already."""
    at = todo.state.step
    on_time = at % (todo.steps.per_epoch * todo.config.eval.every_epochs) == 0 or at >= todo.steps.total
    return on_time and todo.held_out > 0 and todo.state.evaluated < at


def _save_is_due(todo: Job) -> bool:
    every = todo.config.checkpoint.every_steps
    return every is not None and todo.state.step > 0 and todo.state.step % every == 0


def _wishes(todo: Job, now: Now) -> Decision:
    """What this rank alone would do: each looks at its signals, rank 0 at the clock."""
    minutes = todo.config.checkpoint.every_minutes
    late = minutes is not None and now.clock() - now.saved_at >= 60 * minutes
    return Decision(stop=now.watch.received is not None, save=todo.runtime.is_main and late)


def _commit(todo: Job) -> Path:
    """On rank 0 only."""
    tensors, facts = job.kept(todo.config, todo.runtime, todo.state)
    best, keep = todo.state.best_step, todo.config.checkpoint.keep
    path = checkpoint.save(todo.checkpoints, step=todo.state.step, tensors=tensors, state=facts, keep=keep, best=best)
    if best == todo.state.step and todo.state.best is not None:
        told = {"step": best, "checkpoint": str(path.relative_to(todo.folder)), **asdict(todo.state.best)}
        durable.write_json(todo.folder / "best.json", told)
    return path


def _sound(todo: Job, now: Now) -> Means | None:
    """The means since the last reading, once all ranks have seen that they are finite.

    With fp16 a single infinite loss only makes the scaler skip a step.

    Raises:
        Failure: DIVERGED.
    """
    means = now.tally.read(todo.runtime.total)
    if means is None:
        return None
    fp16 = todo.state.scaler is not None
    if (now.skipped >= SKIPPED) if fp16 else not math.isfinite(means.loss):
        raise diverged(todo, now, f"mean loss {means.loss} over the last {means.samples} samples")
    now.loss = means.loss
    return means


def _refuse_bad_weights(todo: Job, now: Now) -> None:
    """A finite loss may still have had infinite gradients. All ranks have the same weights, and end alike."""
    tensors = [tensor for tensor in todo.state.network.state_dict().values() if tensor.is_floating_point()]
    norms = torch.stack(torch._foreach_norm(tensors)) if tensors else torch.zeros(1)
    if not math.isfinite(norms.sum().item()):
        raise diverged(todo, now, "weights that are not finite")


def diverged(todo: Job, now: Now, found: str) -> Failure:
    """The end of a run whose numbers are not finite any more."""
    return Failure(
        f"training diverged at or before step {todo.state.step}",
        found=found,
        fix="lower optim.lr, lengthen optim.warmup_epochs, or set train.clip_grad_norm: 1.0",
        kept=str(now.saved) if now.saved else None,
        code=ExitCode.DIVERGED,
    )
