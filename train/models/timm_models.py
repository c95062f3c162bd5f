"""Builds timm's models with random weights, adapted to the number of classes and channels and to the image size."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor, nn

from train.config.models import FORBIDDEN_ARGUMENTS, TIMM_PREFIX
from train.data.shape import Shape

# Arguments that timm passes on where a constructor does not list them.
ALWAYS_TAKEN: Final = ("drop_rate", "drop_path_rate", "global_pool")


def build_timm_model(name: str, *, classes: int, shape: Shape, **args: Any) -> nn.Module:
    """Build the model timm/NAME; `args` are its constructor's arguments. Nothing is downloaded.

    Models that are built for one image size (most transformers) are built for that of the data.

    Raises:
        ValueError, TypeError and others, for arguments that the constructor refuses.
    """
    import timm  # importing it takes seconds; other models do not need it

    options = constructor_arguments(name, classes, shape, args)
    net: nn.Module = timm.create_model(name.removeprefix(TIMM_PREFIX), pretrained=False, **options)
    return net


def constructor_arguments(name: str, classes: int, shape: Shape, args: Mapping[str, Any]) -> dict[str, Any]:
    """What timm's constructor gets: a model that is recorded as one for images of one size also gets that size."""
    from timm.models import get_pretrained_cfg

    record = get_pretrained_cfg(name.removeprefix(TIMM_PREFIX))
    size = {"img_size": shape.size} if record is not None and record.fixed_input_size else {}
    return {"num_classes": classes, "in_chans": shape.channels, **size, **args}


def timm_arguments(name: str) -> list[str]:
    """The arguments that model.args may set for timm/NAME; empty if the model cannot be built on the meta device."""
    import timm

    with suppress(NotImplementedError, RuntimeError), torch.device("meta"):
        parameters = inspect.signature(type(timm.create_model(name.removeprefix(TIMM_PREFIX)))).parameters.values()
        settable = [
            parameter.name
            for parameter in parameters
            if parameter.name not in FORBIDDEN_ARGUMENTS
            and parameter.default is not parameter.empty
            and parameter.kind is not parameter.VAR_KEYWORD
        ]
        return sorted({*settable, *ALWAYS_TAKEN})
    return []


def classifier_tensors(net: nn.Module) -> list[str]:
    """The names of the tensors of a timm model's classifier, or classifiers; empty for other networks."""
    classifier = (getattr(net, "default_cfg", None) or {}).get("classifier") or ()
    prefixes = tuple(f"{path}." for path in ((classifier,) if isinstance(classifier, str) else classifier))
    return [name for name in net.state_dict() if name.startswith(prefixes)] if prefixes else []


def convert_weights(net: nn.Module, tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors as this timm model needs them, converted by timm's own function where they do not fit already.

    It knows the names of older versions and of other libraries, and position embeddings of another image size.
    """
    body = own.keys() - set(classifier_tensors(net))
    if all(name in tensors and tensors[name].shape == own[name].shape for name in body):
        return tensors
    convert = getattr(sys.modules[type(net).__module__], "checkpoint_filter_fn", None)
    if convert is None:
        return tensors
    with suppress(Exception):  # for tensors of another model it may raise anything; the caller names what does not fit
        return {name: tensor for name, tensor in convert(dict(tensors), net).items() if isinstance(tensor, Tensor)}
    return tensors
