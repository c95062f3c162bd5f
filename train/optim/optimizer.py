"""Builds the optimizer that `optim.name` names, and decides which parameters get weight decay."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from entrypoint import ExitCode, Failure
from train.config.schema import OptimConfig
from train.optim.uncompiled import uncompiled_class

OPTIMIZER_ALIASES: Final[Mapping[str, type[Optimizer]]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
# The config has keys of its own for these, so that `optim.args` may not set them.
RESERVED_ARGUMENTS: Final = ("params", "lr", "weight_decay")
KERNEL_ARGUMENTS: Final = frozenset({"fused", "foreach", "capturable", "differentiable"})  # arguments that choose some
CPU: Final = torch.device("cpu")
# What arguments without sense end in, inside torch.
BUILD_ERRORS: Final = (
    TypeError,
    ValueError,
    RuntimeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
)


def build_optimizer(optim: OptimConfig, net: nn.Module, device: torch.device = CPU, *, fused: bool = True) -> Optimizer:
    """The optimizer of `optim.name` for all that is trained in `net`, with `optim.args` handed on.

    device: where `net` will be trained; steps of one number are tried there, since torch looks at much only then.
    fused: whether one kernel may update all parameters, where there is such a kernel and `optim.args` leaves it open.

    optim.weight_decay goes to every optimizer that has one, optim.momentum to SGD alone.

    Raises:
        Failure: USAGE for arguments that it does not take.
    """
    kind = optimizer_class(optim.name)
    takes = inspect.signature(kind).parameters
    ours = {name: value for name, value in _config_arguments(optim, kind).items() if name in takes}
    known = [name for name in takes if name not in RESERVED_ARGUMENTS and name not in ours]
    if unknown := [name for name in optim.args if name not in known]:
        raise _bad_arguments_failure(optim, f"unknown: {', '.join(unknown)}", known)
    if vague := [
        name for name, value in optim.args.items() if _is_bool_argument(takes[name]) and not _is_bool_or_none(value)
    ]:
        raise _bad_arguments_failure(optim, f"{vague[0]} is true or false, not {optim.args[vague[0]]!r}", known)
    options = ours | _lists_to_tuples(optim.args)
    try:
        _try_step(kind, options, device)
        kernels = {"fused": True} if fused and _supports_fused(kind, options, device, param_groups(net, optim)) else {}
        made = uncompiled_class(kind)(param_groups(net, optim), **options, **kernels)  # type: ignore[arg-type]
    except BUILD_ERRORS as error:
        raise _bad_arguments_failure(optim, str(error) or type(error).__name__, known) from error
    if kernels and kind is SGD:
        _init_momentum(made)
        made.register_load_state_dict_post_hook(_init_momentum)
    return made


def optimizer_class(name: str) -> type[Optimizer]:
    """Ours by their short names, the others as torch.optim spells them."""
    kind: type[Optimizer] = OPTIMIZER_ALIASES.get(name) or getattr(torch.optim, name)
    return kind


def param_groups(net: nn.Module, optim: OptimConfig) -> list[dict[str, Any]]:
    """The parameters in one group, or in two: without weight decay those of one dimension (biases and norms)."""
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    if optim.weight_decay_on == "all":
        return [{"params": parameters}]
    weights = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() <= 1]
    made: list[dict[str, Any]] = [{"params": weights}, {"params": others, "weight_decay": 0.0}]
    return [group for group in made if group["params"]]


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Use `rate` from now on, in place where the optimizer keeps it as a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], float):
            group["lr"] = rate
        else:
            group["lr"].fill_(rate)


def _config_arguments(optim: OptimConfig, kind: type[Optimizer]) -> dict[str, float]:
    momentum = {"momentum": optim.momentum} if kind is SGD else {}
    return {"lr": optim.lr, "weight_decay": optim.weight_decay, **momentum}


def _is_bool_argument(parameter: inspect.Parameter) -> bool:
    """Any text would count as true: `nesterov: no`, which YAML 1.2 reads as text, too."""
    return isinstance(parameter.default, bool) or "bool" in str(parameter.annotation)


def _is_bool_or_none(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _try_step(kind: type[Optimizer], options: Mapping[str, Any], device: torch.device) -> None:
    one = nn.Parameter(torch.ones((1, 1), device=device))
    one.grad = torch.zeros_like(one)
    made = uncompiled_class(kind)([one], **options)
    for _ in range(2):  # SGD looks at dampening in its second step
        made.step()


def _supports_fused(
    kind: type[Optimizer], options: Mapping[str, Any], device: torch.device, groups: list[dict[str, Any]]
) -> bool:
    """Whether all parameters can be updated by one kernel: 4 to 5 times less work for the CPU that launches it."""
    if "fused" not in inspect.signature(kind).parameters or not KERNEL_ARGUMENTS.isdisjoint(options):
        return False
    if options.get("dampening") or not all(one.is_floating_point() for group in groups for one in group["params"]):
        return False
    with suppress(*BUILD_ERRORS):
        _try_step(kind, {**options, "fused": True}, device)
        return True
    return False


def _init_momentum(optimizer: Optimizer) -> None:
    """Give every parameter its momentum, of zeros. The fused kernel makes them in the first step, and breaks where a
    part of the network is used later for the first time."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)


def _lists_to_tuples(args: Mapping[str, Any]) -> dict[str, Any]:
    """YAML has no tuples, and `betas` wants one."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in args.items()}


def _bad_arguments_failure(optim: OptimConfig, found: str, known: list[str]) -> Failure:
    return Failure(
        f"optim.args do not fit {optim.name}",
        found=f"{optim.args}: {found}",
        expected=f"values for: {', '.join(known)}",
        fix="correct optim.args, or leave it out",
        code=ExitCode.USAGE,
    )
