"""From package.module:factory to the user's own network, shown to take the data and to give one score per class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from entrypoint import ExitCode, Failure
from train import plugin
from train.data.shape import Shape
from train.models import trial
from train.settings.config import Model

KEY = "model.name"
# torch's own layers that compute otherwise while they train. Of other layers nobody knows.
TWO_MODES: Final = (_NormBase, _DropoutNd, nn.MultiheadAttention, nn.RNNBase)
SHOWN: Final = 3  # names in one line
Trial = Callable[[nn.Module, Shape, int], str | None]
TRIALS: Final[Mapping[Trial, str]] = {trial.with_zeros: "", trial.as_it_trains: " while it trains"}


def build(model: Model, *, classes: int, shape: Shape, factory: Callable[..., Any] | None = None) -> nn.Module:
    """What `factory(classes=, shape=, **model.args)` gives; a factory that names no `shape` gets none.

    factory: instead of the one that model.name names.

    A network that is in evaluation mode as a whole is given back to train: libraries hand trained ones out so. Parts
    of it stay as they are: somebody has frozen them (see `notes`).

    Raises:
        Failure: USAGE, where it cannot be found or called so, fails, or gives something else than such a network.
    """
    factory = factory or plugin.load(model.name, KEY)
    options = _options(factory, model, classes, shape)
    net = plugin.call(model.name, KEY, factory=factory, **options)
    if not isinstance(net, nn.Module):
        raise _refused(model, f"it gives a {type(net).__name__}", "a torch.nn.Module", "return the network")
    if not any(module.training for module in net.modules()):
        net.train()
    for trying, when in TRIALS.items():
        _refuse_unfit(model, net, classes, shape, trying, when)
    return net


def notes(net: nn.Module) -> tuple[str, ...]:
    """What is worth saying of a network: the parts that are in evaluation mode, and are trained so."""
    still = [
        name or "the network itself"
        for name, module in net.named_modules()
        if not module.training
        and (isinstance(module, TWO_MODES) or not type(module).__module__.startswith("torch.nn."))
    ]
    if not still:
        return ()
    named = ", ".join(still[:SHOWN]) + (", ..." if len(still) > SHOWN else "")
    return (
        f"{len(still)} of the network's modules ({named}) are in evaluation mode, as the factory gives them, and stay "
        "so: no dropout there, and no new BatchNorm statistics; call .train() in the factory unless that is meant",
    )


def refuse_not_finite(model: Model, net: nn.Module) -> None:
    """Before the first step: a checkpoint's numbers are finite, or the training has diverged.

    Raises:
        Failure: USAGE, naming the tensor.
    """
    weights = dict(net.named_parameters(remove_duplicate=False))
    for name, tensor in net.state_dict().items():
        if not isinstance(tensor, Tensor) or tensor.isfinite().all():
            continue
        kind = "weight" if name in weights else "buffer"
        never = "register it with persistent=False: then no checkpoint holds it, and it may hold what it likes"
        raise Failure(
            f"{KEY} {model.name} gives a network that holds numbers which are not finite, before its first step",
            found=f"the {kind} {name} holds {tensor[~tensor.isfinite()][0].item()}",
            expected="finite numbers in all that a checkpoint keeps (the network's state_dict)",
            fix="give it first numbers in the factory" if kind == "weight" else never,
            code=ExitCode.USAGE,
        )


def _refuse_unfit(model: Model, net: nn.Module, classes: int, shape: Shape, trying: Trial, when: str) -> None:
    try:
        wrong = trying(net, shape, classes)
    except Failure:
        raise
    except Exception as error:
        raise plugin.failed(f"{KEY} {model.name}: its network fails on samples of {shape}{when}", error) from error
    if wrong:
        expected = f"scores [n, {classes}] for samples [n, {', '.join(map(str, shape.input))}], from all its weights"
        fix = "mend the network, or freeze what takes no part (requires_grad=False)"
        raise _refused(model, f"{wrong}{when}", expected, fix)


def _options(factory: Callable[..., Any], model: Model, classes: int, shape: Shape) -> dict[str, Any]:
    """The keywords to call the factory with."""
    offered: dict[str, Any] = {"classes": classes, "shape": shape}
    try:
        signature = inspect.signature(factory)
    except ValueError:  # not written in Python
        return offered | model.args
    if twice := offered.keys() & model.args.keys():
        raise _refused(model, f"model.args: {', '.join(sorted(twice))}", "what the data decides", "leave it out")
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if "shape" not in signature.parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
        del offered["shape"]
    try:
        signature.bind(**offered, **model.args)
    except TypeError as error:
        found, expected = f"{error}; it takes {signature}", "factory(classes=, shape=, **model.args)"
        raise _refused(model, found, expected, "correct model.args, or the factory's parameters") from error
    return offered | model.args


def _refused(model: Model, found: str, expected: str, fix: str) -> Failure:
    what = f"{KEY} {model.name} gives no network for this data"
    return Failure(what, found=found, expected=expected, fix=fix, code=ExitCode.USAGE)
