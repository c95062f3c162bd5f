"""`build_for_training` builds the network and its optimizer for a training and for a check: both refuse the same."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from entrypoint import ExitCode, Failure, pluralize
from train.config import schema
from train.config.batches import BatchSizes, nearest_divisors
from train.config.schema import ModelConfig, RunConfig
from train.data.image_sizes import other_shapes
from train.data.shape import Shape
from train.data.splits import DataSplits
from train.distributed import sync_batchnorm
from train.models import custom, registry, weights
from train.models.depth import enable_activation_checkpointing
from train.models.freezing import Freezing, build_freezing
from train.optim.optimizer import CPU, build_optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNetwork:
    """A network with random weights and its optimizer; model: the section of the config that decided it."""

    network: nn.Module
    optimizer: Optimizer
    freezing: Freezing | None
    model: ModelConfig


def build_for_training(
    config: RunConfig,
    splits: DataSplits,
    batches: BatchSizes,
    *,
    steps_per_epoch: int,
    checkpoints: Path | None,
    device: torch.device = CPU,
    fused: bool = False,
) -> NewNetwork:
    """The network for the samples, on the CPU, and its optimizer. Weights that are frozen for the whole run are so.

    Args:
        checkpoints: of a run that may resume; its newest one decides the stem of a ResNet. device, fused: as of
            `build_optimizer`.

    Raises:
        Failure: USAGE, as `registry.build_model`, `build_freezing` and `build_optimizer`; and for a network that does
            not take the other sizes that the config asks for, or not so small a micro batch.
    """
    model, classes = weights.fit_stem(config.model, checkpoints), len(splits.classes)
    network = registry.build_model(model, classes=classes, shape=splits.shape, seed=config.run.seed)
    shapes = other_shapes(config.data, splits)
    for shape in shapes:
        registry.refuse_other_size(network, model, classes, shape)
    freezing = build_freezing(model, network, steps_per_epoch)
    _refuse_small_micro_batch(config, network, freezing, batches, classes, [splits.shape, *shapes])
    if freezing is not None and freezing.until is None:
        freezing.freeze_parameters(True)  # the optimizer need not know them
    optimizer = build_optimizer(config.optim, network, device, fused=fused)
    return NewNetwork(network=network, optimizer=optimizer, freezing=freezing, model=model)


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
    """Refuse a micro batch that the network cannot train on, as BatchNorm over one sample of 1 x 1 features.

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
