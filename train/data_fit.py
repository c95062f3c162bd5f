"""Compares a config with its data, in a start and in `train check`, and says whether image files are such samples."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from entrypoint import ExitCode, Failure, list_some
from train import plugin
from train.config import checks
from train.config.batches import BatchSizes
from train.config.schema import DataConfig, OptimConfig, RunConfig, is_factory
from train.data import registry, statistics
from train.data.augmenter import build_augmenter, refuse_stored_images
from train.data.gpu_decoding import refuse_gpu_decoding
from train.data.preprocessing import configured_preprocessing, refuse_other_channels
from train.data.shape import COLOR_CHANNELS, Shape
from train.data.splits import DataSplits, SampleOrigin, SampleSource
from train.evaluation import early_stopping
from train.evaluation.validator import refuse_flips
from train.tasks.base import LOSS_KEY
from train.tasks.registry import open_task


def refuse_unfit_data(
    config: RunConfig, splits: DataSplits, batches: BatchSizes, device: torch.device, *, attempt: bool = True
) -> None:
    """Compare all that the config asks of the samples with them.

    attempt: whether the device is here, so that it can try to decode an image.

    Raises:
        Failure: USAGE; DATA for a class without samples that is to be weighted; and as `refuse_gpu_decoding`.
    """
    refuse_flips(config.eval, splits)
    early_stopping.refuse_unusable_metric(
        config.eval, validation_images=len(splits.validation.labels), classes=max(len(splits.classes), 2)
    )
    refuse_stored_images(splits, config.data)
    augmenter = build_augmenter(splits, config.data, config.run.seed)
    refuse_other_channels(configured_preprocessing(config.data), splits.shape.channels)
    statistics.labels_to_balance(config.data, splits)  # refuses labels that cannot be balanced
    task = open_task(splits.task, splits.classes, splits.target, config.optim)
    task.for_training(splits.training.labels, torch.device("cpu"))
    if is_factory(config.optim.loss):
        is_weighted = splits.weights is not None or config.optim.class_weights != "none" or bool(augmenter.mixes)
        _refuse_unfit_loss(config.optim, splits, is_weighted=is_weighted)
    refuse_gpu_decoding(config.data, splits, augmenter, device, attempt=attempt)
    if not checks.searches_micro_batch(config.train, device.type):  # else it is not known yet
        augmenter.refuse_odd_micro_batch(batches.micro)


def _refuse_unfit_loss(optim: OptimConfig, splits: DataSplits, *, is_weighted: bool) -> None:
    """Try the user's own loss on two samples. is_weighted: whether samples count differently, or are mixed.

    Raises:
        Failure: USAGE, as `plugin.call_factory`, and for a result that this training cannot use.
    """
    unweighted = replace(optim, class_weights="none")  # else weights [n] would hide that the loss is a mean
    task = open_task(splits.task, splits.classes, splits.target, unweighted)
    task = task.for_training(splits.training.labels, torch.device("cpu"))
    if isinstance(task.own_loss, nn.Module) and any(weight.requires_grad for weight in task.own_loss.parameters()):
        raise Failure(
            f"{LOSS_KEY} {optim.loss} has weights of its own, which nothing would train",
            found=list_some([name for name, weight in task.own_loss.named_parameters() if weight.requires_grad]),
            fix="give it fixed numbers or buffers, or make its weights a part of the network",
            code=ExitCode.USAGE,
        )
    labels = task.collate(None, splits.training.labels[:2])["label"]
    outputs = torch.zeros((len(labels), len(splits.classes)), requires_grad=True)
    result = plugin.call_factory(optim.loss, LOSS_KEY, outputs, labels, factory=task.training_losses)
    sizes = [*result.shape] if isinstance(result, torch.Tensor) and result.requires_grad else None
    if sizes == [len(labels)] or (sizes == [] and not is_weighted):
        return
    raise Failure(
        f"{LOSS_KEY} {optim.loss} does not return what this run can be trained on",
        found=f"{type(result).__name__} {[*getattr(result, 'shape', ())]}{' without a gradient' * (sizes is None)}, "
        f"for outputs {[*outputs.shape]} and labels {[*labels.shape]}",
        expected=f"a tensor [{len(labels)}], the loss of each sample"
        + (": they have weights or are mixed" if is_weighted else "; or their mean, []"),
        fix="compute it from the outputs with torch; in losses of torch.nn set reduction='none'",
        code=ExitCode.USAGE,
    )


def sample_origin(data: DataConfig, source: SampleSource) -> SampleOrigin:
    """The origin of the samples that `source` reads."""
    return "files" if registry.find_source(data.name).channels is not None else source.origin


def describe_image_file_obstacle(shape: Shape, *, bytes_: bool) -> str | None:
    """Why no image file can become such a sample; None if it can. bytes_: samples are bytes, not floats."""
    if len(shape.size) != 2:
        return f"clips of {shape.size[0]} frames"
    if not bytes_:
        return f"samples of {shape}, as floats: how they were made from images is known to whoever wrote the data"
    if shape.channels not in COLOR_CHANNELS.values():
        return f"samples of {shape}; image files become images of 1 or 3 channels"
    return None


def image_file_notes(data: DataConfig, splits: DataSplits) -> tuple[str, ...]:
    """A note if `train predict` will refuse image files, or read them otherwise than these arrays were made."""
    if sample_origin(data, splits.training) != "arrays":
        return ()
    is_own = registry.find_source(data.name).origin == "factory"
    way = "let the data set return PIL images" if is_own else "train on the image files: data.name=folder or table"
    obstacle = describe_image_file_obstacle(splits.shape, bytes_=not splits.floats)
    if obstacle is None:
        return (f"`train predict` is right only for image files made into arrays as these were; or {way}",)
    may_be_images = describe_image_file_obstacle(splits.shape, bytes_=True) is None
    text = f"`train predict` will not take image files: {obstacle}"
    return (f"{text}. fix: {way}" if may_be_images else text,)
