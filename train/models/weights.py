"""Loads the weights that `model.weights` names into a model.

All tensors must fit, with one exception: a last layer with another number of classes keeps its
initial weights. Published weights bring a record of what they were trained for (pretrained.py). Only
tensors are unpickled, and nothing is downloaded.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from entrypoint import ExitCode, Failure, list_some
from train import files
from train.checkpoint import format, manifest, store
from train.checkpoint.manifest import DamagedCheckpointError
from train.checkpoint.store import CommittedCheckpoint
from train.config.models import RESNET_PREFIXES, TIMM_PREFIX, weights_path
from train.config.schema import DataConfig, ModelConfig, RunConfig
from train.data.preprocessing import FIELDS, keep_preprocessing, set_preprocessing
from train.models import pretrained, timm_models

WEIGHTS_KEY: Final = "model.weights"
# Keys under which other programs save the state dict, next to the epoch and so on. Any other is taken if it is alone.
STATE_DICT_KEYS: Final = ("state_dict", "model_state_dict", "model")
AVERAGED_COUNTER: Final = "n_averaged"  # of torch's AveragedModel, next to the tensors of its module
PICKLED_CLASS_PATTERN: Final = re.compile(r"GLOBAL ([\w.]+)|Unsupported class ([\w.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedWeights:
    """Tensors on the CPU by name. origin: their file and type in words. notes: on what else the file holds."""

    tensors: dict[str, Tensor]
    origin: str
    notes: tuple[str, ...] = ()


def read_weights(path: Path) -> LoadedWeights:
    """Read the weights at `path`.

    path: a .safetensors file, a state dict that torch.save wrote, a checkpoint of ours, or a run's
    folder (then its newest checkpoint).

    Raises:
        Failure: NO_INPUT if the path does not exist or is not readable; DATA if it holds no weights
            or is damaged; SECURITY for a pickle with more than tensors; USAGE for another suffix.
    """
    if path.is_dir():
        return _read_checkpoint(path.resolve())
    if not path.is_file():
        problem = "it is no regular file" if path.exists() else "there is nothing"
        raise _weights_failure(f"{WEIGHTS_KEY} {path} cannot be read", problem, "correct the path", ExitCode.NO_INPUT)
    reader = READERS.get(path.suffix)
    if reader is None:
        ending, fix = (
            f"a name that ends in {path.suffix or 'nothing'}",
            f"name a file that ends in {', '.join(READERS)}",
        )
        raise _weights_failure(f"{WEIGHTS_KEY} {path} is of no known kind", ending, fix, ExitCode.USAGE)
    try:
        return _extract_state_dict(path, reader(path))
    except OSError as error:
        fix = "make it readable for this user (chmod, or another mount)"
        raise _weights_failure(
            f"{WEIGHTS_KEY} {path} cannot be read", str(error.strerror), fix, ExitCode.NO_INPUT
        ) from error


def _read_checkpoint(folder: Path) -> LoadedWeights:
    """Read the network's tensors from a checkpoint: the EMA weights, if the run has them.

    The run measured its accuracy with these.
    """
    try:
        checkpoint = _find_checkpoint(folder)
        tensors, averaged = format.load_model(checkpoint) if checkpoint else ({}, False)
    except Failure as failure:
        failure.fix = f"name another checkpoint in {WEIGHTS_KEY}"
        raise
    if checkpoint is None or not tensors:
        fix = "name a run's folder, or one checkpoints/step-... in it"
        raise _weights_failure(f"{WEIGHTS_KEY} {folder} holds no checkpoint", None, fix, ExitCode.NO_INPUT)
    return LoadedWeights(tensors=tensors, origin=f"{checkpoint.path} ({'averaged weights' if averaged else 'weights'})")


def _find_checkpoint(folder: Path) -> CommittedCheckpoint | None:
    if (folder / manifest.FILE_NAME).is_file() and (named := store.STEP_FOLDER_PATTERN.fullmatch(folder.name)):
        return store.checkpoint_at_step(folder.parent, int(named[1]))
    inside = folder / "checkpoints"
    return store.newest_checkpoint(inside if inside.is_dir() else folder)


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
            content = (
                f"it wants to build {more[1] or more[2]}" if more else "it is a pickle that torch.save did not write"
            )
            problem = f"{content}: a pickle can run any code"
            fix = "save model.state_dict() alone, or convert it to .safetensors"
            raise _weights_failure(
                f"{WEIGHTS_KEY} {path} holds more than weights", problem, fix, ExitCode.SECURITY
            ) from error
        # Not torch's own message: it advises to load the file without weights_only.
        raise _damaged_file_failure(path, ValueError("torch.save did not write it")) from error
    except Exception as error:  # a damaged file makes torch's reader raise anything
        raise _damaged_file_failure(path, error) from error


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(1) == pickle.PROTO


READERS: Final[Mapping[str, Callable[[Path], Any]]] = {
    ".safetensors": _read_safetensors,
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), _read_torch_file),
}


def _extract_state_dict(path: Path, loaded: Any) -> LoadedWeights:
    """The state dict in the content of a file. Its own tensors, or those under one of its keys."""
    content = loaded if isinstance(loaded, Mapping) else {}
    named = [key for key in STATE_DICT_KEYS if isinstance(content.get(key), Mapping)]
    holders = [key for key, value in content.items() if _holds_tensors(value)]
    if len(holders) > 1 and not named:
        raise _no_state_dict_failure(path, f"several, and none of a known name: {', '.join(map(str, holders))}")
    chosen = next(iter((*named, *holders)), None)
    inner = loaded if chosen is None else loaded[chosen]
    if not isinstance(inner, Mapping) or not inner:
        raise _no_state_dict_failure(path, "nothing" if isinstance(inner, Mapping) else f"a {type(inner).__name__}")
    if unusable := [key for key, tensor in inner.items() if not isinstance(key, str) or not isinstance(tensor, Tensor)]:
        raise _no_state_dict_failure(path, f"{unusable[0]!r}, which is no tensor")
    others = ", ".join(str(key) for key in holders if key != chosen)
    note = (
        f"of {path.name} the weights under {chosen} are taken, and not those under {others}: save these alone to take"
    )
    return LoadedWeights(tensors=dict(inner), origin=str(path), notes=(f"{note} them",) if others else ())


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(tensor, Tensor) for tensor in value.values())


def _without_prefix(tensors: Mapping[str, Tensor], own: Collection[str]) -> tuple[dict[str, Tensor], str]:
    """The tensors under the names of a network, and what was removed from all names: the prefixes of wrappers.

    DataParallel writes `module.`, torch.compile `_orig_mod.`, Lightning often `model.`, and others `backbone.`. The
    shortest prefix counts under which the network has one of the names.
    """
    wrapped = [name for name in tensors if name != AVERAGED_COUNTER] or [""]
    prefixes = ["", *(wrapped[0][: end + 1] for end, letter in enumerate(wrapped[0]) if letter == ".")]
    for prefix in prefixes:
        is_shared = all(name.startswith(prefix) for name in wrapped)
        if is_shared and any(name.removeprefix(prefix) in own for name in tensors):
            kept = tensors if not prefix else wrapped
            return {name.removeprefix(prefix): tensors[name] for name in kept}, prefix
    return dict(tensors), ""


def _no_state_dict_failure(path: Path, content: str) -> Failure:
    fix = "save model.state_dict(), alone or under the key state_dict"
    return _weights_failure(f"{WEIGHTS_KEY} {path} holds no state dict", content, fix)


def _damaged_file_failure(path: Path, error: BaseException) -> Failure:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return _weights_failure(
        f"{WEIGHTS_KEY} {path} is damaged, or no such file", reason, "copy it again from its source"
    )


def _weights_failure(what: str, problem: str | None, fix: str, code: ExitCode = ExitCode.DATA) -> Failure:
    return Failure(what, found=problem, fix=fix, code=code)


STATE_FILES: Final = tuple(f"{above}{store.STATE_FILE}" for above in ("checkpoints/step-*/", "step-*/", ""))
STEM_WEIGHT: Final = "conv1.weight"  # of torchvision's ResNets
STEM_KERNELS: Final[Mapping[tuple[int, ...] | None, bool]] = {(7, 7): False, (3, 3): True}  # small_stem by kernel
BATCHNORM_COUNTER: Final = "num_batches_tracked"  # files from before torch 0.4.1 lack it
AUXILIARY_HEADS: Final = ("AuxLogits.", "aux1.", "aux2.")  # of Inception and GoogLeNet; not trained here
# Published DenseNets have the names norm.1 for torchvision's norm1.
OLD_DENSENET_PATTERN: Final = re.compile(r"(denselayer\d+\.(?:norm|conv))\.(\d)")


def load_weights(net: nn.Module, value: str, model_name: str = "") -> tuple[str, ...]:
    """Copy the weights that `model.weights` names into `net`; return notes for the log.

    A last layer with another shape keeps its initial weights, and so does timm's if the weights have none. All other
    tensors must exist and fit. model_name: as `model.name`.

    Raises:
        Failure: as `read_weights`; DATA for tensors that are missing, unknown, not finite, or of
            another shape.
    """
    path = str(weights_path(value))
    read = read_weights(Path(path))
    record, damage = None, None
    try:
        record = pretrained.read_record(Path(path), model_name, FIELDS)
    except Failure as failure:  # `fit_preprocessing` refuses it, unless the config sets what it would fill
        damage = f"{failure.what}, and not used: {failure.found}"
    own = {name: tensor for name, tensor in net.state_dict().items() if isinstance(tensor, Tensor)}
    unwrapped, prefix = _without_prefix(read.tensors, own)
    loaded = _rename_tensors(unwrapped, own)
    if model_name.startswith(TIMM_PREFIX):
        loaded = dict(timm_models.convert_weights(net, loaded, own))
    head = [name for name in head_names(net) if name in own]
    is_headless = model_name.startswith(TIMM_PREFIX) and not any(name in loaded for name in head)
    other_head = any(name in loaded and loaded[name].shape != own[name].shape for name in head)
    new_head = head if other_head or is_headless else []
    if record:
        pretrained.refuse_other_content(Path(path), record)
    other_model = record.model if record and record.model != model_name else None
    _refuse_misfit(path, own, loaded, new_head, other_model)
    fitting = {name: loaded[name].to(own[name].dtype) for name in own if name in loaded and name not in new_head}
    _refuse_not_finite(path, fitting)
    with torch.no_grad():
        for name, tensor in fitting.items():
            own[name].copy_(tensor)
    summary = f"{len(fitting)} of {len(own)} tensors are from {read.origin}"
    notes = [summary, *([f"the weights are {record}"] if record else []), *([damage] if damage else []), *read.notes]
    notes += [f"all names in the file begin with {prefix}, which is left out"] if prefix else []
    return (*notes, _describe_new_head(new_head, own, loaded)) if new_head else (*notes,)


def _rename_tensors(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the network's names, without the auxiliary heads that it does not have."""
    named = {
        name if name in own else OLD_DENSENET_PATTERN.sub(r"\1\2", name): tensor for name, tensor in tensors.items()
    }
    return {name: tensor for name, tensor in named.items() if name in own or not name.startswith(AUXILIARY_HEADS)}


def head_names(net: nn.Module) -> list[str]:
    """The names of the tensors that give the scores: timm's classifier, or the last layer with weights."""
    return timm_models.classifier_tensors(net) or _last_layer_names(net)


def _last_layer_names(net: nn.Module) -> list[str]:
    """The names of the tensors in the network's last layer with weights."""
    owned = [[f"{path}.{own}".removeprefix(".") for own, _ in module.named_parameters(recurse=False)]
             for path, module in net.named_modules()]  # fmt: skip
    return next((names for names in reversed(owned) if names), [])


def _refuse_misfit(
    path: str,
    own: Mapping[str, Tensor],
    loaded: Mapping[str, Tensor],
    new_head: list[str],
    other_model: str | None,
) -> None:
    """other_model: the `model.name` that the weights belong to, if it is known and another one."""
    has_no_head = not any(name in loaded for name in new_head)
    may_lack = [name for name in own if name.endswith(BATCHNORM_COUNTER) or (has_no_head and name in new_head)]
    missing = [name for name in own if name not in loaded and name not in may_lack]
    unknown = [name for name in loaded if name not in own]
    both = [name for name in own if name in loaded and name not in new_head]
    shapes = [name for name in both if own[name].shape != loaded[name].shape]
    dtypes = [name for name in both if name not in shapes and not _is_compatible(own[name], loaded[name])]
    parts = [
        _list_names(f"{len(missing)} missing", missing),
        _list_names(f"{len(unknown)} unknown", unknown),
        _list_names(f"{len(shapes)} of another shape", [_describe_shapes(name, own, loaded) for name in shapes]),
        _list_names(f"{len(dtypes)} of another kind", [f"{name} ({loaded[name].dtype})" for name in dtypes]),
    ]
    if problems := "; ".join(part for part in parts if part):
        fix = f"set model.name={other_model}" if other_model else _mismatch_fix(shapes, own, loaded)
        raise _weights_failure(f"the weights in {path} do not fit this model", problems, fix)


def _is_compatible(ours: Tensor, theirs: Tensor) -> bool:
    plain = theirs.layout == torch.strided and not theirs.is_quantized and theirs.device.type == "cpu"
    return plain and ours.is_floating_point() == theirs.is_floating_point() and not theirs.is_complex()


def _refuse_not_finite(path: str, tensors: Mapping[str, Tensor]) -> None:
    bad = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    if bad:
        fix = "take weights from before their training diverged"
        raise _weights_failure(
            f"the weights in {path} hold NaN or infinite numbers", _list_names(f"{len(bad)} tensors", bad), fix
        )


def _mismatch_fix(shapes: list[str], own: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> str:
    """The most likely fix, judged by the first tensor with another shape."""
    for name in shapes[:1]:
        ours, theirs = own[name].shape, loaded[name].shape
        if len(ours) == len(theirs) > 3 and ours[0] == theirs[0] and ours[1] != theirs[1] and ours[2:] == theirs[2:]:
            return f"give it samples with {theirs[1]} channels, or leave model.weights out"
        if name == "conv1.weight" and ours[:2] == theirs[:2]:
            return f"set model.args.small_stem={str(theirs[2:] == (3, 3)).lower()}, the stem that these weights have"
        if "pos_embedding" in name:
            return "set data.image_size to the size that these weights were trained with"
    return "set model.name and model.args to what these weights were trained with, or leave model.weights out"


def _describe_new_head(new_head: list[str], own: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> str:
    if new_head[0] not in loaded:
        return f"{', '.join(new_head)}: not in these weights: newly initialized"
    ours, theirs = own[new_head[0]].shape, loaded[new_head[0]].shape
    if ours[0] != theirs[0]:
        return f"{', '.join(new_head)}: {ours[0]} classes here, {theirs[0]} there: newly initialized"
    return f"{', '.join(_describe_shapes(name, own, loaded) for name in new_head)}: newly initialized"


def _describe_shapes(name: str, own: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> str:
    return f"{name} ({list(own[name].shape)} here, {list(loaded[name].shape)} there)"


def _list_names(count: str, names: list[str]) -> str:
    return f"{count}: {list_some(names)}" if names else ""


def fit_to_weights(config: RunConfig, checkpoints: Path | None = None) -> RunConfig:
    """The config with what trained weights decide where it says auto: how images are prepared, and a ResNet's stem.

    checkpoints: the run's folder of checkpoints, which come before model.weights: a run goes on as it began.

    Raises:
        Failure: as `fit_preprocessing`.
    """
    return replace(config, data=fit_preprocessing(config, checkpoints), model=fit_stem(config.model, checkpoints))


def fit_preprocessing(config: RunConfig, checkpoints: Path | None = None) -> DataConfig:
    """The data section with the evaluation transform set, where it is auto and model.weights decide.

    checkpoints: the run's folder of checkpoints: a run that resumes keeps what it began with.
    """
    recorded = _recorded_data(checkpoints) if checkpoints else None
    if recorded is not None:
        return keep_preprocessing(config.data, recorded)
    if not config.model.weights:
        return config.data
    path = weights_path(config.model.weights)
    if recorded := _recorded_data(path):
        return keep_preprocessing(config.data, recorded)
    configured = [key for key in FIELDS if getattr(config.data, key) != "auto"]
    record = None
    # Of a record that fills none of these, no damage matters.
    with suppress(*[Failure] if {"normalize", "crop_ratio", "interpolation"}.issubset(configured) else []):
        record = pretrained.read_record(path, config.model.name, configured)
    return set_preprocessing(config.data, record.preprocessing if record else None)


def _recorded_data(folder: Path) -> Mapping[str, Any] | None:
    """The data section of the newest checkpoint in or below `folder`; None without one."""
    saved = (path.parent for pattern in STATE_FILES for path in folder.glob(pattern))
    for path in sorted(saved, key=lambda path: path.name, reverse=True):
        with suppress(Failure, DamagedCheckpointError, OSError, *files.MALFORMED_ERRORS):
            state = store.read_verified(path, store.verify_sizes(path), store.STATE_FILE)
            return dict(files.parse_json(state)["config"]["data"])
    return None


def fit_stem(model: ModelConfig, checkpoints: Path | None = None) -> ModelConfig:
    """The model's config with small_stem set, where it is auto and model.weights decide: for torchvision's ResNets.

    checkpoints: the run's folder of checkpoints; the newest decides for a run that resumes, as the file of
    model.weights may be gone. The weights themselves are checked when they are loaded.
    """
    if not model.weights or not _has_auto_stem(model):
        return model
    files = [*sorted(checkpoints.glob("step-*/model.safetensors"), reverse=True)] if checkpoints else []
    for path in (*files, weights_path(model.weights)):
        with suppress(Failure):
            fitted = fit_stem_to(model, read_weights(path).tensors)
            if fitted is not model:
                return fitted
    return model


def fit_stem_to(model: ModelConfig, tensors: Mapping[str, Tensor]) -> ModelConfig:
    """The model's config with small_stem set as these tensors of a trained model have it, where it is auto."""
    unwrapped, _ = _without_prefix(tensors, [STEM_WEIGHT])
    kernel = tuple(unwrapped[STEM_WEIGHT].shape[2:]) if STEM_WEIGHT in unwrapped else None
    if kernel not in STEM_KERNELS or not _has_auto_stem(model):
        return model
    return replace(model, args={**model.args, "small_stem": STEM_KERNELS[kernel]})


def _has_auto_stem(model: ModelConfig) -> bool:
    return model.name.startswith(RESNET_PREFIXES) and model.args.get("small_stem", "auto") == "auto"
