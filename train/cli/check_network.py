"""Compares a config with its data, network and optimizer as a start does, so that `train check` refuses the same.

It loads torch, and for some models timm. Nothing is trained, and nothing is written.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from entrypoint import Plan
from train import plugin
from train.compilation import black_images
from train.config import checks, schema
from train.config.batches import BatchSizes
from train.config.schema import RunConfig
from train.data.gpu_decoding import refuse_gpu_decoding
from train.data.image_sizes import other_shapes, with_evaluation_size
from train.data.shape import Shape
from train.data.splits import DataSplits, EmptySource
from train.data_fit import image_file_notes, refuse_unfit_data
from train.distributed import device, sync_batchnorm
from train.distributed.bitwise import BitwiseReducer, refuse_hidden_state
from train.models import registry, weights
from train.models.activation_checkpointing import enable_activation_checkpointing
from train.models.freezing import build_freezing
from train.models.initial_weights import load_initial_weights
from train.optim.optimizer import build_optimizer
from train.run.folder import run_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPreview:
    """What a start would build. parameters: how many are trained. notes: of the weights, the first ones, and others."""

    parameters: int
    notes: tuple[str, ...]


def preview_network(
    config: RunConfig,
    plan: Plan,
    batch: BatchSizes,
    *,
    splits: DataSplits,
    steps_per_epoch: int,
    source: str | None,
    is_here: bool,
) -> NetworkPreview:
    """Compare the config with the samples, build the network for them, load its weights, and build its optimizer.

    source: the config's file, in whose folder the user's own modules are. is_here: whether the training could start on
    this machine.

    Raises:
        Failure: as a start, for what the data, the network, weights, the optimizer or a tracker do not fit.
    """
    own = (config.model.name, config.optim.name, *config.log.trackers)
    plugin.add_config_folder_to_path(source, *own)
    if plan.device == "cuda" and torch.cuda.is_available():
        device.choose_precision(config.train.precision, torch.device("cuda", 0))
    checkpoints = run_folder(config) / "checkpoints" if config.checkpoint.resume == "auto" else None
    config = replace(config, data=weights.fit_preprocessing(config, checkpoints))
    _refuse_unfit_data(config, plan, batch, with_evaluation_size(splits, config.eval.image_size), is_here)
    if any(map(schema.is_factory, config.log.trackers)):
        from train.logging.trackers import load_tracker_classes  # a second, for Accelerate

        load_tracker_classes(config.log.trackers)
    notes = image_file_notes(config.data, splits)
    if not schema.is_factory(config.model.name):
        # There only shapes are computed, which is fast for large networks too. It knows less than the CPU: for
        # whatever it refuses, the CPU has the last word.
        with suppress(Exception), torch.device("meta"):
            return _build(config, plan, splits, steps_per_epoch, notes)
    return _build(config, plan, splits, steps_per_epoch, notes)


def splits_to_fetch(shape: Shape, outputs: int) -> DataSplits:
    """What is known of published data that is not there yet: one sample of each class, which cannot be read."""
    samples = EmptySource(labels=torch.arange(outputs), stored=shape.stored)
    return DataSplits(training=samples, validation=samples, classes=tuple(map(str, range(outputs))), shape=shape)


def _refuse_unfit_data(config: RunConfig, plan: Plan, batch: BatchSizes, splits: DataSplits, is_here: bool) -> None:
    """The parts of `build_trainer` that compare the config with the samples."""
    augmenter = refuse_unfit_data(config, splits)
    device_type = plan.device if is_here else "cuda"
    refuse_gpu_decoding(config.data, splits, augmenter, torch.device(device_type), attempt=torch.cuda.is_available())
    if not checks.searches_micro_batch(config.train, device_type):
        augmenter.refuse_odd_micro_batch(batch.micro)


def _build(
    config: RunConfig, plan: Plan, splits: DataSplits, steps_per_epoch: int, notes: tuple[str, ...]
) -> NetworkPreview:
    """The parts of `build_trainer` that depend on the network, in the same order. notes: of the data."""
    checkpoints, outputs, shape = run_folder(config) / "checkpoints", len(splits.classes), splits.shape
    resumes = config.checkpoint.resume == "auto" and any(checkpoints.glob("step-*"))
    model = weights.fit_stem(config.model, checkpoints if config.checkpoint.resume == "auto" else None)
    network = registry.build_model(model, classes=outputs, shape=shape, seed=config.run.seed)
    for other in other_shapes(config.data, with_evaluation_size(splits, config.eval.image_size)):
        registry.refuse_other_size(network, model, outputs, other)
    freezing = build_freezing(model, network, steps_per_epoch)
    if freezing is not None and freezing.until is None:
        freezing.freeze_parameters(True)
    build_optimizer(config.optim, network, fused=False)
    load_notes = load_initial_weights(model, network, shape, is_new_run=not resumes)
    parameters = registry.count_parameters(network)
    if checks.is_bitwise(config.train):
        BitwiseReducer(network, plan.world, micro_batches=1)
        refuse_hidden_state(network, black_images(2, shape, torch.device("cpu")))
    if config.train.sync_batchnorm:
        network = sync_batchnorm.convert_sync_batchnorm(network, plan.world.world_size)
    if config.train.activation_checkpointing:
        enable_activation_checkpointing(network, model.name)
    return NetworkPreview(parameters=parameters, notes=(*load_notes, *notes))
