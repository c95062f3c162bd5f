"""A file or folder with weights becomes tensors by name. Only tensors are unpickled, and nothing is downloaded."""

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
from torch import Tensor

from entrypoint import ExitCode, Failure
from train.checkpoint import checkpoint, manifest, shelf
from train.checkpoint.checkpoint import Committed

KEY: Final = "model.weights"
INSIDE: Final = (
    "state_dict",
    "model_state_dict",
    "model",
)  # where others put the state dict, beside epoch and the like
WRAPPERS: Final = ("module.", "_orig_mod.")  # DataParallel's and torch.compile's
CLASS: Final = re.compile(r"GLOBAL ([\w.]+)|Unsupported class ([\w.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Tensors on the CPU by name, and in words what they are."""

    tensors: dict[str, Tensor]
    origin: str


def read(path: Path) -> Weights:
    """A .safetensors file, a state dict of torch.save's, a checkpoint of ours, or a run's folder (its newest).

    Raises:
        Failure: NO_INPUT where nothing is there or readable; DATA for what holds no weights or is damaged; SECURITY
            for a pickle that holds more than tensors; USAGE for another kind of file.
    """
    if path.is_dir():
        return _of_checkpoint(path.resolve())
    if not path.is_file():
        there = "it is no regular file" if path.exists() else "there is nothing"
        raise _refused(f"{KEY} {path} cannot be read", there, "correct the path", ExitCode.NO_INPUT)
    reader = READERS.get(path.suffix)
    if reader is None:
        found, fix = f"a name that ends in {path.suffix or 'nothing'}", f"name a file that ends in {_endings()}"
        raise _refused(f"{KEY} {path} is of no known kind", found, fix, ExitCode.USAGE)
    try:
        return Weights(tensors=_named(path, reader(path)), origin=str(path))
    except OSError as error:
        fix = "make it readable for this user (chmod, or another mount)"
        raise _refused(f"{KEY} {path} cannot be read", str(error.strerror), fix, ExitCode.NO_INPUT) from error


def _of_checkpoint(folder: Path) -> Weights:
    """The network's tensors; averaged, where the run kept an average, which is what its accuracy was measured on."""
    try:
        found = _committed(folder)
        groups, _ = checkpoint.load(found) if found else ({}, None)
    except Failure as failure:
        fix = f"name another checkpoint in {KEY}"
        raise _refused(failure.what, failure.found, fix, failure.code, failure.expected) from failure
    if found is None or "model" not in groups:
        fix = "name a run's folder, or one checkpoints/step-... in it"
        raise _refused(f"{KEY} {folder} holds no checkpoint", None, fix, ExitCode.NO_INPUT)
    kind = "averaged weights" if "ema" in groups else "weights"
    return Weights(tensors=groups["model"] | groups.get("ema", {}), origin=f"{found.path} ({kind})")


def _committed(folder: Path) -> Committed | None:
    if (folder / manifest.NAME).is_file() and (named := shelf.STEP.fullmatch(folder.name)):
        return checkpoint.at(folder.parent, int(named[1]))
    inside = folder / "checkpoints"
    return checkpoint.newest(inside if inside.is_dir() else folder)


def _safetensors(path: Path) -> Any:
    try:
        return load_file(path)
    except (SafetensorError, ValueError, RuntimeError, LookupError) as error:
        raise _damaged(path, error) from error


def _torch_file(path: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except pickle.UnpicklingError as error:
        if (more := CLASS.search(str(error))) or _is_pickle(path):
            wants = (
                f"it wants to build {more[1] or more[2]}" if more else "it is a pickle that torch.save did not write"
            )
            found = f"{wants}: a pickle can run any code"
            fix = "save model.state_dict() alone, or convert it to .safetensors"
            raise _refused(f"{KEY} {path} holds more than weights", found, fix, ExitCode.SECURITY) from error
        raise _damaged(path, ValueError("torch.save did not write it")) from error  # not torch's advice: to run it
    except Exception as error:  # torch's reader raises what the damage makes it stumble over
        raise _damaged(path, error) from error


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(1) == pickle.PROTO


READERS: Final[Mapping[str, Callable[[Path], Any]]] = {
    ".safetensors": _safetensors,
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), _torch_file),
}


def _endings() -> str:
    return ", ".join(READERS)


def _named(path: Path, loaded: Any) -> dict[str, Tensor]:
    """The state dict inside, its names without what wrappers put before them."""
    inner = next((loaded[key] for key in INSIDE if isinstance(loaded, Mapping) and _is_mapping(loaded, key)), loaded)
    if not isinstance(inner, Mapping) or not inner:
        raise _no_weights(path, "nothing" if isinstance(inner, Mapping) else f"a {type(inner).__name__}")
    if strange := [key for key, tensor in inner.items() if not isinstance(key, str) or not isinstance(tensor, Tensor)]:
        raise _no_weights(path, f"{strange[0]!r}, which is no tensor")
    named = dict(inner)
    while wrapper := next((one for one in WRAPPERS if all(name.startswith(one) for name in named)), None):
        named = {name.removeprefix(wrapper): tensor for name, tensor in named.items()}
    return named


def _is_mapping(loaded: Mapping[Any, Any], key: str) -> bool:
    return isinstance(loaded.get(key), Mapping)


def _no_weights(path: Path, found: str) -> Failure:
    fix = "save model.state_dict(), alone or under the key state_dict"
    return _refused(f"{KEY} {path} holds no state dict", found, fix, ExitCode.DATA)


def _damaged(path: Path, error: BaseException) -> Failure:
    found = (str(error).splitlines() or [type(error).__name__])[0]
    return _refused(f"{KEY} {path} is damaged, or no such file", found, "copy it again from its source", ExitCode.DATA)


def _refused(what: str, found: str | None, fix: str, code: ExitCode, expected: str | None = None) -> Failure:
    return Failure(what, found=found, expected=expected, fix=fix, code=code)
