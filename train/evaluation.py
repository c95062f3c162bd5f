"""From a model and the held-out images to its accuracy and loss: every image counted once, on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.functional import cross_entropy

from train.loader import Batch
from train.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Measured on `samples` held-out images: the share that is right, and the mean cross-entropy in nats."""

    accuracy: float
    loss: float
    samples: int


def evaluate(model: nn.Module, batches: Iterable[Batch], runtime: Runtime) -> Result:
    """Measure `model` (not wrapped in DDP) on this rank's batches and add up over all ranks.

    Sums are kept on the device in float64 and read once, at the end.
    """
    share_buffers(model, runtime)
    was_training = model.training
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=runtime.device)
    with torch.no_grad():
        for batch in batches:
            sums += _sums(model(batch.images), batch.labels)
    model.train(was_training)
    right, loss, samples = runtime.total(sums).tolist()
    return Result(accuracy=right / samples, loss=loss / samples, samples=int(samples))


def share_buffers(model: nn.Module, runtime: Runtime) -> None:
    """Give every rank rank 0's buffers (BatchNorm's running means, which each rank collects from its own batches).

    They do not influence training; rank 0's are those that checkpoints hold.
    """
    if runtime.control is not None:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def _sums(logits: Tensor, labels: Tensor) -> Tensor:
    """(right answers, summed loss, samples) of a batch, float64 [3]."""
    right = (logits.argmax(dim=1) == labels).sum()
    loss = cross_entropy(logits.float(), labels, reduction="none").double().sum()
    return torch.stack([right.double(), loss, torch.full_like(loss, len(labels))])
