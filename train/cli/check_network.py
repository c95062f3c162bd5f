"""Compares a config with its data, network and optimizer as a start does, so that `train check` refuses the same.

It loads torch, and for some models timm. Nothing is trained, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from entrypoint import Plan
from train.components import adapt_for_training, build_components, load_initial_weights
from train.config import schema
from train.config.batches import BatchSizes, StepCounts
from train.config.resolved import ResolvedConfig
from train.config.schema import DataConfig, RunConfig
from train.data import registry
from train.data.download import files_exist
from train.data.image_sizes import with_evaluation_size
from train.data.registry import DataSummary
from train.data.splits import DataSplits, EmptySource
from train.data.statistics import data_fingerprint
from train.data_fit import image_file_notes, refuse_unfit_data
from train.distributed import device
from train.models import weights
from train.models.registry import count_parameters
from train.parallel.strategies import strategy_class


def open_data(config: RunConfig, checkpoints: Path | None) -> tuple[RunConfig, DataSplits]:
    """The config as its weights decide it, and the data, as a start opens it.

    Of published data that is still to be fetched it is what is known: one sample of each class, which cannot be read.
    checkpoints: of a run that would resume.

    Raises:
        Failure: as `weights.fit_to_weights` and `DataSource.open`.
    """
    fitted = weights.fit_to_weights(config, checkpoints)
    data, shape = fitted.data, registry.configured_shape(fitted.data)
    outputs = registry.find_source(data.name).classes
    if data.download and not files_exist(data.name, Path(data.root)) and shape is not None and outputs is not None:
        samples = EmptySource(labels=torch.arange(outputs), stored=shape.stored)
        classes = tuple(map(str, range(outputs)))
        if isinstance(class_weights := config.optim.class_weights, dict) and len(class_weights) == outputs:
            classes = tuple(class_weights)  # the true names are in the files
        splits = DataSplits(training=samples, validation=samples, classes=classes, shape=shape)
    else:
        splits = registry.open_splits(data)
    return fitted, with_evaluation_size(splits, config.eval.image_size)


def describe_data(data: DataConfig, splits: DataSplits) -> DataSummary:
    """The summary, with all that a resumed run compares unless the data is still to be fetched."""
    if not splits.training.can_be_read:
        return registry.summarize(data)
    return registry.summarize(data, splits, data_fingerprint(splits, data.root))


def preview_network(
    resolved: ResolvedConfig,
    plan: Plan,
    batch: BatchSizes,
    *,
    splits: DataSplits,
    steps: StepCounts,
    is_here: bool,
    is_new_run: bool,
) -> tuple[int, Sequence[str]]:
    """Compare the config with the samples, build the network for them, load its weights, and build its optimizer.

    Returns how many parameters a start would train, and its notes: those of the weights come first.

    splits: of `open_data`. is_here: whether the training could start on this machine.

    Raises:
        Failure: as a start, for what the data, the network, weights, the optimizer or a tracker do not fit.
    """
    config = resolved.requested
    if plan.device == "cuda" and torch.cuda.is_available():
        device.choose_precision(config.train.precision, torch.device("cuda", 0))
    device_type = plan.device if is_here else "cuda"
    refuse_unfit_data(config, splits, batch, torch.device(device_type), attempt=torch.cuda.is_available())
    if any(map(schema.is_factory, config.log.trackers)):
        from train.logging.trackers import load_tracker_classes  # a second, for Accelerate

        load_tracker_classes(config.log.trackers)
    if not schema.is_factory(config.model.name):
        # There only shapes are computed, which is fast for large networks too. It knows less than the CPU: for
        # whatever it refuses, the CPU has the last word.
        with suppress(Exception), torch.device("meta"):
            return _build(resolved, plan, batch, splits, steps, is_new_run)
    return _build(resolved, plan, batch, splits, steps, is_new_run)


def _build(
    resolved: ResolvedConfig, plan: Plan, batch: BatchSizes, splits: DataSplits, steps: StepCounts, is_new_run: bool
) -> tuple[int, Sequence[str]]:
    """The parts of `build_trainer` that depend on the network, in the same order."""
    config = resolved.requested
    components = build_components(resolved, splits, batches=batch, steps=steps)
    network, task = components.network, components.task
    notes = load_initial_weights(config, network, splits, is_new_run=is_new_run)
    parameters = count_parameters(network)
    example = task.example(2, splits.shape, torch.device("cpu"))
    strategy_class(config.train, plan.world.world_size).refuse_unfit_network(
        network, lambda model: task.loss(model, example)
    )
    adapt_for_training(config, network, plan.world.world_size)
    return parameters, (*notes, *image_file_notes(config.data, splits))
