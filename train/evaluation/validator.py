"""The `Validator` computes a model's metrics on a split over all ranks.

Every image is counted exactly once, on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch import distributed as dist

from entrypoint import ExitCode, Failure, Heartbeat, World
from train.config.schema import EvalConfig
from train.data.batch import Batch
from train.data.loader import BatchLoader
from train.data.sampler import SampleIndices, rank_blocks
from train.data.splits import DataSplits
from train.distributed import device
from train.distributed.runtime import Runtime
from train.evaluation.results import EvaluationResult
from train.evaluation.totals import EvaluationTotals, Model, Rows
from train.tasks.base import Task

AUTO_BATCH_SIZE: Final = 256  # eval.batch_size auto: without gradients it mostly fits if training does


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of an evaluation.

    confusion: int64 [classes, classes] on the CPU, rows by label, columns by prediction; None for many classes.
    rows: what the task keeps of each image. unflipped: with eval.flip, the result of the outputs for the images alone.
    """

    result: EvaluationResult
    confusion: Tensor | None
    rows: Rows
    unflipped: EvaluationResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validator:
    """The one evaluation: of the validation split in training, of the test split at its end, and of `train eval`."""

    network: nn.Module  # not wrapped in DDP
    runtime: Runtime
    config: EvalConfig
    task: Task
    heartbeat: Heartbeat
    is_padded: bool = False  # to eval.batch_size: the network is compiled, for batches of one size
    must_stop: Callable[[], bool] | None = None  # whether this rank cannot wait for the end of an evaluation

    def measure(
        self,
        loader: BatchLoader,
        samples: int,
        *,
        weights: AbstractContextManager[None] | None = None,
        thresholds: tuple[float, ...] | None = None,
        details: bool = False,
    ) -> Evaluation | None:
        """Evaluate on the validation split of `loader`; None if a rank had to stop before the end. All ranks call it.

        Counts are kept on the device and read once, at the end. A rank may have no batch.

        Args:
            samples: how many the split has.
            weights: inside it the network has the weights to measure; None: it has them.
            thresholds: of several labels, instead of eval.threshold.
            details: whether `rows` are read afterwards, for results per image.

        Raises:
            Failure: DATA for a model whose number of outputs is not that of the task, or if no rank has a sample;
                RESOURCE for batches that do not fit into the GPU's memory.
        """
        runtime, size = self.runtime, self.config.batch_size
        threshold, flip = thresholds or self.config.threshold, self.config.flip
        batches = self.heartbeat.each("evaluation", loader.evaluate(rank_batches(samples, size, runtime.world)))
        autocast = runtime.accelerator.autocast()  # with DataParallel, the network has none itself
        with explain_out_of_memory(max_batch_size(samples, size)), weights or nullcontext(), autocast:
            broadcast_buffers(self.network, runtime)
            measured, unflipped = EvaluationTotals(), EvaluationTotals()
            with torch.no_grad(), _eval_mode(self.network):
                for batch in batches:
                    model: Model = self._compute_outputs
                    if flip:
                        plain = cache(model)  # the outputs of this batch are used twice
                        unflipped.add(batch, self.task.measure(plain, batch, details=False))
                        model = partial(self._average_flips, plain)
                    measured.add(batch, self.task.measure(model, batch, details=details))
                    # An evaluation may outlast the grace time.
                    if self.must_stop is not None and self.must_stop():
                        break
            totals = measured.read(runtime)
            plain_totals = unflipped.read(runtime) if flip else None
        if self.must_stop is not None and any(runtime.all_gather(self.must_stop())):
            return None
        result, confusion = self.task.metrics(totals, threshold)
        plain_result = None if plain_totals is None else self.task.metrics(plain_totals, threshold)[0]
        return Evaluation(result=result, confusion=confusion, rows=totals.rows, unflipped=plain_result)

    def _average_flips(self, plain: Model, images: Tensor) -> Tensor:
        return average_outputs(plain(images), self._compute_outputs(images.flip(-1)))

    def _compute_outputs(self, images: Tensor) -> Tensor:
        """The network's outputs for a batch. For compiled code it is filled up with copies of its first image."""
        size = self.config.batch_size
        if not self.is_padded or not isinstance(size, int):
            return self.network(images)  # type: ignore[no-any-return]
        if missing := size - len(images):
            last = images.movedim(1, -1)  # channels last, so that the padded batch keeps the memory layout
            images = torch.cat([last, *[last[:1]] * missing]).movedim(-1, 1)
        return self.network(images)[: size - missing].clone()  # type: ignore[no-any-return]  # the next replay of a CUDA graph overwrites it


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


def warm_up(runtime: Runtime, network: nn.Module, task: Task, example: Batch) -> None:
    """Compute once as an evaluation does, and discard the result."""
    samples = len(example["label"])
    with runtime.accelerator.autocast(), explain_out_of_memory(samples), torch.no_grad(), _eval_mode(network):
        task.measure(network, example, details=False)


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
