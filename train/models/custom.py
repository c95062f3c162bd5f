"""Builds the user's model from `package.module:factory`, and tries it on a batch before training.

The trial shows that the model takes the samples and gives one score per class; it leaves
parameters, buffers, modes and random generators as they were.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from entrypoint import ExitCode, Failure
from train import plugin
from train.config.schema import ModelConfig
from train.data.shape import Shape

TRIAL_BATCH_SIZE = 2  # samples: BatchNorm cannot train on one number
LARGER_TRIAL_BATCH_SIZE: Final = 32
MAX_COMPUTED_NUMEL: Final = 8192  # numbers in a sample: 52 x 52 pixels of three channels


def forward_error(net: nn.Module, shape: Shape, classes: int) -> str | None:
    """What is wrong with a training step's output, or None. Parameters and buffers stay as they are.

    Small samples are computed: what follows shapes alone takes 1.7 s to load (torch's compiler and sympy).

    Raises:
        RuntimeError and others, where the network cannot take samples of this shape.
    """
    if math.prod(shape.input) > MAX_COMPUTED_NUMEL:
        return meta_forward_error(net, shape, classes)
    copies = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return output_error(functional_call(net, copies, (torch.zeros(TRIAL_BATCH_SIZE, *shape.input),)), classes)


def meta_forward_error(net: nn.Module, shape: Shape, classes: int) -> str | None:
    """What is wrong with a training step's output, or None. Nothing is computed: shapes alone are followed.

    Raises:
        RuntimeError and others, where the network cannot take samples of this shape.
    """
    named = chain(net.named_parameters(), net.named_buffers())
    hollow = {name: torch.empty_like(tensor, device="meta") for name, tensor in named}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return output_error(
            functional_call(net, hollow, (torch.zeros(TRIAL_BATCH_SIZE, *shape.input, device="meta"),)), classes
        )


def eval_forward_error(net: nn.Module, shape: Shape, classes: int) -> str | None:
    """What is wrong with the output for zeros in evaluation mode, or with the weights' part in it; None if nothing is.

    Generators, buffers, gradients and modes stay as they are. Lazy layers find their sizes here.

    Raises:
        Exception: what the network raises.
    """
    with torch.random.fork_rng(devices=[]), _eval_mode(net):
        output = net(torch.zeros(TRIAL_BATCH_SIZE, *shape.input))
        return output_error(output, classes) or _unused_weights_error(net, output)


def train_forward_error(net: nn.Module, shape: Shape, classes: int) -> str | None:
    """What is wrong with the output for zeros in the modes that the network has; None if nothing is.

    Generators, parameters, buffers and whatever else its modules keep stay as they are.

    Raises:
        Exception: what the network raises, for a larger batch too: some cut theirs into parts.
    """
    try:
        with _restore_state_after(net):
            return output_error(net(torch.zeros(TRIAL_BATCH_SIZE, *shape.input)), classes)
    except Exception:
        with suppress(Exception), _restore_state_after(net):
            return output_error(
                net(torch.zeros(LARGER_TRIAL_BATCH_SIZE, *shape.input)), classes, LARGER_TRIAL_BATCH_SIZE
            )
        raise


def output_error(output: object, classes: int, samples: int = TRIAL_BATCH_SIZE) -> str | None:
    """What keeps `output`, for a batch of so many, from being its scores [samples, classes]."""
    if not isinstance(output, Tensor):
        return f"for {samples} samples it gives a {type(output).__name__}"
    if tuple(output.shape) != (samples, classes):
        return f"for {samples} samples it gives {list(output.shape)}"
    return None if output.is_floating_point() else f"it gives numbers of type {output.dtype}"


def _unused_weights_error(net: nn.Module, output: Tensor) -> str | None:
    """Weights that the output does not depend on: with several ranks nobody could say when all gradients are there."""
    named = {name: tensor for name, tensor in net.named_parameters() if tensor.requires_grad}
    if not named or not output.requires_grad:
        return "none of its weights can be trained"
    gradients = torch.autograd.grad(output.sum(), list(named.values()), allow_unused=True)
    idle = [name for name, gradient in zip(named, gradients, strict=True) if gradient is None]
    return f"its output does not depend on {', '.join(idle[:3])}" if idle else None


@contextmanager
def _eval_mode(net: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; every module's mode and every buffer as before, after it."""
    modes = {module: module.training for module in net.modules()}
    held = [(place, key, tensor) for module in net.modules() for place, key, tensor in _initialized_buffers(module)]
    buffers = [(buffer, buffer.clone()) for buffer in net.buffers() if not torch.nn.parameter.is_lazy(buffer)]
    net.eval()
    try:
        with torch.enable_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for place, key, tensor in held:  # a forward may have put a new tensor in the place of one
            place[key] = tensor
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _initialized_buffers(module: nn.Module) -> list[tuple[dict[str, Any], str, Tensor]]:
    """Those that have their size already, and where it keeps them."""
    if isinstance(module, torch.jit.ScriptModule):
        return []
    found = [(key, one) for key, one in module._buffers.items() if one is not None]
    return [(module._buffers, key, one) for key, one in found if not torch.nn.parameter.is_lazy(one)]


@contextmanager
def _restore_state_after(net: nn.Module) -> Iterator[None]:
    """After it, each module has what it had before: also what its forward has put in place of something, and what it
    has made of its first batch.
    """
    modules = [module for module in net.modules() if not isinstance(module, torch.jit.ScriptModule)]
    kept = [(vars(module), dict(vars(module)), _module_contents(module)) for module in modules]
    values = [(tensor, tensor.detach().clone()) for tensor in chain(net.parameters(), net.buffers())]
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            yield
    finally:
        for now, before, held in kept:
            now.clear()
            now.update(before)
            for place, there in held:
                place.clear()
                place.update(there)
        with torch.no_grad():
            for tensor, numbers in values:
                if not torch.equal(tensor, numbers):
                    tensor.copy_(numbers)


def _module_contents(module: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Where it keeps its parameters, buffers and parts, and what is there now."""
    return [(place, dict(place)) for place in (module._parameters, module._buffers, module._modules)]


MODEL_NAME_KEY = "model.name"
# torch's own layers that compute otherwise while they train. Of other layers nobody knows.
MODE_DEPENDENT_LAYERS: Final = (_NormBase, _DropoutNd, nn.MultiheadAttention, nn.RNNBase)
MAX_LISTED_MODULES: Final = 3  # names in one line
TrialFunction = Callable[[nn.Module, Shape, int], str | None]
TRIALS: Final[Mapping[TrialFunction, str]] = {eval_forward_error: "", train_forward_error: " while it trains"}


def build_custom_model(
    model: ModelConfig, *, classes: int, shape: Shape, factory: Callable[..., Any] | None = None
) -> nn.Module:
    """What `factory(classes=, shape=, **model.args)` gives; a factory that names no `shape` gets none.

    factory: instead of the one that model.name names.

    A network that is in evaluation mode as a whole is given back to train: libraries hand trained ones out so. Parts
    of it stay as they are: somebody has frozen them (see `eval_mode_notes`).

    Raises:
        Failure: USAGE, where it cannot be found or called so, fails, or gives something else than such a network.
    """
    factory = factory or plugin.load_factory(model.name, MODEL_NAME_KEY)
    options = _factory_arguments(factory, model, classes, shape)
    net = plugin.call_factory(model.name, MODEL_NAME_KEY, factory=factory, **options)
    if not isinstance(net, nn.Module):
        raise _unusable_model_failure(
            model, f"it gives a {type(net).__name__}", "a torch.nn.Module", "return the network"
        )
    if not any(module.training for module in net.modules()):
        net.train()
    for trying, when in TRIALS.items():
        _refuse_failed_trial(model, net, classes, shape, trying, when)
    return net


def eval_mode_notes(net: nn.Module) -> tuple[str, ...]:
    """What is worth saying of a network: the parts that are in evaluation mode, and are trained so."""
    still = [
        name or "the network itself"
        for name, module in net.named_modules()
        if not module.training
        and (isinstance(module, MODE_DEPENDENT_LAYERS) or not type(module).__module__.startswith("torch.nn."))
    ]
    if not still:
        return ()
    named = ", ".join(still[:MAX_LISTED_MODULES]) + (", ..." if len(still) > MAX_LISTED_MODULES else "")
    return (
        f"{len(still)} of the network's modules ({named}) are in evaluation mode, as the factory gives them, and stay "
        "so: no dropout there, and no new BatchNorm statistics; call .train() in the factory unless that is meant",
    )


def refuse_nonfinite_weights(model: ModelConfig, net: nn.Module) -> None:
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
            f"{MODEL_NAME_KEY} {model.name} gives a network that holds numbers which are not finite, "
            "before its first step",
            found=f"the {kind} {name} holds {tensor[~tensor.isfinite()][0].item()}",
            expected="finite numbers in all that a checkpoint keeps (the network's state_dict)",
            fix="give it first numbers in the factory" if kind == "weight" else never,
            code=ExitCode.USAGE,
        )


def _refuse_failed_trial(
    model: ModelConfig, net: nn.Module, classes: int, shape: Shape, trying: TrialFunction, when: str
) -> None:
    try:
        wrong = trying(net, shape, classes)
    except Failure:
        raise
    except Exception as error:
        raise plugin.user_code_failure(
            f"{MODEL_NAME_KEY} {model.name}: its network fails on samples of {shape}{when}", error
        ) from error
    if wrong:
        expected = f"scores [n, {classes}] for samples [n, {', '.join(map(str, shape.input))}], from all its weights"
        fix = "mend the network, or freeze what takes no part (requires_grad=False)"
        raise _unusable_model_failure(model, f"{wrong}{when}", expected, fix)


def _factory_arguments(factory: Callable[..., Any], model: ModelConfig, classes: int, shape: Shape) -> dict[str, Any]:
    """The keywords to call the factory with."""
    offered: dict[str, Any] = {"classes": classes, "shape": shape}
    try:
        signature = inspect.signature(factory)
    except ValueError:  # not written in Python
        return offered | model.args
    if twice := offered.keys() & model.args.keys():
        raise _unusable_model_failure(
            model, f"model.args: {', '.join(sorted(twice))}", "what the data decides", "leave it out"
        )
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if "shape" not in signature.parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
        del offered["shape"]
    try:
        signature.bind(**offered, **model.args)
    except TypeError as error:
        found, expected = f"{error}; it takes {signature}", "factory(classes=, shape=, **model.args)"
        raise _unusable_model_failure(
            model, found, expected, "correct model.args, or the factory's parameters"
        ) from error
    return offered | model.args


def _unusable_model_failure(model: ModelConfig, found: str, expected: str, fix: str) -> Failure:
    what = f"{MODEL_NAME_KEY} {model.name} gives no network for this data"
    return Failure(what, found=found, expected=expected, fix=fix, code=ExitCode.USAGE)
