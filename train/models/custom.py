"""Builds the user's model from `package.module:factory`, and tries it on a batch before training.

The trial checks that the model accepts the samples and returns one score per class. It leaves
parameters, buffers, modes and random generators unchanged.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from entrypoint import ExitCode, Failure, list_some, pluralize
from train import plugin
from train.checkpoint import format
from train.config.schema import ModelConfig
from train.data.shape import Shape

TRIAL_BATCH_SIZE = 2  # BatchNorm cannot train on a batch of one
LARGER_TRIAL_BATCH_SIZE: Final = 32
MAX_COMPUTED_NUMEL: Final = 8192  # numbers in a sample: 52 x 52 pixels with three channels


def forward_error(net: nn.Module, shape: Shape, classes: int, samples: int = TRIAL_BATCH_SIZE) -> str | None:
    """What is wrong with the output for a batch in training mode, or None. Parameters and buffers stay unchanged.

    Small samples are really computed: computing shapes only first loads torch's compiler and sympy, which takes 1.7 s.

    Raises:
        RuntimeError and others, if the network does not accept samples of this shape.
    """
    images = torch.zeros(samples, *shape.input, device="meta" if math.prod(shape.input) > MAX_COMPUTED_NUMEL else None)
    if images.is_meta:
        named = chain(net.named_parameters(), net.named_buffers())
        tensors = {name: torch.empty_like(tensor, device="meta") for name, tensor in named}
    else:
        tensors = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return output_error(functional_call(net, tensors, (images,)), classes, samples)


# The trials of a user's own network. They compute with it as it is: not every network can be copied.


def eval_forward_error(net: nn.Module, shape: Shape, classes: int, samples: int = TRIAL_BATCH_SIZE) -> str | None:
    """What is wrong with the output for zeros in evaluation mode, or None.

    For several samples it is also wrong if it does not depend on all weights. Generators, buffers, gradients and modes
    stay unchanged; layers that get their sizes from their first batch keep these.

    Raises:
        Exception: what the network raises.
    """
    with _unchanged(net, attributes=False):
        net.eval()  # a network's own train() may return nothing
        output = net(torch.zeros(samples, *shape.input))
        return output_error(output, classes, samples) or (_unused_weights_error(net, output) if samples > 1 else None)


def train_forward_error(net: nn.Module, shape: Shape, classes: int, samples: int | None = None) -> str | None:
    """What is wrong with the output for zeros in the network's current modes, or None.

    Generators, parameters, buffers and all other attributes of its modules stay unchanged. samples: of the batch; None:
    few, or more if the network fails on these: some networks split their batch into parts.

    Raises:
        Exception: what the network raises.
    """
    count = samples or TRIAL_BATCH_SIZE
    try:
        with _unchanged(net, attributes=True):
            return output_error(net(torch.zeros(count, *shape.input)), classes, count)
    except Exception:
        if samples is None:
            with suppress(Exception):
                return train_forward_error(net, shape, classes, LARGER_TRIAL_BATCH_SIZE)
        raise


def output_error(output: object, classes: int, samples: int = TRIAL_BATCH_SIZE) -> str | None:
    """Why `output` is not the scores [samples, classes] of a batch; None if it is."""
    batch = pluralize(samples, "sample")
    if not isinstance(output, Tensor):
        return f"for {batch} it gives a {type(output).__name__}"
    if tuple(output.shape) != (samples, classes):
        return f"for {batch} it gives {list(output.shape)}"
    return None if output.is_floating_point() else f"it gives numbers of type {output.dtype}"


def _unused_weights_error(net: nn.Module, output: Tensor) -> str | None:
    """The weights that the output does not depend on, in words; None if it depends on all.

    DDP waits for the gradient of every trainable weight.
    """
    named = {name: tensor for name, tensor in net.named_parameters() if tensor.requires_grad}
    if not named or not output.requires_grad:
        return "none of its weights can be trained"
    gradients = torch.autograd.grad(output.sum(), list(named.values()), allow_unused=True)
    unused = [name for name, gradient in zip(named, gradients, strict=True) if gradient is None]
    return f"its output does not depend on {', '.join(unused[:3])}" if unused else None


@contextmanager
def _unchanged(net: nn.Module, *, attributes: bool) -> Iterator[None]:
    """Afterwards restore the generators, each module's mode, and each buffer that the network had.

    A forward pass may replace a tensor. attributes: restore parameters, parts and all other attributes too: in training
    mode a network may create some from its first batch. In evaluation mode this is where layers get their sizes.
    """
    modules = [module for module in net.modules() if not isinstance(module, torch.jit.ScriptModule)]
    modes = [(module, module.training) for module in net.modules()]
    dicts: list[dict[str, Any]] = [module._buffers for module in modules]
    if attributes:
        dicts += [each for module in modules for each in (vars(module), module._parameters, module._modules)]
    contents = [
        (each, {key: value for key, value in each.items() if attributes or value is not None}) for each in dicts
    ]
    tensors = chain(net.parameters(), net.buffers()) if attributes else net.buffers()
    numbers = [(tensor, tensor.detach().clone()) for tensor in tensors if not torch.nn.parameter.is_lazy(tensor)]
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        for each, before in contents:
            if attributes:
                each.clear()
            each.update(before)
        with torch.no_grad():
            for tensor, before_ in numbers:
                if not torch.equal(tensor, before_):
                    tensor.copy_(before_)


MODEL_NAME_KEY = "model.name"
# torch's layers that compute differently in training mode. Layers of other packages may do so too.
MODE_DEPENDENT_LAYERS: Final = (_NormBase, _DropoutNd, nn.MultiheadAttention, nn.RNNBase)
TrialFunction = Callable[[nn.Module, Shape, int], str | None]
TRIALS: Final[Mapping[TrialFunction, str]] = {
    eval_forward_error: "",
    partial(
        eval_forward_error, samples=1
    ): ", if there is one alone, as in `train predict` and in the last batch of an evaluation",
    train_forward_error: " while it trains",
}


def build_custom_model(
    model: ModelConfig, *, classes: int, shape: Shape, factory: Callable[..., Any] | None = None
) -> nn.Module:
    """Build the network with `factory(classes=, shape=, **model.args)`, and try it.

    `shape` is passed only if the factory has such a parameter. factory: used instead of the one that
    model.name names.

    If all modules are in evaluation mode, the network is switched to training mode: libraries return
    pretrained networks that way. If only some are, they stay so: the user froze them (see
    `eval_mode_notes`).

    Raises:
        Failure: USAGE, if the factory does not exist, cannot be called like this, fails, or returns
            anything but such a network.
    """
    factory = factory or plugin.load_factory(model.name, MODEL_NAME_KEY)
    options = factory_arguments(factory, model, classes, shape)
    net = plugin.call_factory(model.name, MODEL_NAME_KEY, factory=factory, **options)
    if not isinstance(net, nn.Module):
        raise _unusable_model_failure(
            model, f"it gives a {type(net).__name__}", "a torch.nn.Module", "return the network"
        )
    if not any(module.training for module in net.modules()):
        net.train()
    _refuse_unsaved_state(model, net)
    for trying, when in TRIALS.items():
        _refuse_failed_trial(model, net, classes, shape, trying, when)
    return net


def _refuse_unsaved_state(model: ModelConfig, net: nn.Module) -> None:
    """Refuse a network whose state_dict holds more than checkpoints do: they hold dense tensors, and unpickle nothing.

    Raises:
        Failure: USAGE, naming the entry.
    """
    for name, value in net.state_dict().items():
        is_tensor = isinstance(value, Tensor)
        if is_tensor and value.layout == torch.strided and value.dtype in format.SAFETENSORS_DTYPES:
            continue
        content = f"a tensor of {value.dtype}, {value.layout}" if is_tensor else f"a {type(value).__name__}"
        extra = ": get_extra_state() returned it" if name.endswith("_extra_state") else ""
        raise Failure(
            f"{MODEL_NAME_KEY} {model.name} gives a network whose state no checkpoint can hold",
            found=f"{content} in {name} of its state_dict{extra}",
            expected="dense tensors of numbers",
            fix="keep it in tensors (register_buffer; get_extra_state may return one), or set it in the factory",
            code=ExitCode.USAGE,
        )


def eval_mode_notes(net: nn.Module) -> tuple[str, ...]:
    """A note if some modules are in evaluation mode: the training leaves them so."""
    in_eval_mode = [
        name or "the network itself"
        for name, module in net.named_modules()
        if not module.training
        and (isinstance(module, MODE_DEPENDENT_LAYERS) or not type(module).__module__.startswith("torch.nn."))
    ]
    if not in_eval_mode:
        return ()
    return (
        f"{len(in_eval_mode)} of the network's modules ({list_some(in_eval_mode)}) are in "
        "evaluation mode, as the factory gives them, and stay so: no dropout there, and no new BatchNorm statistics; "
        "call .train() in the factory unless that is meant",
    )


SOFTMAX_TOLERANCE: Final = 1e-4


def softmax_notes(model: ModelConfig, net: nn.Module, shape: Shape) -> tuple[str, ...]:
    """A note if the outputs are probabilities: the loss takes a softmax of them once more, and hardly learns."""
    with _unchanged(net, attributes=False), torch.no_grad():
        net.eval()
        output = net(torch.zeros(TRIAL_BATCH_SIZE, *shape.input))
    if output.shape[1] < 2 or bool((output < 0).any()):
        return ()
    if float((output.sum(dim=1) - 1).abs().max()) > SOFTMAX_TOLERANCE:
        return ()
    return (
        f"the network of {model.name} ends in a softmax ({_describe_source(type(net))}): its outputs are "
        "probabilities, and the loss takes the softmax of them once more, so that it learns slowly. fix: return the "
        "scores before the softmax; train predict and exported models add it",
    )


def _describe_source(network_class: type) -> str:
    """The class and where it is written, as far as Python knows."""
    name = f"class {network_class.__name__}"
    if network_class.__module__.startswith("torch."):  # a container: its file says nothing
        return name
    try:
        _, line = inspect.getsourcelines(network_class)
        return f"{name}, {inspect.getsourcefile(network_class)}, line {line}"
    except (OSError, TypeError):
        return name


def refuse_nonfinite_weights(model: ModelConfig, net: nn.Module) -> None:
    """Refuse initial weights that are NaN or infinite; in a checkpoint they would mean divergence.

    Raises:
        Failure: USAGE, naming the tensor.
    """
    weights = dict(net.named_parameters(remove_duplicate=False))
    for name, tensor in net.state_dict().items():
        if not isinstance(tensor, Tensor) or tensor.isfinite().all():
            continue
        role = "weight" if name in weights else "buffer"
        buffer_fix = "register it with persistent=False: then no checkpoint holds it, and it may hold what it likes"
        raise Failure(
            f"{MODEL_NAME_KEY} {model.name} gives a network that holds numbers which are not finite, "
            "before its first step",
            found=f"the {role} {name} holds {tensor[~tensor.isfinite()][0].item()}",
            expected="finite numbers in all that a checkpoint keeps (the network's state_dict)",
            fix="give it first numbers in the factory" if role == "weight" else buffer_fix,
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
        fix = "mend the network (flatten(1) where squeeze() drops the axis of one sample), or freeze what takes no part"
        raise _unusable_model_failure(model, f"{wrong}{when}", expected, f"{fix} (requires_grad=False)")


def factory_arguments(factory: Callable[..., Any], model: ModelConfig, classes: int, shape: Shape) -> dict[str, Any]:
    """The keyword arguments for the factory."""
    offered: dict[str, Any] = {"classes": classes, "shape": shape}
    try:
        signature = inspect.signature(factory)
    except ValueError:  # not written in Python
        return offered | model.args
    if duplicates := offered.keys() & model.args.keys():
        raise _unusable_model_failure(
            model, f"model.args: {', '.join(sorted(duplicates))}", "what the data decides", "leave it out"
        )
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if "shape" not in signature.parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
        del offered["shape"]
    try:
        signature.bind(**offered, **model.args)
    except TypeError as error:
        problem, expected = f"{error}; it takes {signature}", "factory(classes=, shape=, **model.args)"
        raise _unusable_model_failure(
            model, problem, expected, "correct model.args, or the factory's parameters"
        ) from error
    return offered | model.args


def _unusable_model_failure(model: ModelConfig, problem: str, expected: str, fix: str) -> Failure:
    what = f"{MODEL_NAME_KEY} {model.name} gives no network for this data"
    return Failure(what, found=problem, expected=expected, fix=fix, code=ExitCode.USAGE)
