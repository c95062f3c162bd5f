"""Builds the network and the optimizer of a run as a start does, so that `train check` refuses what a start would.

It loads torch, and for some models timm. Nothing is trained, and nothing is written.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import torch

from entrypoint import Plan
from train import plugin
from train.config import schema
from train.config.schema import RunConfig
from train.data.shape import Shape
from train.distributed import device, sync_batchnorm
from train.models import registry, weights
from train.models.activation_checkpointing import enable_activation_checkpointing
from train.models.freezing import build_freezing
from train.models.initial_weights import load_initial_weights
from train.optim.optimizer import build_optimizer
from train.optim.schedule import resolve_learning_rate
from train.run.folder import run_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPreview:
    """What a start would build. parameters: how many are trained. notes: of the weights, the first ones, and others."""

    parameters: int
    notes: tuple[str, ...]


def preview_network(
    config: RunConfig, plan: Plan, *, outputs: int, shape: Shape, steps_per_epoch: int, source: str | None
) -> NetworkPreview:
    """Build the network for samples of this shape, load its weights, and build its optimizer.

    source: the config's file, in whose folder the user's own modules are.

    Raises:
        Failure: as a start, for a network, weights or an optimizer that do not fit.
    """
    plugin.add_config_folder_to_path(source, config.model.name, config.optim.name)
    if plan.device == "cuda" and torch.cuda.is_available():
        device.choose_precision(config.train.precision, torch.device("cuda", 0))
    if not schema.is_factory(config.model.name):
        # There only shapes are computed, which is fast for large networks too. It knows less than the CPU: for
        # whatever it refuses, the CPU has the last word.
        with suppress(Exception), torch.device("meta"):
            return _build(config, plan, outputs, shape, steps_per_epoch)
    return _build(config, plan, outputs, shape, steps_per_epoch)


def _build(config: RunConfig, plan: Plan, outputs: int, shape: Shape, steps_per_epoch: int) -> NetworkPreview:
    """The parts of `build_trainer` that depend on the network, in the same order."""
    checkpoints = run_folder(config) / "checkpoints"
    resumes = config.checkpoint.resume == "auto" and any(checkpoints.glob("step-*"))
    model = weights.fit_stem(config.model, checkpoints if config.checkpoint.resume == "auto" else None)
    network = registry.build_model(model, classes=outputs, shape=shape, seed=config.run.seed)
    freezing = build_freezing(model, network, steps_per_epoch)
    if freezing is not None and freezing.until is None:
        freezing.freeze_parameters(True)
    build_optimizer(resolve_learning_rate(config), network, fused=False)
    notes = load_initial_weights(model, network, shape, is_new_run=not resumes)
    parameters = registry.count_parameters(network)
    if config.train.sync_batchnorm:
        network = sync_batchnorm.convert_sync_batchnorm(network, plan.world.world_size)
    if config.train.activation_checkpointing:
        enable_activation_checkpointing(network, model.name)
    return NetworkPreview(parameters=parameters, notes=notes)
