"""From the sums on the device to a verdict that all ranks share: go on, or end a run whose numbers are not finite."""

from __future__ import annotations

import math
from typing import Final

import torch

from entrypoint import ExitCode, Failure
from train.record.tally import Means
from train.run.job import Job
from train.run.now import Now

SKIPPED: Final = 20  # fp16: so many steps in a row without finite gradients is not the scaler's search any more


def sound(todo: Job, now: Now) -> Means | None:
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
        raise _diverged(todo, now, f"mean loss {means.loss} over the last {means.samples} samples")
    now.loss = means.loss
    return means


def refuse_bad_weights(todo: Job, now: Now) -> None:
    """A finite loss may still have had infinite gradients. All ranks have the same weights, and end alike."""
    tensors = [tensor for tensor in todo.state.network.state_dict().values() if tensor.is_floating_point()]
    norms = torch.stack(torch._foreach_norm(tensors)) if tensors else torch.zeros(1)
    if not math.isfinite(norms.sum().item()):
        raise _diverged(todo, now, "weights that are not finite")


def _diverged(todo: Job, now: Now, found: str) -> Failure:
    """The end of a run whose numbers are not finite any more."""
    return Failure(
        f"training diverged at or before step {todo.state.step}",
        found=found,
        fix="lower optim.lr, lengthen optim.warmup_epochs, or set train.clip_grad_norm: 1.0",
        kept=str(now.saved) if now.saved else None,
        code=ExitCode.DIVERGED,
    )
