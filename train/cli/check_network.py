"""Compares a config with its data, network and optimizer as a start does, so that `train check` refuses the same.

It loads torch, and for some models timm. Nothing is trained, and nothing is written.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from entrypoint import Plan
from train.compilation import black_images
from train.components import adapt_for_training, build_components, load_initial_weights
from train.config import checks, schema
from train.config.batches import BatchSizes, StepCounts
from train.config.resolved import ResolvedConfig
from train.config.resume_rules import TEST_KEY
from train.config.schema import DataConfig, RunConfig
from train.data import registry
from train.data.download import files_exist
from train.data.image_sizes import with_evaluation_size
from train.data.registry import DataSummary
from train.data.splits import DataSplits, EmptySource
from train.data.statistics import data_fingerprint
from train.data_fit import image_file_notes, refuse_unfit_data
from train.distributed import device
from train.distributed.bitwise import BitwiseReducer, refuse_hidden_state
from train.models import weights
from train.models.registry import count_parameters
from train.run.folder import run_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPreview:
    """What a start would build. parameters: how many are trained. notes: of the weights, the first ones, and others."""

    parameters: int
    notes: tuple[str, ...]


def open_data(config: RunConfig, outputs: int | None) -> tuple[RunConfig, DataSplits]:
    """The config as its weights decide it, and the data, as a start opens it.

    Of published data that is still to be fetched it is what is known: one sample of each class, which cannot be read.
    outputs: the number of classes, as far as it is known.

    Raises:
        Failure: as `weights.fit_to_weights` and `DataSource.open`.
    """
    fitted = weights.fit_to_weights(config, _own_checkpoints(config))
    data, shape = fitted.data, registry.configured_shape(fitted.data)
    if data.download and not files_exist(data.name, Path(data.root)) and shape is not None and outputs is not None:
        samples = EmptySource(labels=torch.arange(outputs), stored=shape.stored)
        classes = tuple(map(str, range(outputs)))
        if isinstance(class_weights := config.optim.class_weights, dict) and len(class_weights) == outputs:
            classes = tuple(class_weights)  # the true names are in the files
        splits = DataSplits(training=samples, validation=samples, classes=classes, shape=shape)
    else:
        splits = registry.open_splits(data)
    return fitted, with_evaluation_size(splits, config.eval.image_size)


def summarize(data: DataConfig, splits: DataSplits) -> DataSummary:
    """The summary of data that was opened, because nothing else tells what is in it."""
    facts = data_fingerprint(splits, data.root)
    sizes = f"{facts['training']:,} for training, {facts['held_out']:,} for validation"
    return DataSummary(
        description=f"{data.name}, samples of {splits.shape}: {sizes}{registry.describe_test(facts.get(TEST_KEY, 0))}",
        training=facts["training"],
        outputs=len(splits.classes),
        facts=facts,
        warnings=splits.warnings,
        notes=splits.notes,
        task=splits.task,
    )


def with_digests(summary: DataSummary, data: DataConfig, splits: DataSplits) -> DataSummary:
    """The summary with all that a resumed run compares; unchanged of data that is still to be fetched."""
    is_fetched = not isinstance(splits.training, EmptySource)
    return replace(summary, facts=data_fingerprint(splits, data.root)) if is_fetched else summary


def _own_checkpoints(config: RunConfig) -> Path | None:
    """The checkpoints of a run that may resume."""
    return run_folder(config) / "checkpoints" if config.checkpoint.resume == "auto" else None


def preview_network(
    resolved: ResolvedConfig, plan: Plan, batch: BatchSizes, *, splits: DataSplits, steps: StepCounts, is_here: bool
) -> NetworkPreview:
    """Compare the config with the samples, build the network for them, load its weights, and build its optimizer.

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
            return _build(resolved, plan, batch, splits, steps)
    return _build(resolved, plan, batch, splits, steps)


def _build(
    resolved: ResolvedConfig, plan: Plan, batch: BatchSizes, splits: DataSplits, steps: StepCounts
) -> NetworkPreview:
    """The parts of `build_trainer` that depend on the network, in the same order."""
    config, checkpoints = resolved.requested, _own_checkpoints(resolved.requested)
    resumes = checkpoints is not None and any(checkpoints.glob("step-*"))
    network = build_components(resolved, splits, batches=batch, steps=steps).network
    notes = load_initial_weights(config, network, splits, is_new_run=not resumes)
    parameters = count_parameters(network)
    if checks.is_bitwise(config.train):
        BitwiseReducer(network, plan.world, micro_batches=1)
        refuse_hidden_state(network, black_images(2, splits.shape, torch.device("cpu")))
    adapt_for_training(config, network, plan.world.world_size)
    return NetworkPreview(parameters=parameters, notes=(*notes, *image_file_notes(config.data, splits)))
