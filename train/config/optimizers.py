"""This table describes torch's optimizers, and the learning rates that suit them, without loading torch.

A test compares it with torch. A new class of torch.optim needs one row. A class from another package
needs none: optim.name names it as `package.module:Class`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchOptimizer:
    """A class of torch.optim.

    arguments: what optim.args may set. takes_momentum, takes_weight_decay: whether optim.momentum
    and optim.weight_decay have an effect. learning_rate: what optim.lr auto takes for random weights and a global
    batch of 256; None: there is no usual one. scaling: how it grows with the global batch, as optim.lr_scaling.
    regression_share: how much of it numbers take.
    """

    class_name: str
    arguments: Sequence[str]
    takes_momentum: bool = False
    takes_weight_decay: bool = True
    learning_rate: float | None = None
    scaling: str = "sqrt"
    regression_share: float = 1.0


_COMMON: Final = ("foreach", "maximize", "differentiable")
_ADAM: Final = ("betas", "eps", "amsgrad", "capturable", "fused", *_COMMON)
_CLASSES: Final = (
    TorchOptimizer(class_name="ASGD", arguments=("lambd", "alpha", "t0", "capturable", *_COMMON)),
    TorchOptimizer(class_name="Adadelta", arguments=("rho", "eps", "capturable", *_COMMON), learning_rate=1.0),
    TorchOptimizer(
        class_name="Adafactor", arguments=("beta2_decay", "eps", "d", "foreach", "maximize"), learning_rate=1e-2
    ),
    TorchOptimizer(
        class_name="Adagrad",
        arguments=("lr_decay", "initial_accumulator_value", "eps", "fused", *_COMMON),
        learning_rate=1e-2,
    ),
    TorchOptimizer(class_name="Adam", arguments=("decoupled_weight_decay", *_ADAM), learning_rate=1e-3),
    TorchOptimizer(class_name="AdamW", arguments=_ADAM, learning_rate=1e-3),
    TorchOptimizer(class_name="Adamax", arguments=("betas", "eps", "capturable", *_COMMON), learning_rate=2e-3),
    TorchOptimizer(
        class_name="NAdam",
        arguments=("betas", "eps", "momentum_decay", "decoupled_weight_decay", "capturable", *_COMMON),
        learning_rate=1e-3,
    ),
    TorchOptimizer(
        class_name="RAdam",
        arguments=("betas", "eps", "decoupled_weight_decay", "capturable", *_COMMON),
        learning_rate=1e-3,
    ),
    TorchOptimizer(
        class_name="RMSprop",
        arguments=("alpha", "eps", "momentum", "centered", "capturable", *_COMMON),
        learning_rate=1e-3,
    ),
    TorchOptimizer(
        class_name="Rprop", arguments=("etas", "step_sizes", "capturable", *_COMMON), takes_weight_decay=False
    ),
    TorchOptimizer(
        class_name="SGD",
        arguments=("dampening", "nesterov", "fused", *_COMMON),
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
    entry = OPTIMIZERS.get(name)
    if entry is None or entry.learning_rate is None:
        return None
    shares = (FINE_TUNING_SHARE if is_fine_tuning else 1.0, entry.regression_share if is_regression else 1.0)
    rate, chosen = entry.learning_rate * min(shares), entry.scaling if scaling == "none" else scaling
    return scale_learning_rate(rate, chosen, global_batch_size / AUTO_BATCH_SIZE)
