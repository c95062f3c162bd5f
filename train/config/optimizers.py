"""This table describes torch's optimizers, and the learning rates that suit them, without loading torch.

A test compares it with torch. A new class of torch.optim needs one row. A class from another package
needs none: optim.name names it as `package.module:Class`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchOptimizer:
    """A class of torch.optim.

    arguments: what optim.args may set. takes_momentum, takes_weight_decay: whether optim.momentum
    and optim.weight_decay have an effect. learning_rate: what optim.lr auto takes for random weights and a global
    batch of 256; None: there is no usual one. scaling: how it grows with the global batch, as optim.lr_scaling.
    """

    class_name: str
    arguments: Sequence[str]
    takes_momentum: bool = False
    takes_weight_decay: bool = True
    learning_rate: float | None = None
    scaling: str = "sqrt"


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
