"""`refuse_unfit_data` refuses a config that asks for what its data does not have, in a start and in `train check`."""

from __future__ import annotations

import torch

from train.config import checks
from train.config.batches import BatchSizes
from train.config.schema import RunConfig
from train.data import statistics
from train.data.augmenter import build_augmenter, refuse_stored_images
from train.data.gpu_decoding import refuse_gpu_decoding
from train.data.preprocessing import configured_preprocessing, refuse_other_channels
from train.data.splits import DataSplits
from train.evaluation import early_stopping
from train.evaluation.evaluate import refuse_flips
from train.optim import loss


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
    statistics.refuse_unbalanced_labels(config.data, splits)
    loss.build_task_criterion(config.optim, splits)
    refuse_gpu_decoding(config.data, splits, augmenter, device, attempt=attempt)
    if not checks.searches_micro_batch(config.train, device.type):  # else it is not known yet
        augmenter.refuse_odd_micro_batch(batches.micro)
