"""`refuse_unfit_data` refuses a config that asks for what its data does not have, in a start and in `train check`."""

from __future__ import annotations

from train.config.schema import RunConfig
from train.data import statistics
from train.data.augmenter import Augmenter, build_augmenter, refuse_stored_images
from train.data.preprocessing import configured_preprocessing, refuse_other_channels
from train.data.splits import DataSplits
from train.evaluation import early_stopping
from train.evaluation.evaluate import refuse_flips
from train.optim import loss


def refuse_unfit_data(config: RunConfig, splits: DataSplits) -> Augmenter:
    """The augmenter of the training samples, after all that the config asks of the samples was compared with them.

    Raises:
        Failure: USAGE; DATA for a class without samples that is to be weighted.
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
    return augmenter
