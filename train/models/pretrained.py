"""This module knows torchvision's and timm's published weights: names, files, and the transform they were trained for.

A name is MODEL.TAG for torchvision (resnet50.IMAGENET1K_V2) and timm/MODEL.TAG for timm (timm/resnet18.a1_in1k).
Without the tag it is the library's default. `train weights fetch NAME` downloads them; nothing here does.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from entrypoint import ExitCode, Failure, redact, shell_command
from train import files
from train.config.models import (
    EXPORT_FILE,
    TIMM_PREFIX,
    TORCHVISION_MODELS,
    is_timm_model,
    suggest_model,
    weights_file_stem,
)
from train.data.preprocessing import DEFAULT_PREPROCESSING, INTERPOLATIONS, Preprocessing, parse_preprocessing
from train.fields import FINITE
from train.files import shorten_name

MAX_SIDE: Final = 2**16  # pixels
RECORD_KEY: Final = "published_weights"  # in the metadata of a .safetensors file
HASH_IN_NAME: Final = re.compile(r"-([0-9a-f]{8,64})\.(?:pth|pt|bin|safetensors)$")
HUB_FILES: Final = ("model.safetensors", "pytorch_model.bin")
READABLE_SUFFIXES: Final = (".pth", ".pt", ".bin", ".safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsRecord:
    """What is known of published weights.

    name: with its tag. preprocessing, image_size: (height, width), that they were trained for. classes: of their last
    layer; 0: they have none. notes: what is not recorded, or not possible here, and what is used in its place.
    """

    name: str
    preprocessing: Preprocessing
    image_size: tuple[int, int] | None
    classes: int | None
    notes: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        """The `model.name` that they belong to."""
        return self.name.partition(".")[0]

    def to_metadata(self, source: str, sha256: str) -> dict[str, str]:
        """The metadata of the .safetensors file that keeps the weights. sha256: of the published file."""
        return {RECORD_KEY: json.dumps({**asdict(self), "source": redact(source), "sha256": sha256})}

    def __str__(self) -> str:
        transform = self.preprocessing
        mean, std = (", ".join(f"{value:g}" for value in values) for values in (transform.mean, transform.std))
        size = "{} x {} pixels".format(*self.image_size) if self.image_size else "an unknown size"
        notes = f" ({'; '.join(self.notes)})" if self.notes else ""
        return (
            f"{self.name}, trained for mean ({mean}), std ({std}), {transform.interpolation} resizing, "
            f"{size}, crop ratio {transform.crop_ratio:g}{notes}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWeights:
    """Weights that can be fetched."""

    record: WeightsRecord
    addresses: tuple[str, ...]  # the best first
    command: str  # makes a file with them on another machine
    is_default: bool  # of their model

    @property
    def file_name(self) -> str:
        """The file that keeps them, below the folder of weights."""
        return f"{weights_file_stem(self.record.name)}.safetensors"


def find_published(name: str) -> PublishedWeights:
    """The published weights with this name.

    Raises:
        Failure: USAGE for a model or a tag that has none, with the names that there are.
    """
    model, _, tag = name.partition(".")
    if model not in TORCHVISION_MODELS and not is_timm_model(model):
        close = suggest_model(name)
        raise Failure(
            f"{name} names no published weights",
            expected="MODEL or MODEL.TAG for torchvision's, timm/MODEL or timm/MODEL.TAG for timm's",
            fix=f"write {close}" if close else "see the names of torchvision's and timm's models in docs/models.md",
            code=ExitCode.USAGE,
        )
    published = [*_published_of(model)]
    for entry in published:
        if entry.record.name == name if tag else entry.is_default:
            return entry
    tags = ", ".join(entry.record.name for entry in published)
    raise Failure(
        f"{name} names no published weights" if tag else f"there are no published weights for {model}",
        expected=f"one of {tags}" if tags else None,
        fix="write one of these" if tags else "leave model.weights out, or name a file",
        code=ExitCode.USAGE,
    )


def read_record(path: Path, model_name: str, configured: Collection[str] = ()) -> WeightsRecord | None:
    """The record of the weights in a file: in its metadata, by its name, or in timm's or our file beside it.

    model_name: as `model.name`; timm's records are only searched for this model. configured: keys of the data section
    that the record does not fill: a value that is impossible there is replaced, with a note.

    Raises:
        Failure: DATA for a record of these weights with other values than any has.
    """
    if path.is_dir():
        return None
    try:
        return (
            _record_in_metadata(path, configured)
            or next((entry.record for entry in _published_of(model_name) if _is_named_like(path, entry)), None)
            or _record_of_other_model(path)
            or _record_beside(path, model_name, configured)
            or _record_of_export(path, configured)
        )
    except files.MALFORMED_ERRORS as error:  # without the record, images would be prepared as for other weights
        raise Failure(
            "the record of the weights is damaged",
            found=f"in {path}, or beside it: {error}",
            fix="take the weights from their source again; or remove the record, and set data.normalize, "
            "data.crop_ratio and data.interpolation to what they were trained for",
            code=ExitCode.DATA,
        ) from error


def refuse_other_content(path: Path, record: WeightsRecord) -> None:
    """Refuse a file that has the published name of these weights, and whose sha256 is not the one in that name.

    Raises:
        Failure: DATA.
    """
    named = HASH_IN_NAME.search(path.name)
    entries = _published_of(record.model) if named else ()
    if named is None or not any(entry.record.name == record.name and _is_named_like(path, entry) for entry in entries):
        return
    with files.open_regular_file(path) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if not sha256.startswith(named[1]):
        raise Failure(
            f"{path} has the name of the published weights {record.name}, and another content",
            found=f"sha256 {sha256}",
            expected=f"{named[1]}..., as the name says",
            fix=f"run `{shell_command('train weights fetch', record.name)}` for the published ones; give weights of "
            "your own another name, and set data.normalize to what they were trained with",
            code=ExitCode.DATA,
        )


def open_safetensors(path: Path) -> Any:
    """safetensors' own `safe_open`, which would wait for a pipe. Raises OSError: as `open_regular_file`."""
    files.open_regular_file(path).close()
    return safe_open(path, framework="pt")


def _record_in_metadata(path: Path, configured: Collection[str]) -> WeightsRecord | None:
    if path.suffix != ".safetensors":
        return None
    metadata: dict[str, str] = {}
    with suppress(OSError, SafetensorError), open_safetensors(path) as file:
        metadata = file.metadata() or {}
    if RECORD_KEY not in metadata:
        return None
    values = files.parse_json(metadata[RECORD_KEY])
    notes = [str(note) for note in values.get("notes", ())]
    size, classes = values["image_size"], values["classes"]
    return WeightsRecord(
        name=str(values["name"]),
        preprocessing=_parse_transform(values["preprocessing"], configured, notes),
        image_size=None if size is None and notes else _image_size(size),
        classes=None if classes is None and notes else int(classes),
        notes=tuple(notes),
    )


def _is_named_like(path: Path, entry: PublishedWeights) -> bool:
    """Whether the file has the name under which the weights are published, or the name of the weights."""
    published = [address.rpartition("/")[2] for address in entry.addresses]
    return path.stem == Path(entry.file_name).stem or (bool(HASH_IN_NAME.search(path.name)) and path.name in published)


def _record_of_other_model(path: Path) -> WeightsRecord | None:
    """The record of torchvision's file for any of its models, so that an error can name that model."""
    if not HASH_IN_NAME.search(path.name):
        return None
    entries = (entry for model in TORCHVISION_MODELS for entry in _torchvision_weights(model))
    return next((entry.record for entry in entries if _is_named_like(path, entry)), None)


def _record_beside(path: Path, model_name: str, configured: Collection[str]) -> WeightsRecord | None:
    """The record in config.json next to the file, as in a copy of timm's folder on the hub."""
    content = files.read_json_object(path.parent / "config.json")
    values = content.get("pretrained_cfg")
    if not isinstance(values, dict) or model_name != f"{TIMM_PREFIX}{content.get('architecture')}":
        return None
    return _timm_record(f"{model_name}.{values.get('tag') or 'config.json'}", values, configured)


def _record_of_export(path: Path, configured: Collection[str]) -> WeightsRecord | None:
    """The record in model.json beside the weights that `train export` wrote."""
    content = files.read_json_object(path.parent / EXPORT_FILE)
    weights = content.get("weights")
    if not isinstance(weights, dict) or weights.get("file") != path.name:
        return None
    if content["input"].get("preprocessing") is None:  # it takes other numbers than pixels
        return None
    notes: list[str] = []
    return WeightsRecord(
        name=str(content["name"]),
        preprocessing=_parse_transform(content["input"]["preprocessing"], configured, notes),
        image_size=_image_size(content["input"]["size"]),
        classes=len(content["classes"]),
        notes=tuple(notes),
    )


def _published_of(model: str) -> Iterator[PublishedWeights]:
    if model in TORCHVISION_MODELS:
        yield from _torchvision_weights(model)
    elif is_timm_model(model):
        yield from _timm_weights(model)


def _torchvision_weights(model: str) -> Iterator[PublishedWeights]:
    """torchvision's weights for `model`."""
    from torchvision.models import get_model_weights  # importing it takes a second

    for weights in get_model_weights(model):
        transform: Any = weights.transforms()
        (crop,), (resize,) = transform.crop_size, transform.resize_size
        record = WeightsRecord(
            name=f"{model}.{weights.name}",
            preprocessing=Preprocessing(
                mean=tuple(transform.mean),
                std=tuple(transform.std),
                crop_ratio=crop / resize,
                interpolation=transform.interpolation.value,
                decode="exact",
            ),
            image_size=(crop, crop),
            classes=len(weights.meta["categories"] or ()),
        )
        command = (
            f"import torch, torchvision; torch.save(torchvision.models.get_model({model!r}, weights={weights.name!r})"
            f".state_dict(), '{weights_file_stem(record.name)}.pth')"
        )
        yield PublishedWeights(
            record=record,
            addresses=(weights.url,),
            command=_python_command(command),
            is_default=weights is get_model_weights(model)["DEFAULT"],
        )


def _timm_weights(model: str) -> Iterator[PublishedWeights]:
    """timm's weights for `model` that lie on the hub, or at an address with a file that can be read."""
    import huggingface_hub
    from timm.models import get_arch_pretrained_cfgs, get_pretrained_cfg

    architecture = model.removeprefix(TIMM_PREFIX)
    configs: Mapping[str, Any] = get_arch_pretrained_cfgs(architecture)
    default = get_pretrained_cfg(architecture)
    for config in configs.values():
        files = (config.hf_hub_filename,) if config.hf_hub_filename else HUB_FILES
        hub = [huggingface_hub.hf_hub_url(config.hf_hub_id, file) for file in files if config.hf_hub_id]
        direct = [config.url] if config.url and config.url.endswith(READABLE_SUFFIXES) else []
        if not hub and not direct:
            continue
        name = f"{model}.{config.tag}" if config.tag else model
        record = _timm_record(name, config.to_dict())
        command = (
            f"import timm, torch; torch.save(timm.create_model({name.removeprefix(TIMM_PREFIX)!r}, pretrained=True)"
            f".state_dict(), '{weights_file_stem(name)}.pth')"
        )
        yield PublishedWeights(
            record=record,
            addresses=(*hub, *direct),
            command=_python_command(command),
            is_default=default is not None and config.tag == default.tag,
        )


def _timm_record(name: str, config: Mapping[str, Any], configured: Collection[str] = ()) -> WeightsRecord:
    """The record in timm's own. Raises LookupError, TypeError, ValueError for impossible values.

    timm squashes before it crops, which only a crop_pct of 1 makes the same as stretching.
    """
    transform = {**asdict(DEFAULT_PREPROCESSING), "decode": "exact"}
    ratio, interpolation, notes = config.get("crop_pct"), config.get("interpolation"), []
    if missing := [key for key in ("mean", "std") if config.get(key) is None]:
        notes.append(f"{' and '.join(missing)} not recorded: data.normalize is used, or its default")
    else:
        transform |= {"mean": config["mean"], "std": config["std"]}
    if ratio is None:
        notes.append("crop_pct not recorded: data.crop_ratio is used, or its default")
    elif FINITE.holds(ratio) and ratio > 1:  # timm scales to a smaller size, and adds a border
        notes.append(f"crop_pct is {ratio:g}, and no crop here is larger than the image: it counts as 1")
    else:
        transform["crop_ratio"] = ratio
    if interpolation is None or (isinstance(interpolation, str) and interpolation not in INTERPOLATIONS):
        recorded = (
            "not recorded" if interpolation is None else f"{shorten_name(interpolation)}, which is not known here"
        )
        notes.append(f"interpolation {recorded}: data.interpolation is used, or its default")
    else:
        transform["interpolation"] = interpolation
    if config.get("crop_mode") == "squash" and transform["crop_ratio"] == 1:
        transform["fit"] = "stretch"
    size, classes = config.get("input_size"), config.get("num_classes")
    notes += [f"{key} not recorded" for key in ("input_size", "num_classes") if config.get(key) is None]
    return WeightsRecord(
        name=name,
        preprocessing=_parse_transform(transform, configured, notes),
        image_size=None if size is None else _image_size(size[1:]),
        classes=None if classes is None else int(classes),
        notes=tuple(notes),
    )


def _parse_transform(values: Any, configured: Collection[str], notes: list[str]) -> Preprocessing:
    """As `parse_preprocessing`; impossible values of the keys in `configured` are replaced, which `notes` are told."""
    default = asdict(DEFAULT_PREPROCESSING)
    values = {"fit": default["fit"], "decode": default["decode"], **values}  # older records lack these two
    for key in configured:
        names = ("mean", "std") if key == "normalize" else (key,)
        try:
            parse_preprocessing({**default, **{name: values[name] for name in names}})
        except files.MALFORMED_ERRORS as error:
            values = {**values, **{name: default[name] for name in names}}
            notes.append(f"the record is damaged: {error}; data.{key} is used")
    return parse_preprocessing(values)


def _python_command(code: str) -> str:
    return f'python -c "{code}"'


def _image_size(values: Any) -> tuple[int, int]:
    height, width = map(int, values)
    if not 0 < min(height, width) <= max(height, width) <= MAX_SIDE:
        raise ValueError(f"image_size is {[height, width]}, not from 1 to {MAX_SIDE}")
    return height, width
