"""Loads the weights that `model.weights` names into a model.

All tensors must fit, except those of a last layer with another number of classes, which keeps its
initial weights. Only tensors are unpickled, and nothing is downloaded.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from entrypoint import ExitCode, Failure
from train.checkpoint import format, manifest, store
from train.checkpoint.format import CommittedCheckpoint

WEIGHTS_KEY: Final = "model.weights"
STATE_DICT_KEYS: Final = (
    "state_dict",
    "model_state_dict",
    "model",
)  # where others put the state dict, beside epoch and the like
WRAPPER_PREFIXES: Final = ("module.", "_orig_mod.")  # DataParallel's and torch.compile's
PICKLED_CLASS_PATTERN: Final = re.compile(r"GLOBAL ([\w.]+)|Unsupported class ([\w.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedWeights:
    """Tensors on the CPU by name, and in words what they are."""

    tensors: dict[str, Tensor]
    origin: str


def read_weights(path: Path) -> LoadedWeights:
    """A .safetensors file, a state dict of torch.save's, a checkpoint of ours, or a run's folder (its newest).

    Raises:
        Failure: NO_INPUT where nothing is there or readable; DATA for what holds no weights or is damaged; SECURITY
            for a pickle that holds more than tensors; USAGE for another kind of file.
    """
    if path.is_dir():
        return _read_checkpoint(path.resolve())
    if not path.is_file():
        there = "it is no regular file" if path.exists() else "there is nothing"
        raise _weights_failure(f"{WEIGHTS_KEY} {path} cannot be read", there, "correct the path", ExitCode.NO_INPUT)
    reader = READERS.get(path.suffix)
    if reader is None:
        found, fix = (
            f"a name that ends in {path.suffix or 'nothing'}",
            f"name a file that ends in {_readable_suffixes()}",
        )
        raise _weights_failure(f"{WEIGHTS_KEY} {path} is of no known kind", found, fix, ExitCode.USAGE)
    try:
        return LoadedWeights(tensors=_extract_state_dict(path, reader(path)), origin=str(path))
    except OSError as error:
        fix = "make it readable for this user (chmod, or another mount)"
        raise _weights_failure(
            f"{WEIGHTS_KEY} {path} cannot be read", str(error.strerror), fix, ExitCode.NO_INPUT
        ) from error


def _read_checkpoint(folder: Path) -> LoadedWeights:
    """The network's tensors; averaged, where the run kept an average, which is what its accuracy was measured on."""
    try:
        found = _find_checkpoint(folder)
        groups, _ = format.load_checkpoint(found) if found else ({}, None)
    except Failure as failure:
        fix = f"name another checkpoint in {WEIGHTS_KEY}"
        raise _weights_failure(failure.what, failure.found, fix, failure.code, failure.expected) from failure
    if found is None or "model" not in groups:
        fix = "name a run's folder, or one checkpoints/step-... in it"
        raise _weights_failure(f"{WEIGHTS_KEY} {folder} holds no checkpoint", None, fix, ExitCode.NO_INPUT)
    kind = "averaged weights" if "ema" in groups else "weights"
    return LoadedWeights(tensors=groups["model"] | groups.get("ema", {}), origin=f"{found.path} ({kind})")


def _find_checkpoint(folder: Path) -> CommittedCheckpoint | None:
    if (folder / manifest.FILE_NAME).is_file() and (named := store.STEP_FOLDER_PATTERN.fullmatch(folder.name)):
        return format.checkpoint_at_step(folder.parent, int(named[1]))
    inside = folder / "checkpoints"
    return format.newest_checkpoint(inside if inside.is_dir() else folder)


def _read_safetensors(path: Path) -> Any:
    try:
        return load_file(path)
    except (SafetensorError, ValueError, RuntimeError, LookupError) as error:
        raise _damaged_file_failure(path, error) from error


def _read_torch_file(path: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except pickle.UnpicklingError as error:
        if (more := PICKLED_CLASS_PATTERN.search(str(error))) or _is_pickle(path):
            wants = (
                f"it wants to build {more[1] or more[2]}" if more else "it is a pickle that torch.save did not write"
            )
            found = f"{wants}: a pickle can run any code"
            fix = "save model.state_dict() alone, or convert it to .safetensors"
            raise _weights_failure(
                f"{WEIGHTS_KEY} {path} holds more than weights", found, fix, ExitCode.SECURITY
            ) from error
        raise _damaged_file_failure(
            path, ValueError("torch.save did not write it")
        ) from error  # not torch's advice: to run it
    except Exception as error:  # torch's reader raises what the damage makes it stumble over
        raise _damaged_file_failure(path, error) from error


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(1) == pickle.PROTO


READERS: Final[Mapping[str, Callable[[Path], Any]]] = {
    ".safetensors": _read_safetensors,
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), _read_torch_file),
}


def _readable_suffixes() -> str:
    return ", ".join(READERS)


def _extract_state_dict(path: Path, loaded: Any) -> dict[str, Tensor]:
    """The state dict inside, its names without what wrappers put before them."""
    inner = next(
        (loaded[key] for key in STATE_DICT_KEYS if isinstance(loaded, Mapping) and _is_mapping(loaded, key)), loaded
    )
    if not isinstance(inner, Mapping) or not inner:
        raise _no_state_dict_failure(path, "nothing" if isinstance(inner, Mapping) else f"a {type(inner).__name__}")
    if strange := [key for key, tensor in inner.items() if not isinstance(key, str) or not isinstance(tensor, Tensor)]:
        raise _no_state_dict_failure(path, f"{strange[0]!r}, which is no tensor")
    named = dict(inner)
    while wrapper := next((one for one in WRAPPER_PREFIXES if all(name.startswith(one) for name in named)), None):
        named = {name.removeprefix(wrapper): tensor for name, tensor in named.items()}
    return named


def _is_mapping(loaded: Mapping[Any, Any], key: str) -> bool:
    return isinstance(loaded.get(key), Mapping)


def _no_state_dict_failure(path: Path, found: str) -> Failure:
    fix = "save model.state_dict(), alone or under the key state_dict"
    return _weights_failure(f"{WEIGHTS_KEY} {path} holds no state dict", found, fix, ExitCode.DATA)


def _damaged_file_failure(path: Path, error: BaseException) -> Failure:
    found = (str(error).splitlines() or [type(error).__name__])[0]
    return _weights_failure(
        f"{WEIGHTS_KEY} {path} is damaged, or no such file", found, "copy it again from its source", ExitCode.DATA
    )


def _weights_failure(what: str, found: str | None, fix: str, code: ExitCode, expected: str | None = None) -> Failure:
    return Failure(what, found=found, expected=expected, fix=fix, code=code)


MAX_LISTED_TENSORS: Final = 3  # tensors named in one message
BATCHNORM_COUNTER: Final = "num_batches_tracked"  # of BatchNorm; files of before torch 0.4.1 lack it
AUXILIARY_HEADS: Final = ("AuxLogits.", "aux1.", "aux2.")  # of Inception and GoogLeNet, which are trained without here
# Published DenseNets write norm.1 where torchvision has norm1.
OLD_DENSENET_PATTERN: Final = re.compile(r"(denselayer\d+\.(?:norm|conv))\.(\d)")


def load_weights(net: nn.Module, path: str) -> tuple[str, ...]:
    """Put the weights at `path` into `net`, in place; returns what is worth saying.

    The last layer keeps its first weights where its shape differs. All else must be there, and fit.

    Raises:
        Failure: as `read_weights`; DATA for tensors that are missing, unknown, misshapen or not finite.
    """
    read = read_weights(Path(path))
    here = {name: tensor for name, tensor in net.state_dict().items() if isinstance(tensor, Tensor)}
    there = _rename_tensors(read.tensors, here)
    head = [name for name in _last_layer_names(net) if name in here]
    anew = head if any(name in there and there[name].shape != here[name].shape for name in head) else []
    _refuse_misfit(path, here, there, anew)
    fitting = {name: there[name].to(here[name].dtype) for name in here if name in there and name not in anew}
    _refuse_not_finite(path, fitting)
    with torch.no_grad():
        for name, tensor in fitting.items():
            here[name].copy_(tensor)
    said = f"{len(fitting)} of {len(here)} tensors are from {read.origin}"
    return (said, _describe_new_head(anew, here, there)) if anew else (said,)


def _rename_tensors(tensors: Mapping[str, Tensor], here: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Under the names that they have today, and without the heads that are not trained here."""
    named = {
        name if name in here else OLD_DENSENET_PATTERN.sub(r"\1\2", name): tensor for name, tensor in tensors.items()
    }
    return {name: tensor for name, tensor in named.items() if name in here or not name.startswith(AUXILIARY_HEADS)}


def _last_layer_names(net: nn.Module) -> list[str]:
    """The names of the tensors in the last layer that has weights, in the order in which the network lists them."""
    owned = [[f"{path}.{own}".removeprefix(".") for own, _ in module.named_parameters(recurse=False)]
             for path, module in net.named_modules()]  # fmt: skip
    return next((names for names in reversed(owned) if names), [])


def _refuse_misfit(path: str, here: Mapping[str, Tensor], there: Mapping[str, Tensor], anew: list[str]) -> None:
    missing = [name for name in here if name not in there and not name.endswith(BATCHNORM_COUNTER)]
    unknown = [name for name in there if name not in here]
    both = [name for name in here if name in there and name not in anew]
    shapes = [name for name in both if here[name].shape != there[name].shape]
    kinds = [name for name in both if name not in shapes and not _is_compatible(here[name], there[name])]
    parts = [
        _list_names(f"{len(missing)} missing", missing),
        _list_names(f"{len(unknown)} unknown", unknown),
        _list_names(f"{len(shapes)} of another shape", [_describe_shapes(name, here, there) for name in shapes]),
        _list_names(f"{len(kinds)} of another kind", [f"{name} ({there[name].dtype})" for name in kinds]),
    ]
    if found := "; ".join(part for part in parts if part):
        raise _bad_weights_failure(
            f"the weights in {path} do not fit this model", found, _mismatch_fix(shapes, here, there)
        )


def _is_compatible(ours: Tensor, theirs: Tensor) -> bool:
    plain = theirs.layout == torch.strided and not theirs.is_quantized and theirs.device.type == "cpu"
    return plain and ours.is_floating_point() == theirs.is_floating_point() and not theirs.is_complex()


def _refuse_not_finite(path: str, tensors: Mapping[str, Tensor]) -> None:
    bad = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    if bad:
        fix = "take weights from before their training diverged"
        raise _bad_weights_failure(
            f"the weights in {path} hold NaN or infinite numbers", _list_names(f"{len(bad)} tensors", bad), fix
        )


def _mismatch_fix(shapes: list[str], here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> str:
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


def _describe_new_head(anew: list[str], here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> str:
    ours, theirs = here[anew[0]].shape, there[anew[0]].shape
    if ours[0] != theirs[0]:
        return f"{', '.join(anew)}: {ours[0]} classes here, {theirs[0]} there: start anew"
    return f"{', '.join(_describe_shapes(name, here, there) for name in anew)}: start anew"


def _describe_shapes(name: str, here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> str:
    return f"{name} ({list(here[name].shape)} here, {list(there[name].shape)} there)"


def _list_names(count: str, names: list[str]) -> str:
    more = ", ..." if len(names) > MAX_LISTED_TENSORS else ""
    return f"{count}: {', '.join(names[:MAX_LISTED_TENSORS])}{more}" if names else ""


def _bad_weights_failure(what: str, found: str, fix: str) -> Failure:
    return Failure(what, found=found, fix=fix, code=ExitCode.DATA)
