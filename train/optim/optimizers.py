"""From the config and a network to an optimizer; what decays is decided here too."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from entrypoint import ExitCode, Failure
from train.optim.uncompiled import uncompiled
from train.settings.config import Optim

SHORT: Final[Mapping[str, type[Optimizer]]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
# The config has keys of its own for these, so that `optim.args` may not set them.
OURS: Final = ("params", "lr", "weight_decay")
KERNELS: Final = frozenset({"fused", "foreach", "capturable", "differentiable"})  # arguments that choose some
CPU: Final = torch.device("cpu")
# What arguments without sense end in, inside torch.
UNFIT: Final = (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError, AttributeError, AssertionError)


def build(optim: Optim, net: nn.Module, device: torch.device = CPU, *, fused: bool = True) -> Optimizer:
    """The optimizer of `optim.name` for all that is trained in `net`, with `optim.args` handed on.

    device: where `net` will be trained; steps of one number are tried there, since torch looks at much only then.
    fused: whether one kernel may update all parameters, where there is such a kernel and `optim.args` leaves it open.

    optim.weight_decay goes to every optimizer that has one, optim.momentum to SGD alone.

    Raises:
        Failure: USAGE for arguments that it does not take.
    """
    kind = optimizer_class(optim.name)
    takes = inspect.signature(kind).parameters
    ours = {name: value for name, value in _ours(optim, kind).items() if name in takes}
    known = [name for name in takes if name not in OURS and name not in ours]
    if unknown := [name for name in optim.args if name not in known]:
        raise _bad_arguments(optim, f"unknown: {', '.join(unknown)}", known)
    if vague := [name for name, value in optim.args.items() if _is_switch(takes[name]) and not _is_setting(value)]:
        raise _bad_arguments(optim, f"{vague[0]} is true or false, not {optim.args[vague[0]]!r}", known)
    options = ours | _tuples(optim.args)
    try:
        _try_step(kind, options, device)
        kernels = {"fused": True} if fused and _has_fused(kind, options, device, groups(net, optim)) else {}
        made = uncompiled(kind)(groups(net, optim), **options, **kernels)  # type: ignore[arg-type]
    except UNFIT as error:
        raise _bad_arguments(optim, str(error) or type(error).__name__, known) from error
    if kernels and kind is SGD:
        _begin(made)
        made.register_load_state_dict_post_hook(_begin)
    return made


def optimizer_class(name: str) -> type[Optimizer]:
    """Ours by their short names, the others as torch.optim spells them."""
    kind: type[Optimizer] = SHORT.get(name) or getattr(torch.optim, name)
    return kind


def groups(net: nn.Module, optim: Optim) -> list[dict[str, Any]]:
    """The parameters in one group, or in two: without weight decay those of one dimension (biases and norms)."""
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    if optim.weight_decay_on == "all":
        return [{"params": parameters}]
    weights = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() <= 1]
    made: list[dict[str, Any]] = [{"params": weights}, {"params": others, "weight_decay": 0.0}]
    return [group for group in made if group["params"]]


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Use `rate` from now on, in place where the optimizer keeps it as a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], float):
            group["lr"] = rate
        else:
            group["lr"].fill_(rate)


def _ours(optim: Optim, kind: type[Optimizer]) -> dict[str, float]:
    momentum = {"momentum": optim.momentum} if kind is SGD else {}
    return {"lr": optim.lr, "weight_decay": optim.weight_decay, **momentum}


def _is_switch(parameter: inspect.Parameter) -> bool:
    """Any text would count as true: `nesterov: no`, which YAML 1.2 reads as text, too."""
    return isinstance(parameter.default, bool) or "bool" in str(parameter.annotation)


def _is_setting(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _try_step(kind: type[Optimizer], options: Mapping[str, Any], device: torch.device) -> None:
    one = nn.Parameter(torch.ones((1, 1), device=device))
    one.grad = torch.zeros_like(one)
    made = uncompiled(kind)([one], **options)
    for _ in range(2):  # SGD looks at dampening in its second step
        made.step()


def _has_fused(
    kind: type[Optimizer], options: Mapping[str, Any], device: torch.device, groups: list[dict[str, Any]]
) -> bool:
    """Whether all parameters can be updated by one kernel: 4 to 5 times less work for the CPU that launches it."""
    if "fused" not in inspect.signature(kind).parameters or not KERNELS.isdisjoint(options):
        return False
    if options.get("dampening") or not all(one.is_floating_point() for group in groups for one in group["params"]):
        return False
    with suppress(*UNFIT):
        _try_step(kind, {**options, "fused": True}, device)
        return True
    return False


def _begin(optimizer: Optimizer) -> None:
    """Give every parameter its momentum, of zeros. The fused kernel makes them in the first step, and breaks where a
    part of the network is used later for the first time."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)


def _tuples(args: Mapping[str, Any]) -> dict[str, Any]:
    """YAML has no tuples, and `betas` wants one."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in args.items()}


def _bad_arguments(optim: Optim, found: str, known: list[str]) -> Failure:
    return Failure(
        f"optim.args do not fit {optim.name}",
        found=f"{optim.args}: {found}",
        expected=f"values for: {', '.join(known)}",
        fix="correct optim.args, or leave it out",
        code=ExitCode.USAGE,
    )
