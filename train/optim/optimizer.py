"""Builds the optimizer that `optim.name` names, and decides which parameters get weight decay."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim import optimizer as base

from entrypoint import ExitCode, Failure
from train import plugin
from train.checkpoint.format import pack_state, unpack_state
from train.config import checks, load
from train.config.optimizers import OPTIMIZERS, find_optimizer
from train.config.schema import OptimConfig
from train.fields import is_number
from train.models.depth import layer_numbers

OPTIMIZER_KEY: Final = "optim.name"
# Arguments with which a user chooses the kernel.
KERNEL_ARGUMENTS: Final = frozenset({"fused", "foreach", "capturable", "differentiable"})
CPU: Final = torch.device("cpu")
# What torchvision's models add or multiply, and call so: it has more dimensions than other biases and scales.
NO_DECAY_NAMES: Final = (
    *("*class_token", "*pos_embedding", "*spatial_pos", "*temporal_pos", "*relative_position_bias_table"),
    *("*rel_pos_[hwt]", "*logit_scale", "*layer_scale"),
)
# The methods of Optimizer, beside step, that import torch's compiler when they are called first.
COMPILER_LOADING_METHODS: Final = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
# torch raises these for bad arguments.
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
    """Build the optimizer `optim.name` for all parameters of `net` that require gradients.

    device: the device of the training. The optimizer makes trial steps there on one weight, since
    torch checks many arguments only in a step. fused: use one kernel for all parameters, if torch has
    one and `optim.args` does not choose a kernel.

    The class gets optim.lr, weight_decay and momentum if it takes them; of torch's classes only SGD
    gets the momentum. `optim.args` may set everything else.

    Raises:
        Failure: USAGE for a class that is no optimizer, for arguments that it does not take, and for
            a class outside torch.optim that fails in its trial.
    """
    assert optim.lr != "auto"  # `resolve` has replaced it
    optimizer_type, from_config, settable = check_arguments(optim)
    options = {name: getattr(optim, name) for name in from_config} | _lists_to_tuples(optim.args)
    groups = param_groups(net, optim)
    if optim.name not in OPTIMIZERS:
        return _build_custom(optim, optimizer_type, groups, options, device)
    light_type = without_compiler(optimizer_type)
    try:
        _try_steps(light_type, options, device)
        kernels = {"fused": True} if fused and _supports_fused(light_type, options, device, groups) else {}
        optimizer = light_type(groups, **options, **kernels)  # type: ignore[arg-type]
    except BUILD_ERRORS as error:
        raise _bad_arguments_failure(optim, str(error) or type(error).__name__, settable) from error
    if kernels and optimizer_type is SGD:
        _init_momentum(optimizer)
        optimizer.register_load_state_dict_post_hook(_init_momentum)
    return optimizer


def optimizer_class(name: str) -> type[Optimizer]:
    """The class that `name` names: of torch.optim, or package.module:Class.

    Raises:
        Failure: USAGE as `plugin.load_factory`, or if it is no subclass of torch.optim.Optimizer.
    """
    if name in OPTIMIZERS:
        return getattr(torch.optim, OPTIMIZERS[name].class_name)  # type: ignore[no-any-return]
    loaded: Any = plugin.load_factory(name, OPTIMIZER_KEY)
    if isinstance(loaded, type) and issubclass(loaded, Optimizer) and loaded is not Optimizer:
        return loaded
    raise Failure(
        f"{OPTIMIZER_KEY} {name} is no optimizer",
        found=f"the class {loaded.__name__}" if isinstance(loaded, type) else f"a {type(loaded).__name__}",
        expected="a subclass of torch.optim.Optimizer",
        fix="name such a class",
        code=ExitCode.USAGE,
    )


def without_compiler(optimizer_type: type[Optimizer]) -> type[Optimizer]:
    """A subclass of a class of torch.optim that computes the same, and does not load torch's compiler.

    Importing torch._dynamo takes about a second of the start of each process. torch's wrappers around these methods
    need it only for code that is being compiled, and an optimizer step is not compiled here (torch 2.15: `_compile.py`,
    and `_use_grad_for_differentiable` in `optim/optimizer.py`). Classes of other packages may need their wrappers.

    torch also records each step for a profiler and calls hooks (`profile_hook_step`): only where there is one. It is
    half of what our loop would add to a step by hand (row 4 of docs/evidence/performance.md).
    """
    step = inspect.unwrap(optimizer_type.step)

    @functools.wraps(step)
    def step_without_compiler(self: Optimizer, *arguments: Any) -> Any:
        with torch.set_grad_enabled(self.defaults.get("differentiable", False)):
            return step(self, *arguments)

    recorded_step = Optimizer.profile_hook_step(step_without_compiler)

    @functools.wraps(step)
    def own_step(self: Optimizer, *arguments: Any) -> Any:
        return recorded_step(self, *arguments) if _is_observed(self) else step_without_compiler(self, *arguments)

    own_step.hooked = True  # type: ignore[attr-defined]  # so that torch does not wrap it once more
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(optimizer_type, name)) for name in COMPILER_LOADING_METHODS}
    methods |= {"step": own_step, "__module__": optimizer_type.__module__}
    return type(optimizer_type.__name__, (optimizer_type,), methods)


def _is_observed(optimizer: Optimizer) -> bool:
    """Whether a profiler runs, or somebody has a hook on the steps of this optimizer or of all."""
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    of_all = base._global_optimizer_pre_hooks or base._global_optimizer_post_hooks
    return bool(own or of_all) or torch.autograd._profiler_enabled()


def _build_custom(
    optim: OptimConfig,
    optimizer_type: type[Optimizer],
    groups: list[dict[str, Any]],
    options: Mapping[str, Any],
    device: torch.device,
) -> Optimizer:
    """Build an optimizer outside torch.optim, after a trial that steps, saves and loads its state."""
    try:
        trial = _try_steps(optimizer_type, options, device)
        trial.load_state_dict(unpack_state(*pack_state(trial.state_dict())))
        trial.step()
        return optimizer_type(groups, **options)
    except (Failure, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        reason = plugin.describe_user_error(error, library=Path(torch.__file__).parent)
        listed = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise Failure(
            f"{OPTIMIZER_KEY} {optim.name} cannot train: its trial on one weight failed",
            found=f"{reason}; called with {listed or 'no arguments'}",
            expected="step() without a closure, and a state of tensors, numbers, text and containers of them",
            fix="correct optim.args or the class",
            code=ExitCode.USAGE,
        ) from error


def param_groups(net: nn.Module, optim: OptimConfig) -> list[dict[str, Any]]:
    """The parameters in one group, or in several.

    With weight_decay_on=weights, parameters with one dimension (biases and norms) and those that the network's
    no_weight_decay() names get no weight decay, as in timm; without this method those of NO_DECAY_NAMES, and those that
    a part of the network names. With layer_decay each layer has its own groups, whose `lr_scale` multiplies the
    learning rate: 1 for the last layer.
    """
    named = [(name, parameter) for name, parameter in net.named_parameters() if parameter.requires_grad]
    numbers = layer_numbers(net) if optim.layer_decay is not None else {}
    last = max((numbers[name] for name, _ in named), default=0) if numbers else 0
    no_decay = _no_decay_patterns(net) if optim.weight_decay_on == "weights" else []
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    for name, parameter in named:
        is_weight = parameter.dim() > 1 and not any(fnmatchcase(name, pattern) for pattern in no_decay)
        layer, decays = numbers.get(name, last), optim.weight_decay_on == "all" or is_weight
        options: dict[str, Any] = {"params": []} if decays else {"params": [], "weight_decay": 0.0}
        if optim.layer_decay is not None:
            options["lr_scale"] = optim.layer_decay ** (last - layer)
        groups.setdefault((layer, decays), options)["params"].append(parameter)
    return [groups[key] for key in sorted(groups, key=lambda key: (key[0], not key[1]))]


def _no_decay_patterns(net: nn.Module) -> list[str]:
    """The names of parameters, as of fnmatch, that get no weight decay though they have several dimensions.

    A network of the user may hold one that names its own, such as timm's.

    Raises:
        Failure: USAGE for a no_weight_decay() that fails.
    """

    names_its_own = hasattr(net, "no_weight_decay")
    modules = {"": net} if names_its_own else {f"{name}.": part for name, part in net.named_children()}
    patterns = [] if names_its_own else [*NO_DECAY_NAMES]
    for prefix, module in modules.items():
        if callable(names := getattr(module, "no_weight_decay", None)):
            names = plugin.call_factory("no_weight_decay()", "model", factory=lambda call=names: [*map(str, call())])
            patterns += [f"{prefix}{name}" for name in names]
    return patterns


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of the next steps, times each group's `lr_scale`. An optimizer may keep it as a tensor.

    A class outside torch.optim may have no learning rate.
    """
    for group in optimizer.param_groups:
        scaled = rate * group["lr_scale"] if "lr_scale" in group else rate
        if isinstance(group.get("lr"), torch.Tensor):
            group["lr"].fill_(scaled)
        elif "lr" in group:
            group["lr"] = scaled


def restore_optimizer(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Load the state dict of another start's optimizer.

    The optimizer's kernels (fused, foreach) stay: they suit this start's device. What it got is checked, since a hash
    detects damage, and no edited values; only its author knows what a class outside torch.optim keeps.

    Raises:
        ValueError: the parameters are in other groups, in which a version has put them that decayed others; or the
            optimizer cannot step with one of its settings or moments.
    """
    own = [dict(group) for group in optimizer.param_groups]
    sizes, own_sizes = ([len(group["params"]) for group in groups] for groups in (saved["param_groups"], own))
    if sizes != own_sizes:
        raise ValueError(f"its optimizer has groups of {sizes} parameters, and here these are {own_sizes}")
    for group, before in zip(saved["param_groups"], own, strict=True):
        group.update({name: before[name] for name in ("fused", "foreach") if name in before})
    optimizer.load_state_dict(dict(saved))
    if not type(optimizer).__module__.startswith("torch.optim"):
        return
    for before, after in zip(own, optimizer.param_groups, strict=True):
        for name in before.keys() - {"params"}:
            if name not in after or not _is_alike(before[name], after[name]):
                raise ValueError(f"optimizer {name} is {after.get(name)!r:.60}")
    for moments in optimizer.state.values():
        if not isinstance(moments, dict):
            raise ValueError(f"optimizer state is {moments!r:.60}")
        for name, value in moments.items():
            if not (value is None or isinstance(value, torch.Tensor) or is_number(value)):
                raise ValueError(f"optimizer {name} is {value!r:.60}")


def _is_alike(before: Any, after: Any) -> bool:
    """Whether a setting has a type that may take the other's place. torch's versions write None or a bool for some."""
    if isinstance(before, tuple):
        return isinstance(after, tuple) and len(after) == len(before) and all(map(_is_alike, before, after))
    if is_number(before):
        return is_number(after) or isinstance(after, torch.Tensor)
    if isinstance(before, str | list | dict):
        return isinstance(after, type(before))
    return not isinstance(after, str | list | dict)


def check_arguments(optim: OptimConfig) -> tuple[type[Optimizer], list[str], list[str]]:
    """The class of `optim.name`, its arguments that other keys of the section set, and those that `optim.args` may set.

    Raises:
        Failure: USAGE, as `optimizer_class`; for `optim.args` that the class does not take or that other keys set, or
            with text for a bool.
    """
    optimizer_type, variable = optimizer_class(optim.name), inspect.Parameter.VAR_KEYWORD
    taken = dict([*inspect.signature(optimizer_type).parameters.items()][1:])  # the first takes the weights
    ours = ["lr", "weight_decay", *(["momentum"] if find_optimizer(optim.name).takes_momentum else [])]
    from_config = [name for name in ours if name in taken]
    fixed = [name for name in taken if taken[name].kind not in (variable, inspect.Parameter.VAR_POSITIONAL)]
    settable = [name for name in fixed if name not in from_config]
    takes_any = any(parameter.kind is variable for parameter in taken.values())
    if unknown := [name for name in optim.args if name not in settable and (name in from_config or not takes_any)]:
        raise _bad_arguments_failure(optim, f"unknown: {', '.join(unknown)}", settable, unknown[0])
    for name, value in optim.args.items():
        if name in settable and _is_bool_argument(taken[name]) and not _is_bool_or_none(value):
            failure = _bad_arguments_failure(optim, f"{name} is true or false, not {value!r}", settable)
            failure.fix = load.suggest_fix(bool, value, taken[name].default)
            raise failure
    return optimizer_type, from_config, settable


def _is_bool_argument(parameter: inspect.Parameter) -> bool:
    """Whether the argument is a bool. Python takes any text as true, also the `no` of `nesterov: no`."""
    return isinstance(parameter.default, bool) or "bool" in str(parameter.annotation)


def _is_bool_or_none(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _try_steps(optimizer_type: type[Optimizer], options: Mapping[str, Any], device: torch.device) -> Optimizer:
    weight = nn.Parameter(torch.ones((1, 1), device=device))
    weight.grad = torch.zeros_like(weight)
    trial = optimizer_type([weight], **options)
    for _ in range(2):  # SGD uses dampening only from its second step on
        trial.step()
    return trial


def _supports_fused(
    optimizer_type: type[Optimizer], options: Mapping[str, Any], device: torch.device, groups: list[dict[str, Any]]
) -> bool:
    """Whether one kernel can update all parameters. It needs 4 to 5 times less CPU time for launches."""
    if "fused" not in inspect.signature(optimizer_type).parameters or not KERNEL_ARGUMENTS.isdisjoint(options):
        return False
    if options.get("dampening") or not all(
        weight.is_floating_point() for group in groups for weight in group["params"]
    ):
        return False
    with suppress(*BUILD_ERRORS):
        _try_steps(optimizer_type, {**options, "fused": True}, device)
        return True
    return False


def _init_momentum(optimizer: Optimizer) -> None:
    """Give every parameter a momentum of zeros.

    The fused kernel creates all momenta in the first step. It fails if a parameter gets its first
    gradient later.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)


def _lists_to_tuples(args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with tuples for lists: YAML has no tuples, and `betas` must be one."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in args.items()}


def _bad_arguments_failure(optim: OptimConfig, problem: str, settable: list[str], unknown: str = "") -> Failure:
    problem, expected = f"{optim.args}: {problem}", f"values for: {', '.join(settable)}"
    return checks.bad_arguments_failure("optim.args", optim.name, problem, expected, unknown=unknown, settable=settable)
