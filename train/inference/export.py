"""This module writes a trained model to an export folder, and loads it back.

The folder appears whole or not at all. Loading compares the weights with their sha256, unpickles
nothing, and runs no code that the folder names or holds.
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from
from safetensors.torch import save
from torch import Tensor, nn

from entrypoint import ExitCode, Failure, dump_json, file_writer, list_some
from train import file_lock, files
from train import files as file_io
from train.checkpoint import format, manifest
from train.checkpoint.manifest import DamagedCheckpointError, FileEntry
from train.checkpoint.store import CommittedCheckpoint
from train.components import build_network
from train.config import schema
from train.config.load import YamlDocument, build_config
from train.config.models import EXPORT_FILE
from train.config.schema import ModelConfig, Rule, RunConfig, one_of
from train.data import augment
from train.data.preprocessing import DEFAULT_PREPROCESSING, parse_preprocessing
from train.data.shape import Shape
from train.fields import TEXT, TEXTS, check_fields, whole_number
from train.inference import file_formats, inputs, model_card, model_code
from train.inference.checkpoints import parse_thresholds, recorded_task
from train.inference.inputs import InputSpec
from train.inference.model_card import ModelFacts
from train.tasks import task_fact

DESCRIPTION_FILE, WEIGHTS_FILE, CARD_FILE = EXPORT_FILE, "model.safetensors", "README.md"
LOCK_NAME: Final = ".export"
FORMAT_VERSION: Final = 1
MAX_SIDE: Final = 2**14
LAYOUTS: Final = {2: "NCHW", 3: "NCDHW"}  # by the dimensions of a sample's size; N: images, C: channels
SIZE: Final = Rule(
    holds=lambda sides: (
        isinstance(sides, list)
        and len(sides) in LAYOUTS
        and all(type(side) is int and 0 < side <= MAX_SIDE for side in sides)
    ),
    expected=f"the sides of an image, or frames and sides, from 1 to {MAX_SIDE:,}",
)
# What a network is built from: checked before memory is taken for it.
FIELDS: Final = {
    "classes": TEXTS,
    "input.channels": whole_number(1, MAX_SIDE),
    "input.size": SIZE,
    "input.numbers": one_of("uint8", "float32"),
    "weights.size": whole_number(0),
    "weights.sha256": TEXT,
}
OPTIONAL_FIELDS: Final = {
    "input.trained_size": SIZE,
    "checkpoint.caution": TEXT,
    "config.run.seed": whole_number(0, 2**32 - 1),
}
MISSING_FIX: Final = "name the folder that `train export` wrote"
DAMAGED_FIX: Final = "export it again; nothing of it was used"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel(InputSpec):
    """A network on the CPU, in evaluation mode and without gradients, and its input. caution: as in `ModelFacts`."""

    network: nn.Module
    caution: str | None

    def read(self, paths: Sequence[str | Path]) -> Tensor:
        """Read image files as input for the network, float32 [n, channels, height, width].

        Warns if the network was trained on arrays: only their author knows how images became arrays.

        Raises:
            Failure: USAGE if the network takes no image files; DATA or NO_INPUT for an unreadable file.
        """
        inputs.refuse_image_files(self)
        if warning := inputs.array_data_warning(self):
            warnings.warn(warning, stacklevel=2)
        draft = self.origin != "pictures"
        read = [inputs.read_image(Path(path), self.shape, self.preprocessing, draft=draft) for path in paths]
        return augment.normalize(torch.from_numpy(np.stack(read)), self.preprocessing)


def describe_tensors(input_spec: InputSpec, output_dtype: str) -> dict[str, Any]:
    """The network's task, input and output, for model.json and for the metadata of other files.

    The preprocessing leads from an image file to the input; it is None for a network that takes other numbers.
    """
    shape, classes, thresholds = input_spec.shape, [*input_spec.classes], input_spec.thresholds
    task: dict[str, Any] = {**task_fact(input_spec.task)}
    task |= {} if input_spec.target is None else {"target": asdict(input_spec.target)}
    task |= {} if thresholds is None else {"thresholds": [*thresholds]}
    return {
        "input": {
            "name": file_formats.INPUT_NAME,
            "dtype": "float32",
            "layout": LAYOUTS[len(shape.size)],
            "shape": [file_formats.BATCH_DIMENSION, *shape.input],
            "preprocessing": asdict(input_spec.preprocessing) if input_spec.bytes_ else None,
        },
        "output": {
            "name": file_formats.OUTPUT_NAME,
            "dtype": output_dtype,
            "shape": [file_formats.BATCH_DIMENSION, len(classes)],
        },
        "classes": classes,
        **task,
    }


def describe_export(about: ModelFacts, weights: bytes, output_dtype: str) -> dict[str, Any]:
    """The content of model.json."""
    input_spec, model = about.input_spec, about.config.model
    tensors = describe_tensors(input_spec, output_dtype)
    preprocessing = input_spec.preprocessing
    caution = {"caution": about.caution} if about.caution else {}
    around = {
        "subtract": _byte_values(preprocessing.mean),
        "divide": _byte_values(preprocessing.std),
    }
    return {
        "format": FORMAT_VERSION,
        "name": model.name,
        "args": model.args,
        **{name: value for name, value in tensors.items() if name not in ("input", "output")},
        "input": {
            "channels": input_spec.shape.channels,
            "size": [*input_spec.shape.size],
            "numbers": "uint8" if input_spec.bytes_ else "float32",
            "normalization": around if input_spec.bytes_ else None,
            "made": input_spec.origin,
            **({} if input_spec.trained_shape is None else {"trained_size": [*input_spec.trained_shape.size]}),
            **tensors["input"],
        },
        "output": tensors["output"],
        "weights": {"file": WEIGHTS_FILE, **asdict(manifest.make_file_entry(weights)), "averaged": about.averaged},
        "checkpoint": {"run": about.config.run.name, "step": about.step, **caution},
        "config": asdict(about.config),
    }


def _byte_values(values: Sequence[float]) -> float | list[float]:
    """Numbers for pixels from 0 to 1 as numbers for bytes: a list where each channel has its own."""
    scaled = [augment.MAX_BYTE * value for value in values]
    return scaled[0] if len(scaled) == 1 else scaled


def load_exported(folder: str | Path, factory: Callable[..., nn.Module] | None = None) -> ExportedModel:
    """Load the model in `folder`.

    Its weights are compared with their sha256. Nothing is unpickled, and no code that the folder
    names or holds is run.

    factory: the function that builds the network, if model.name is `module:factory`. It gets the
    `args` in model.json.

    Raises:
        Failure: NO_INPUT without an export; DATA for a damaged or newer one; USAGE for a network that
            cannot be built; SECURITY if the network needs a factory and none is passed.
    """
    path = Path(folder)
    description = _read_description(path)
    model_config = _parse_model_config(path, description)
    if schema.is_factory(model_config.name) and factory is None:
        raise Failure(
            f"the network of {path} is made by code that is not taken from there",
            found=f"model.name: {model_config.name}",
            expected="the function itself, from code that you know",
            fix="import it, and give it: load_exported(folder, factory=FUNCTION)",
            code=ExitCode.SECURITY,
        )
    try:
        check_fields(description, FIELDS)
        check_fields(description, OPTIONAL_FIELDS, optional=True)
        config, input_ = description.get("config", {}), description["input"]
        shape = Shape(channels=input_["channels"], size=tuple(input_["size"]))
        preprocessing = input_.get("preprocessing")  # an older export does not say it
        facts: dict[str, Any] = {
            "classes": tuple(description["classes"]),
            "shape": shape,
            "trained_shape": Shape(channels=shape.channels, size=tuple(input_.get("trained_size", shape.size))),
            "bytes_": input_["numbers"] == "uint8",
            "origin": inputs.parse_sample_origin(input_.get("made"), config.get("data", {}).get("name")),
            "thresholds": parse_thresholds(description.get("thresholds"), len(description["classes"])),
            "preprocessing": DEFAULT_PREPROCESSING if preprocessing is None else parse_preprocessing(preprocessing),
            **recorded_task(description),
        }
        seed, caution = config.get("run", {}).get("seed", 0), description.get("checkpoint", {}).get("caution")
        tensors = _read_tensors(
            path, FileEntry(size=description["weights"]["size"], sha256=description["weights"]["sha256"])
        )
    except (DamagedCheckpointError, *files.MALFORMED_ERRORS) as error:
        raise _damaged_failure(path, f"{type(error).__name__}: {error}") from error
    try:
        network = build_network(model_config, tensors, InputSpec(**facts).sets, seed=seed, factory=factory)
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise _damaged_failure(path, " ".join(str(error).split())[:300]) from error
    return ExportedModel(network=network.requires_grad_(False).eval(), caution=caution, **facts)


def read_model_config(folder: Path) -> ModelConfig:
    """The name and the arguments of the network in `folder`. Raises Failure as `load_exported`."""
    return _parse_model_config(folder, _read_description(folder))


def _parse_model_config(folder: Path, description: dict[str, Any]) -> ModelConfig:
    """The model's section, checked like a config: other networks of torchvision would download weights."""
    try:
        value = {"model": {"name": str(description["name"]), "args": dict(description["args"])}}
    except (LookupError, TypeError, ValueError) as error:
        raise _damaged_failure(folder, f"{type(error).__name__}: {error}") from error
    return build_config(YamlDocument(value=value, lines={}), str(folder / DESCRIPTION_FILE)).model


def _read_description(folder: Path) -> dict[str, Any]:
    try:
        description = files.read_json(folder / DESCRIPTION_FILE)
    except OSError as error:
        problem = f"{folder / DESCRIPTION_FILE}: {error.strerror}"
        raise Failure(f"{folder} is no export", found=problem, fix=MISSING_FIX, code=ExitCode.NO_INPUT) from error
    except ValueError as error:
        raise _damaged_failure(folder, f"{DESCRIPTION_FILE}: {error}") from error
    number = description.get("format") if isinstance(description, dict) else None
    if number != FORMAT_VERSION:
        raise _damaged_failure(
            folder, f"{DESCRIPTION_FILE} has the format {number}; this version reads {FORMAT_VERSION}"
        )
    return description  # type: ignore[no-any-return]


def _read_tensors(folder: Path, expected: FileEntry) -> dict[str, Tensor]:
    try:
        data = files.read_regular_file(folder / WEIGHTS_FILE, limit=expected.size)
        manifest.refuse_changed_file(WEIGHTS_FILE, expected, manifest.make_file_entry(data))
        return tensors_from(data)
    except (OSError, SafetensorError) as error:
        raise DamagedCheckpointError(f"{WEIGHTS_FILE}: {error}") from error


def _damaged_failure(folder: Path, problem: str) -> Failure:
    return Failure(f"the export {folder} cannot be read back", found=problem, fix=DAMAGED_FIX, code=ExitCode.DATA)


FIX_BY_EXIT_CODE: Final = {
    ExitCode.OUTPUT: "name a folder that you may write with --output (in a container: mount one)",
    ExitCode.IO: "free space there, or name a folder on another file system with --output",
    ExitCode.SECURITY: "name the folder that the symbolic link points to with --output",
}


def export_model(
    config: RunConfig, chosen: CommittedCheckpoint, folder: Path, formats: Sequence[str] = ()
) -> dict[str, int]:
    """Write the model into a new `folder`; return the size of each file in bytes.

    formats: the names in `file_formats.FORMATS` of the files that are written beside the weights.

    Raises:
        Failure: OUTPUT for a folder that is not empty or not writable; IO for a full disk; USAGE for a network that a
            format cannot hold; and as `model_card.collect_model_facts`.
    """
    refuse_nonempty_folder(folder)
    about = model_card.collect_model_facts(config, chosen)
    model = about.config.model
    encoded = save({name: tensor.contiguous() for name, tensor in about.tensors.items()}, metadata={"format": "pt"})
    shape = about.input_spec.shape
    # Without a format only to see that it takes another size, and that a user's own code still fits the weights.
    is_built = bool(formats) or about.input_spec.trained_shape is not None or schema.is_factory(model.name)
    network = _build_plain_network(about) if is_built else nn.Identity()
    with torch.no_grad():  # a network of one's own may return another type; the others, which are not built, float32
        output_dtype = str(network(torch.zeros(2, *shape.input)).dtype).removeprefix("torch.")
    code = model_code.write_model_code(
        model,
        classes=len(about.input_spec.classes),
        shape=about.input_spec.built_shape,
        seed=config.run.seed,
        folder=folder.name,
    )
    contents = {
        WEIGHTS_FILE: encoded,
        CARD_FILE: model_card.render_card(about, folder.name, code, formats).encode(errors="backslashreplace"),
        **({} if code.file is None else {model_code.CODE_FILE: code.file.encode()}),
        **file_formats.encode_network(network, shape, formats, describe_tensors(about.input_spec, output_dtype)),
    }
    with _export_fixes(), _new_folder(folder, contents) as target:
        compared = file_formats.compare_files(network, shape, formats, target)
        entries = {name: asdict(manifest.make_file_entry(contents[name])) | facts for name, facts in compared.items()}
        description = dump_json(describe_export(about, encoded, output_dtype) | {"files": entries}, indent=2)
        contents[DESCRIPTION_FILE] = f"{description}\n".encode()
        # The description comes last: it makes the folder an export.
        file_io.write_atomic(target / DESCRIPTION_FILE, contents[DESCRIPTION_FILE])
    return {name: len(data) for name, data in contents.items()}


def _build_plain_network(about: ModelFacts) -> nn.Module:
    """The network for the exporters: its tensors are contiguous, not channels-last."""
    network = build_network(about.config.model, about.tensors, about.input_spec.sets, seed=about.config.run.seed)
    format.restore_network(network, about.tensors)
    for tensor in (*network.parameters(), *network.buffers()):
        tensor.data = tensor.data.contiguous()
    return network.requires_grad_(False).eval()


def refuse_nonempty_folder(folder: Path) -> None:
    """Raise Failure (OUTPUT) if `folder` exists and holds more than what a killed export left."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise _nonempty_failure(folder, "it is a file")
    with _export_fixes(), file_io.translate_os_errors(folder, "read"):
        ours = {path.name for path in (*_left_folders(folder), *folder.glob(f"{LOCK_NAME}.*"))}
        names = sorted({*os.listdir(folder)} - ours) if os.path.isdir(folder) else []
    if names:
        raise _nonempty_failure(folder, f"it holds {list_some(names, 3)}")


def _left_folders(folder: Path) -> list[Path]:
    return file_writer.left_files(folder, [DESCRIPTION_FILE])


@contextmanager
def _new_folder(folder: Path, contents: Mapping[str, bytes]) -> Iterator[Path]:
    """Write the files into a temporary folder, let the caller add to them, model.json last, and rename it to `folder`.

    An existing folder may be a mount, which cannot be replaced: the temporary one is inside, and its files are moved in
    their order. After an error nothing is left; what a killed export left is removed.
    """
    exists = folder.is_dir()
    target = file_writer.temporary_path(folder / DESCRIPTION_FILE if exists else folder)
    lock = folder / LOCK_NAME if exists else folder.parent / f"{LOCK_NAME}-{zlib.crc32(os.fsencode(folder.name)):08x}"
    file_io.refuse_full_disk(folder, sum(map(len, contents.values())))
    with file_io.translate_os_errors(folder):
        lock.parent.mkdir(parents=True, exist_ok=True)
    with file_lock.only_writer(lock, fix="wait until it has ended, or name another folder with --output"):
        moved = list[Path]()
        for left in _left_folders(folder) if exists else file_writer.left_files(folder.parent, [folder.name]):
            file_io.remove(left)
        try:
            with file_io.translate_os_errors(folder):
                target.mkdir()
            for name, data in contents.items():
                file_io.write_atomic(target / name, data)
            yield target
            refuse_nonempty_folder(folder)
            with file_io.translate_os_errors(folder):
                for name in contents if exists else ():
                    os.rename(target / name, folder / name)
                    moved.append(folder / name)
                if not exists:
                    os.rename(target, folder)
                file_writer.fsync_folder(folder if exists else folder.parent)
        except BaseException:
            for path in (target, *moved):
                file_io.remove(path)
            raise
        file_io.remove(target)


@contextmanager
def _export_fixes() -> Iterator[None]:
    """Replace the `fix` of a Failure by one for this command."""
    try:
        yield
    except Failure as failure:
        failure.fix = FIX_BY_EXIT_CODE.get(failure.code, failure.fix)
        raise


def _nonempty_failure(folder: Path, content: str) -> Failure:
    fix = "name a new folder with --output, or remove what is there"
    return Failure(f"{folder} is not empty", found=content, fix=fix, code=ExitCode.OUTPUT)
