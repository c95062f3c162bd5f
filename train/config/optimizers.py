"""This table names torch's optimizers, and the learning rates that suit them, without loading torch.

A new class of torch.optim needs one row; a test compares the names. What optim.args may set, the class itself says
where torch is loaded (`train.optim.optimizer`). A class from another package needs no row: optim.name names it as
`package.module:Class`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchOptimizer:
    """A class of torch.optim."""

    class_name: str
    takes_momentum: bool = False  # whether optim.momentum has an effect
    takes_weight_decay: bool = True  # whether optim.weight_decay has one
    # What optim.lr auto takes for random weights and a global batch of 256; None: there is no usual one.
    learning_rate: float | None = None
    scaling: str = "sqrt"  # how this rate grows with the global batch, as optim.lr_scaling
    regression_share: float = 1.0  # of this rate, for numbers


_CLASSES: Final = (
    TorchOptimizer(class_name="ASGD"),
    TorchOptimizer(class_name="Adadelta", learning_rate=1.0),
    TorchOptimizer(class_name="Adafactor", learning_rate=1e-2),
    TorchOptimizer(class_name="Adagrad", learning_rate=1e-2),
    TorchOptimizer(class_name="Adam", learning_rate=1e-3),
    TorchOptimizer(class_name="AdamW", learning_rate=1e-3),
    TorchOptimizer(class_name="Adamax", learning_rate=2e-3),
    TorchOptimizer(class_name="NAdam", learning_rate=1e-3),
    TorchOptimizer(class_name="RAdam", learning_rate=1e-3),
    TorchOptimizer(class_name="RMSprop", learning_rate=1e-3),
    TorchOptimizer(class_name="Rprop", takes_weight_decay=False),
    TorchOptimizer(
        class_name="SGD",
        takes_momentum=True,
        learning_rate=0.1,
        scaling="linear",
        regression_share=0.1,  # the gradient of a squared error has no bound
    ),
)
_BY_CLASS: Final = {entry.class_name: entry for entry in _CLASSES}
# By optim.name: the short names first.
OPTIMIZERS: Final[Mapping[str, TorchOptimizer]] = {
    "sgd": _BY_CLASS["SGD"],
    "adam": _BY_CLASS["Adam"],
    "adamw": _BY_CLASS["AdamW"],
    **_BY_CLASS,
}


def find_optimizer(name: str) -> TorchOptimizer:
    """The entry of this `optim.name`. Only loading another package's class shows what it takes: it may take all."""
    return OPTIMIZERS.get(name) or TorchOptimizer(class_name=name, takes_momentum=True)


# Trained weights are good already: steps as large as those from random weights would destroy them first.
FINE_TUNING_SHARE: Final = 0.1
AUTO_BATCH_SIZE: Final = 256


def scale_learning_rate(rate: float, scaling: str, times: float) -> float:
    """The rate for a global batch so many times as large. scaling: as optim.lr_scaling.

    linear: Goyal et al., Accurate, large minibatch SGD, 2017. sqrt: Krizhevsky, One weird trick, 2014.
    """
    return rate * {"none": 1.0, "linear": times, "sqrt": math.sqrt(times)}[scaling]


def usual_learning_rate(
    name: str, scaling: str, global_batch_size: int, *, is_fine_tuning: bool, is_regression: bool
) -> float | None:
    """The highest learning rate that optim.lr auto stands for; None for an optimizer without a usual one.

    name, scaling: as optim.name and optim.lr_scaling; `none` is the optimizer's own scaling. docs/training.md names the
    source of each number.
    """
    entry = find_optimizer(name)
    if entry.learning_rate is None:
        return None
    shares = (FINE_TUNING_SHARE if is_fine_tuning else 1.0, entry.regression_share if is_regression else 1.0)
    rate, chosen = entry.learning_rate * min(shares), entry.scaling if scaling == "none" else scaling
    return scale_learning_rate(rate, chosen, global_batch_size / AUTO_BATCH_SIZE)
