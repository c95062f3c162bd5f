"""Weights from a file into a network: all of them, but for a head with other classes, which starts anew."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from entrypoint import ExitCode, Failure
from train.models import weightfile

SHOWN: Final = 3  # tensors named in one message
COUNTER: Final = "num_batches_tracked"  # of BatchNorm; files of before torch 0.4.1 lack it
SECOND_HEADS: Final = ("AuxLogits.", "aux1.", "aux2.")  # of Inception and GoogLeNet, which are trained without here
# Published DenseNets write norm.1 where torchvision has norm1.
OLD_DENSENET: Final = re.compile(r"(denselayer\d+\.(?:norm|conv))\.(\d)")


def load(net: nn.Module, path: str) -> tuple[str, ...]:
    """Put the weights at `path` into `net`, in place; returns what is worth saying.

    The last layer keeps its first weights where its shape differs. All else must be there, and fit.

    Raises:
        Failure: as `weightfile.read`; DATA for tensors that are missing, unknown, misshapen or not finite.
    """
    read = weightfile.read(Path(path))
    here = {name: tensor for name, tensor in net.state_dict().items() if isinstance(tensor, Tensor)}
    there = _renamed(read.tensors, here)
    head = [name for name in _last_layer(net) if name in here]
    anew = head if any(name in there and there[name].shape != here[name].shape for name in head) else []
    _refuse_misfit(path, here, there, anew)
    fitting = {name: there[name].to(here[name].dtype) for name in here if name in there and name not in anew}
    _refuse_not_finite(path, fitting)
    with torch.no_grad():
        for name, tensor in fitting.items():
            here[name].copy_(tensor)
    said = f"{len(fitting)} of {len(here)} tensors are from {read.origin}"
    return (said, _about_head(anew, here, there)) if anew else (said,)


def _renamed(tensors: Mapping[str, Tensor], here: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Under the names that they have today, and without the heads that are not trained here."""
    named = {name if name in here else OLD_DENSENET.sub(r"\1\2", name): tensor for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in named.items() if name in here or not name.startswith(SECOND_HEADS)}


def _last_layer(net: nn.Module) -> list[str]:
    """The names of the tensors in the last layer that has weights, in the order in which the network lists them."""
    owned = [[f"{path}.{own}".removeprefix(".") for own, _ in module.named_parameters(recurse=False)]
             for path, module in net.named_modules()]  # fmt: skip
    return next((names for names in reversed(owned) if names), [])


def _refuse_misfit(path: str, here: Mapping[str, Tensor], there: Mapping[str, Tensor], anew: list[str]) -> None:
    missing = [name for name in here if name not in there and not name.endswith(COUNTER)]
    unknown = [name for name in there if name not in here]
    both = [name for name in here if name in there and name not in anew]
    shapes = [name for name in both if here[name].shape != there[name].shape]
    kinds = [name for name in both if name not in shapes and not _same_kind(here[name], there[name])]
    parts = [
        _some(f"{len(missing)} missing", missing),
        _some(f"{len(unknown)} unknown", unknown),
        _some(f"{len(shapes)} of another shape", [_shapes(name, here, there) for name in shapes]),
        _some(f"{len(kinds)} of another kind", [f"{name} ({there[name].dtype})" for name in kinds]),
    ]
    if found := "; ".join(part for part in parts if part):
        raise _failure(f"the weights in {path} do not fit this model", found, _advice(shapes, here, there))


def _same_kind(ours: Tensor, theirs: Tensor) -> bool:
    plain = theirs.layout == torch.strided and not theirs.is_quantized and theirs.device.type == "cpu"
    return plain and ours.is_floating_point() == theirs.is_floating_point() and not theirs.is_complex()


def _refuse_not_finite(path: str, tensors: Mapping[str, Tensor]) -> None:
    bad = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    if bad:
        fix = "take weights from before their training diverged"
        raise _failure(f"the weights in {path} hold NaN or infinite numbers", _some(f"{len(bad)} tensors", bad), fix)


def _advice(shapes: list[str], here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> str:
    """What would most likely make them fit, by the first tensor of another shape."""
    for name in shapes[:1]:
        ours, theirs = here[name].shape, there[name].shape
        if len(ours) == len(theirs) > 3 and ours[0] == theirs[0] and ours[1] != theirs[1] and ours[2:] == theirs[2:]:
            return f"give it samples with {theirs[1]} channels, or leave model.weights out"
        if name == "conv1.weight" and ours[:2] == theirs[:2]:
            return f"set model.args.small_stem={str(theirs[2:] == (3, 3)).lower()}, the stem that these weights have"
        if "pos_embedding" in name:
            return "set data.image_size to the size that these weights were trained with"
    return "set model.name and model.args to what these weights were trained with, or leave model.weights out"


def _about_head(anew: list[str], here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> str:
    ours, theirs = here[anew[0]].shape, there[anew[0]].shape
    if ours[0] != theirs[0]:
        return f"{', '.join(anew)}: {ours[0]} classes here, {theirs[0]} there: start anew"
    return f"{', '.join(_shapes(name, here, there) for name in anew)}: start anew"


def _shapes(name: str, here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> str:
    return f"{name} ({list(here[name].shape)} here, {list(there[name].shape)} there)"


def _some(count: str, names: list[str]) -> str:
    more = ", ..." if len(names) > SHOWN else ""
    return f"{count}: {', '.join(names[:SHOWN])}{more}" if names else ""


def _failure(what: str, found: str, fix: str) -> Failure:
    return Failure(what, found=found, fix=fix, code=ExitCode.DATA)
