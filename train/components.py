"""Builds what is trained, once and in one order: the network, the task that computes its loss, its optimizer, and what
of it is frozen.

A training (`train find-lr` is one), the trials of a micro batch, `train check` and `train data profile` call
`build_components`. Whoever only computes with a trained network (`train eval`, `predict`, `export`) calls
`build_network`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from entrypoint import ExitCode, Failure, pluralize
from train.config import schema
from train.config.batches import BatchSizes, StepCounts, nearest_divisors
from train.config.models import weights_path
from train.config.optimizers import OPTIMIZERS
from train.config.resolved import ResolvedConfig
from train.config.schema import ModelConfig, RunConfig
from train.data.batch import Batch
from train.data.image_sizes import other_shapes
from train.data.shape import Shape
from train.data.splits import DataSplits
from train.distributed import sync_batchnorm
from train.models import custom, registry, weights
from train.models.depth import enable_activation_checkpointing
from train.models.freezing import Freezing, build_freezing
from train.optim.optimizer import CPU, build_optimizer, check_arguments
from train.tasks.base import Task
from train.tasks.registry import open_task

UNKNOWN_NORMALIZATION: Final = (
    "the weights' normalization is not known: images get that of this project, (byte - 127.5) / 63.75. fix: set "
    "data.normalize to what they were trained with; for ImageNet's 'data.normalize={mean: [0.485, 0.456, 0.406], "
    "std: [0.229, 0.224, 0.225]}'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """A network with random weights, and what trains it."""

    network: nn.Module
    task: Task
    optimizer: Optimizer
    freezing: Freezing | None


def build_components(
    resolved: ResolvedConfig,
    splits: DataSplits,
    *,
    batches: BatchSizes | None = None,
    steps: StepCounts | None = None,
    device: torch.device = CPU,
    fused: bool = False,
    move: Callable[[nn.Module], nn.Module] | None = None,
) -> Components:
    """Build the network for the samples, and what trains it. Without `move` the network stays on the CPU.

    A training moves the network later: first it loads weights, and tries which micro batch fits while the device's
    memory is still empty.

    Args:
        batches: a micro batch that is too small for the network is refused; None: it is not known yet.
        steps: model.freeze counts epochs by them; None: nothing is frozen.
        device: where the training computes. fused: as of `build_optimizer`.
        move: moves the network to the device.

    Raises:
        Failure: USAGE, as `registry.build_model`, `build_freezing` and `build_optimizer`; and for a network that does
            not take the other sizes that the config asks for, or not so small a micro batch.
    """
    config, classes = resolved.used, len(splits.classes)
    others = other_shapes(config.data, splits)
    network = registry.build_model(
        config.model, classes=classes, shape=splits.shape, seed=config.run.seed, other_shapes=others
    )
    freezing = None if steps is None else build_freezing(config.model, network, steps.per_epoch)
    if batches is not None:
        _refuse_small_micro_batch(config, network, freezing, batches, classes, [splits.shape, *others])
    if freezing is not None and freezing.until is None:
        freezing.freeze_parameters(True)  # the optimizer need not know them
    with CPU:  # `train check` builds networks on the meta device, where nothing can compare the weights of classes
        task = open_task(splits.task, splits.classes, splits.target, config.optim)
        task = task.for_training(splits.training.labels, device)
    if move is not None:  # before the optimizer is built: its state lies where the weights are
        network = move(network)
    return Components(
        network=network,
        task=task,
        optimizer=build_optimizer(config.optim, network, device, fused=fused),
        freezing=freezing,
    )


def refuse_unknown_arguments(config: RunConfig) -> None:
    """Refuse `model.args` and `optim.args` as far as this is known without the data, which may take minutes to open.

    Raises:
        Failure: USAGE.
    """
    registry.refuse_unknown_arguments(config.model)
    if config.optim.name in OPTIMIZERS:  # a user's own class is loaded after the own data and network
        check_arguments(config.optim)


def build_network(
    model: ModelConfig,
    tensors: Mapping[str, Tensor],
    splits: DataSplits,
    *,
    seed: int,
    factory: Callable[..., nn.Module] | None = None,
) -> nn.Module:
    """Build the network of a trained model on the CPU. The caller compares the tensors with its own, and loads them.

    Args:
        tensors: of the trained model; they decide the stem, as the weights that it began with may be gone.
        splits: for whose samples it is built, and whose evaluated samples it must take.
        seed: of the run: random tensors that are in no state dict depend on it.
        factory: as of `registry.build_model`.

    Raises:
        Failure: USAGE, as `registry.build_model`.
    """
    with torch.random.fork_rng(devices=[]):  # the caller may be a user's program, with random numbers of its own
        return registry.build_model(
            weights.fit_stem_to(model, tensors),
            classes=len(splits.classes),
            shape=splits.shape,
            seed=seed,
            factory=factory,
            other_shapes=[splits.evaluated_shape],
        )


def load_initial_weights(
    config: RunConfig, network: nn.Module, splits: DataSplits, *, is_new_run: bool
) -> tuple[str, ...]:
    """Load `model.weights` into the network of a new run, and look for mistakes in a user's own network.

    Returns notes: the first ones are those of `weights.load_weights`.

    Raises:
        Failure: as `weights.load_weights`; USAGE for weights of a user's own network that are not finite.
    """
    data, model = config.data, config.model
    notes = weights.load_weights(network, model.weights, model.name) if model.weights and is_new_run else ()
    if notes and data.normalize == "auto" and not splits.floats and not weights_path(str(model.weights)).is_dir():
        notes = (*notes, UNKNOWN_NORMALIZATION)
    if is_new_run and schema.is_factory(model.name):
        custom.refuse_nonfinite_weights(model, network)
        notes = (*notes, *custom.softmax_notes(model, network, splits.shape))
    return (*notes, *custom.eval_mode_notes(network))


def adapt_for_training(config: RunConfig, network: nn.Module, world_size: int) -> nn.Module:
    """The network with train.sync_batchnorm and train.activation_checkpointing. Raises Failure: USAGE, as these two."""
    if config.train.sync_batchnorm:
        network = sync_batchnorm.convert_sync_batchnorm(network, world_size)
    if config.train.activation_checkpointing:
        enable_activation_checkpointing(network, config.model.name)
    return network


def _refuse_small_micro_batch(
    config: RunConfig,
    network: nn.Module,
    freezing: Freezing | None,
    batches: BatchSizes,
    classes: int,
    shapes: Sequence[Shape],
) -> None:
    """Refuse a micro batch that the network cannot train on, such as BatchNorm over one sample of 1 x 1 features.

    Raises:
        Failure: USAGE, with a size that may be larger.
    """
    parts = max(1, torch.cuda.device_count()) if config.train.parallel == "dp" else 1
    part = -(-batches.micro // parts)  # as DataParallel divides it: the last part may be smaller
    samples, is_own = batches.micro % part or part, schema.is_factory(config.model.name)
    is_enough = samples >= (custom.LARGER_TRIAL_BATCH_SIZE if is_own else custom.TRIAL_BATCH_SIZE)
    if is_enough or (config.train.sync_batchnorm and batches.world > 1):
        return
    frozen = [] if freezing is None or freezing.until is not None else freezing.backbone_norms()
    for norm in frozen:
        norm.train(False)
    trying = custom.train_forward_error if is_own else custom.forward_error
    tried = network if is_own else copy.deepcopy(network)  # not every own network can be copied
    problems = [registry.find_problem(tried, shape, classes, samples, trying) for shape in shapes]
    for norm in frozen:
        norm.train(True)
    if not any(problems):
        return
    per_rank, least = batches.micro * batches.accumulation, (samples + 1) * parts
    micro = nearest_divisors(per_rank, least)[-1]
    fits = f"train.micro_batch_size={micro}" if micro >= least else f"train.global_batch_size={least * batches.world}"
    raise Failure(
        f"{config.model.name} cannot train on a micro batch of {pluralize(samples, 'sample')}",
        found=next(filter(None, problems)),
        expected="more samples: BatchNorm needs at least two values for each channel" if samples == 1 else None,
        fix=f"set {fits}, or take another model",
        code=ExitCode.USAGE,
    )


def take_plain_step(
    components: Components, network: nn.Module, batch: Batch, autocast: Callable[[], AbstractContextManager[None]]
) -> None:
    """One optimizer step of one micro batch without Accelerate, which too hands float32 outputs to the loss.

    network: that of the components, or what was made of it.
    """

    def compute_outputs(images: Tensor) -> Tensor:
        with autocast():
            return network(images).float()  # type: ignore[no-any-return]

    components.task.loss(compute_outputs, batch).loss.backward()  # type: ignore[no-untyped-call]
    components.optimizer.step()
    components.optimizer.zero_grad()
