"""Gives a new network its first weights: those that `model.weights` names, or the random ones that it has already."""

from __future__ import annotations

from torch import nn

from train.config import schema
from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.models import custom, weights


def load_initial_weights(
    model: ModelConfig, network: nn.Module, shape: Shape, *, is_new_run: bool = True
) -> tuple[str, ...]:
    """Load `model.weights` into the network of a new run, and look for mistakes in a user's own network.

    Returns notes: the first ones are those of `weights.load_weights`.

    Raises:
        Failure: as `weights.load_weights`; USAGE for weights of a user's own network that are not finite.
    """
    notes = weights.load_weights(network, model.weights, model.name) if model.weights and is_new_run else ()
    if is_new_run and schema.is_factory(model.name):
        custom.refuse_nonfinite_weights(model, network)
        notes = (*notes, *custom.softmax_notes(model, network, shape))
    return (*notes, *custom.eval_mode_notes(network))
