"""`evaluate` computes a model's metrics on the validation images over all ranks.

Every image is counted exactly once, on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch import distributed as dist

from entrypoint import ExitCode, Failure, World
from train.data.loader import Batch
from train.data.sampler import SampleIndices, rank_blocks
from train.distributed import device
from train.distributed.runtime import Runtime
from train.evaluation.confusion import ConfusionCounter
from train.evaluation.metrics import EvaluationResult

AUTO_BATCH_SIZE: Final = 256  # eval.batch_size auto: no gradients are kept, so that it mostly fits where training does


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """confusion: int64 [classes, classes] on the CPU, rows by label, columns by prediction; None for many classes."""

    result: EvaluationResult
    confusion: Tensor | None


def evaluate(
    model: nn.Module, batches: Iterable[Batch], runtime: Runtime, *, classes: int, whole: int | None = None
) -> Evaluation:
    """Measure `model` (not wrapped in DDP) on this rank's batches and add up over all ranks.

    Counts are kept on the device and read once, at the end. A rank may have no batch. whole: fill each batch up to so
    many images, which compiled code was made for.

    Raises:
        Failure: DATA for a model with other outputs than `classes`, or where no rank has a sample.
    """
    broadcast_buffers(model, runtime)
    counter = ConfusionCounter(classes, runtime.device)
    with torch.no_grad(), _eval_mode(model):
        for batch in batches:
            counter.add(_compute_logits(model, batch.images, whole), batch.labels)
    result, confusion = counter.read(runtime.all_reduce_sum, runtime.all_gather)
    return Evaluation(result=result, confusion=confusion)


def warm_up(model: nn.Module, images: Tensor) -> None:
    """Compute once as `evaluate` does, for nothing."""
    with torch.no_grad(), _eval_mode(model):
        model(images)


def _compute_logits(model: nn.Module, images: Tensor, whole: int | None) -> Tensor:
    """The last batch may be smaller: its first image stands in for those that are not there."""
    missing = (whole or 0) - len(images)
    if missing <= 0:
        return model(images)  # type: ignore[no-any-return]
    last = images.movedim(1, -1)  # as it lies in memory, so that the whole batch does too
    return model(torch.cat([last, *[last[:1]] * missing]).movedim(-1, 1))[: len(images)]  # type: ignore[no-any-return]


def max_batch_size(images: int, size: int | Literal["auto"]) -> int:
    """Samples in the largest of the batches that `rank_batches` makes."""
    return min(images, AUTO_BATCH_SIZE if size == "auto" else size)


def rank_batches(images: int, size: int | Literal["auto"], world: World) -> list[SampleIndices]:
    """This rank's validation images in batches of `size`: the same batches in any world, each on one rank."""
    return rank_blocks(
        images, AUTO_BATCH_SIZE if size == "auto" else size, rank=world.rank, world_size=world.world_size
    )


@contextmanager
def explain_out_of_memory(images: int) -> Iterator[None]:
    """Compute with batches of so many images. No size of the training's would help where they do not fit.

    Raises:
        Failure: RESOURCE, with the eval.batch_size to set.
    """
    try:
        yield
    except RuntimeError as error:
        if not device.is_out_of_memory(error):
            raise
        smaller = f"set eval.batch_size={images // 4 or 1} (it was {images}): the result stays the same"
        raise Failure(
            "out of GPU memory in the evaluation",
            found=device.summarize_error(error),
            fix=smaller if images > 1 else "take a GPU with more memory, a smaller model or smaller images",
            code=ExitCode.RESOURCE,
        ) from error


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode; after it each in its own again: a model may have frozen some of them."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def broadcast_buffers(model: nn.Module, runtime: Runtime) -> None:
    """Give every rank rank 0's buffers (BatchNorm's running means, which each rank collects from its own batches).

    They do not influence training; rank 0's are those that checkpoints hold.
    """
    if runtime.control is not None:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
