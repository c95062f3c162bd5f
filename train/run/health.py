"""From the sums on the device to a verdict that all ranks share: go on, or end a run whose numbers are not finite."""

from __future__ import annotations

import math
from typing import Final

import torch

from entrypoint import ExitCode, Failure
from train.distributed import replica_check
from train.logging.metrics import MetricsLogger
from train.logging.progress import Progress
from train.logging.running_mean import StepMetrics
from train.run import evidence
from train.run.job import Job
from train.run.now import Now
from train.run.spike import Jumped

SKIPPED: Final = 20  # fp16: so many steps in a row without finite gradients is not the scaler's search any more


def sound(todo: Job, now: Now) -> StepMetrics | None:
    """The means since the last reading, once all ranks have seen that they are finite, and no jump to go back for.

    None where nothing was trained on since. With fp16 a single infinite loss only makes the scaler skip a step.

    Raises:
        Failure: DIVERGED.
        Jumped: with train.spike rollback.
    """
    means = now.tally.read(todo.runtime.total, todo.usage.beside())
    todo.usage.note(means.beside, trained=means.samples > 0)
    if not means.samples:
        return None
    fp16 = todo.state.scaler is not None
    if (now.skipped >= SKIPPED) if fp16 else not math.isfinite(means.loss):
        raise diverged(todo, now, f"mean loss {means.loss} over the last {means.samples} samples")
    if todo.config.train.spike == "rollback" and (jump := now.readings.compare(todo.state.step, means.loss)):
        if todo.state.rollbacks:
            raise diverged(todo, now, f"{jump}, for the second time")
        raise Jumped(jump)
    now.lap.read(todo.state.step, means.loss, means.samples)
    return means


def tell_jump(todo: Job, now: Now, loss: float, metrics: MetricsLogger, progress: Progress) -> None:
    """Remember a log point's mean loss, and say where it jumps."""
    jump = now.readings.add(todo.state.step, loss)
    if jump and todo.config.train.spike == "warn":
        metrics.write("spike", step=jump.step, loss=jump.loss, usual=jump.usual)
        progress.say(f"warning: {jump}; train.spike=rollback would go back to the last checkpoint")


def compare_replicas(todo: Job) -> None:
    """Every so many steps. Raises Failure: NODE or PEER, see `replica_check.check_replicas`."""
    every = todo.config.train.check_replicas_every_steps
    if every is not None and todo.state.step % every == 0:
        todo.pulse.beat("step", step=todo.state.step)
        replica_check.check_replicas(todo.runtime, todo.state.network, todo.optimizer, todo.state.step)


def refuse_bad_statistics(todo: Job, now: Now) -> None:
    """A checkpoint of rank 0's weights is to be everyone's: they are compared, where the config asks for that.

    BatchNorm's statistics are each rank's own: all end as soon as one has bad ones. The weights themselves are looked
    at by who writes them (`saving`).
    """
    net = todo.state.network
    kept = net.state_dict().keys()  # others, such as masks, may hold what they like
    own = [buffer for name, buffer in net.named_buffers() if name in kept and buffer.is_floating_point()]
    if own and not math.isfinite(todo.runtime.total(torch.stack(torch._foreach_norm(own)).sum()).item()):
        raise diverged(todo, now, "running statistics that are not finite")
    if todo.config.train.check_replicas_every_steps is not None:
        replica_check.check_replicas(todo.runtime, net, todo.optimizer, todo.state.step)


def diverged(todo: Job, now: Now, found: str) -> Failure:
    """The end of a run whose numbers are not finite any more. All ranks come here together."""
    evidence.leave(todo, now.tally.losses(), found)
    return Failure(
        f"training diverged at or before step {todo.state.step}",
        found=found,
        fix="start anew under another run.name with a lower optim.lr, a longer optim.warmup_epochs, or "
        "train.clip_grad_norm=1.0; errors/diverged.json names the last batches",
        kept=str(now.saved) if now.saved else None,
        code=ExitCode.DIVERGED,
    )
