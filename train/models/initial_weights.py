"""Gives a new network its first weights: those that `model.weights` names, or the random ones that it has already."""

from __future__ import annotations

from typing import Final

from torch import nn

from train.config import schema
from train.config.models import weights_path
from train.config.schema import DataConfig, ModelConfig
from train.data.splits import DataSplits
from train.models import custom, weights

UNKNOWN_NORMALIZATION: Final = (
    "the weights' normalization is not known: images get that of this project, (byte - 127.5) / 63.75. fix: set "
    "data.normalize to what they were trained with; for ImageNet's 'data.normalize={mean: [0.485, 0.456, 0.406], "
    "std: [0.229, 0.224, 0.225]}'"
)


def load_initial_weights(
    model: ModelConfig, data: DataConfig, network: nn.Module, splits: DataSplits, *, is_new_run: bool = True
) -> tuple[str, ...]:
    """Load `model.weights` into the network of a new run, and look for mistakes in a user's own network.

    data: after `weights.fit_preprocessing`. Returns notes: the first ones are those of `weights.load_weights`.

    Raises:
        Failure: as `weights.load_weights`; USAGE for weights of a user's own network that are not finite.
    """
    notes = weights.load_weights(network, model.weights, model.name) if model.weights and is_new_run else ()
    if notes and data.normalize == "auto" and not splits.floats and not weights_path(str(model.weights)).is_dir():
        notes = (*notes, UNKNOWN_NORMALIZATION)
    if is_new_run and schema.is_factory(model.name):
        custom.refuse_nonfinite_weights(model, network)
        notes = (*notes, *custom.softmax_notes(model, network, splits.shape))
    return (*notes, *custom.eval_mode_notes(network))
