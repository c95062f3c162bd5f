"""The words that model.args and optim.args may hold, known without torch: a slip is told before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train.settings.advice import nearest
from train.settings.config import Model, Optim

# Tests compare both tables with the code. What torchvision's models take, only building them tells.
MODELS: Final[Mapping[str, Sequence[str]]] = {
    "small_cnn": ("width", "blocks", "norm", "dropout", "pool"),
    "wide_resnet": ("depth", "width", "dropout"),
    "cnn3d": ("width", "blocks", "norm", "dropout"),
}
_ALL: Final = ("foreach", "maximize", "differentiable")
_ADAM: Final = ("betas", "eps", "amsgrad", "capturable", "fused", *_ALL)
_SGD: Final = ("dampening", "nesterov", "fused", *_ALL)
OPTIMIZERS: Final[Mapping[str, Sequence[str]]] = {
    "sgd": _SGD,
    "SGD": _SGD,
    "adam": ("decoupled_weight_decay", *_ADAM),
    "Adam": ("decoupled_weight_decay", *_ADAM),
    "adamw": _ADAM,
    "AdamW": _ADAM,
    "ASGD": ("lambd", "alpha", "t0", "capturable", *_ALL),
    "Adadelta": ("rho", "eps", "capturable", *_ALL),
    "Adafactor": ("beta2_decay", "eps", "d", "foreach", "maximize"),
    "Adagrad": ("lr_decay", "initial_accumulator_value", "eps", "fused", *_ALL),
    "Adamax": ("betas", "eps", "capturable", *_ALL),
    "NAdam": ("betas", "eps", "momentum_decay", "decoupled_weight_decay", "capturable", *_ALL),
    "RAdam": ("betas", "eps", "decoupled_weight_decay", "capturable", *_ALL),
    "RMSprop": ("alpha", "eps", "momentum", "centered", "capturable", *_ALL),
    "Rprop": ("etas", "step_sizes", "capturable", *_ALL),
}


def refuse_unknown(model: Model, optim: Optim) -> None:
    """Refuse an argument that the model or the optimizer does not have. Values are tried at the start, with torch.

    Raises:
        Failure: USAGE, naming the argument and the nearest one that there is.
    """
    if model.name in MODELS:
        _refuse("model.args", model.name, model.args, MODELS[model.name])
    _refuse("optim.args", optim.name, optim.args, OPTIMIZERS[optim.name])


def _refuse(key: str, name: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = [word for word in given if word not in known]
    if unknown:
        close = nearest(unknown[0], known, 0.75)
        raise Failure(
            f"{key} do not fit {name}",
            found=f"unknown: {', '.join(unknown)}",
            expected=f"values for: {', '.join(known)}",
            fix=f"write {key}.{close} instead of {key}.{unknown[0]}" if close else f"correct {key}, or leave it out",
            code=ExitCode.USAGE,
        )
