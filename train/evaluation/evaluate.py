"""`evaluate` computes a model's metrics on the validation images over all ranks.

Every image is counted exactly once, on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch import distributed as dist

from entrypoint import ExitCode, Failure, World
from train.config.schema import EvalConfig
from train.data.loader import Batch
from train.data.sampler import SampleIndices, rank_blocks
from train.data.splits import DataSplits
from train.distributed import device
from train.distributed.runtime import Runtime
from train.evaluation.results import EvaluationResult
from train.evaluation.scores import ConfusionCounter, Counter

AUTO_BATCH_SIZE: Final = 256  # eval.batch_size auto: without gradients it mostly fits if training does


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of an evaluation.

    confusion: int64 [classes, classes] on the CPU, rows by label, columns by prediction; None for many classes.
    unflipped: with eval.flip, the result of the outputs for the images alone.
    """

    result: EvaluationResult
    confusion: Tensor | None
    unflipped: EvaluationResult | None = None


def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    runtime: Runtime,
    *,
    classes: int,
    padded_size: int | None = None,
    new_counter: Callable[[int, torch.device], Counter] = ConfusionCounter,
    observe: Callable[[Tensor, Tensor], None] | None = None,
    flip: bool = False,
) -> Evaluation:
    """Evaluate `model` (not wrapped in DDP) on this rank's batches, and sum over all ranks.

    Counts are kept on the device and read once, at the end. A rank may have no batch. padded_size: pad each batch
    to so many images, the size for which the model was compiled. new_counter: makes what counts, for the number of
    classes and the device. observe: called with the logits and the labels of each batch. flip: as eval.flip.

    Raises:
        Failure: DATA for a model whose number of outputs is not `classes`, or if no rank has a sample.
    """
    broadcast_buffers(model, runtime)
    counter, *plain_counters = (new_counter(classes, runtime.device) for _ in range(1 + flip))
    with torch.no_grad(), _eval_mode(model):
        for batch in batches:
            logits = _compute_logits(model, batch.images, padded_size)
            for plain_counter in plain_counters:
                plain_counter.add(logits, batch.labels)
                logits = average_outputs(logits, _compute_logits(model, batch.images.flip(-1), padded_size))
            counter.add(logits, batch.labels)
            if observe is not None:
                observe(logits, batch.labels)
    result, confusion = counter.read(runtime.all_reduce_sum, runtime.all_gather)
    unflipped = [each.read(runtime.all_reduce_sum, runtime.all_gather)[0] for each in plain_counters]
    return Evaluation(result=result, confusion=confusion, unflipped=unflipped[0] if flip else None)


def average_outputs(plain: Tensor, flipped: Tensor) -> Tensor:
    """The mean of the outputs for images and for their mirror images (eval.flip)."""
    return (plain + flipped) / 2


def refuse_flips(config: EvalConfig, splits: DataSplits) -> None:
    """Refuse eval.flip for samples whose mirror image may be of another class.

    Raises:
        Failure: USAGE.
    """
    if config.flip and not splits.mirror:
        raise Failure(
            "eval.flip averages over mirror images, and these change the class of this data",
            found="digits, or classes that are directions",
            fix="set eval.flip=false",
            code=ExitCode.USAGE,
        )


def warm_up(model: nn.Module, images: Tensor) -> None:
    """Compute once as `evaluate` does, and discard the result."""
    with torch.no_grad(), _eval_mode(model):
        model(images)


def _compute_logits(model: nn.Module, images: Tensor, padded_size: int | None) -> Tensor:
    """The logits of a batch. A smaller batch is padded with copies of its first image."""
    missing = (padded_size or 0) - len(images)
    if missing <= 0:
        return model(images)  # type: ignore[no-any-return]
    last = images.movedim(1, -1)  # channels last, so that the padded batch keeps the memory layout
    return model(torch.cat([last, *[last[:1]] * missing]).movedim(-1, 1))[: len(images)]  # type: ignore[no-any-return]


def max_batch_size(images: int, size: int | Literal["auto"]) -> int:
    """The number of images in the largest batch of `rank_batches`."""
    return min(images, AUTO_BATCH_SIZE if size == "auto" else size)


def rank_batches(images: int, size: int | Literal["auto"], world: World) -> list[SampleIndices]:
    """This rank's validation images in batches of `size`. The batches are the same for any number of ranks."""
    return rank_blocks(
        images, AUTO_BATCH_SIZE if size == "auto" else size, rank=world.rank, world_size=world.world_size
    )


@contextmanager
def explain_out_of_memory(images: int) -> Iterator[None]:
    """Explain an out-of-memory error of an evaluation with batches of so many images.

    Smaller batches in training would not help.

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
    """Set every module to evaluation mode, then restore each one's mode: a model may have frozen some."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def broadcast_buffers(model: nn.Module, runtime: Runtime) -> None:
    """Copy rank 0's buffers to every rank. Checkpoints hold rank 0's buffers.

    Each rank collects BatchNorm's running means from its own batches. They do not influence training.
    """
    if runtime.cpu_group is not None:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
