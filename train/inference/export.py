"""This module writes a trained model to an export folder, and loads it back.

The folder appears whole or not at all. Loading compares the weights with their sha256, unpickles
nothing, and runs no code that the folder names or holds.
"""

from __future__ import annotations

import json
import os
import warnings
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

from entrypoint import ExitCode, Failure
from train import files
from train import files as file_io
from train.checkpoint import manifest
from train.checkpoint.manifest import DamagedCheckpointError, FileEntry
from train.config import schema
from train.config.load import YamlDocument, build_config
from train.config.schema import ModelConfig, RunConfig
from train.data import augment
from train.data.shape import Shape
from train.inference import inputs, model_card
from train.inference.checkpoints import ChosenCheckpoint
from train.inference.inputs import InputSpec, SampleOrigin
from train.inference.model_card import ModelFacts
from train.models import registry

DESCRIPTION_FILE, WEIGHTS_FILE, CARD_FILE = "model.json", "model.safetensors", "README.md"
FORMAT_VERSION: Final = 1
MISSING_FIX: Final = "name the folder that `train export` wrote"
DAMAGED_FIX: Final = "export it again; nothing of it was used"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """A network in evaluation mode on the CPU, whose weights do not ask for gradients, and what it takes and tells."""

    network: nn.Module
    classes: tuple[str, ...]
    shape: Shape
    bytes_: bool
    made: SampleOrigin = "files"

    @property
    def takes(self) -> InputSpec:
        """The same without the network."""
        return InputSpec(classes=self.classes, shape=self.shape, bytes_=self.bytes_, made=self.made)

    def read(self, paths: Sequence[str | Path]) -> Tensor:
        """Image files as the network takes them, float32 [n, channels, size, size].

        Warns where it learned from arrays: how those were made of images is not known here.

        Raises:
            Failure: USAGE where it takes no image files; DATA or NO_INPUT for one that cannot be read.
        """
        inputs.refuse_image_files(self.takes)
        if doubt := inputs.array_data_warning(self.takes):
            warnings.warn(doubt, stacklevel=2)
        read = [inputs.read_image(Path(path), self.shape, draft=self.made != "pictures") for path in paths]
        return augment.normalize(torch.from_numpy(np.stack(read)))


def describe_export(about: ModelFacts, weights: bytes) -> dict[str, Any]:
    """What model.json holds."""
    taken, model = about.takes, about.config.model
    around = {"subtract": augment.PIXEL_OFFSET, "divide": augment.PIXEL_SCALE}
    return {
        "format": FORMAT_VERSION,
        "name": model.name,
        "args": model.args,
        "classes": [*taken.classes],
        "input": {
            "channels": taken.shape.channels,
            "size": [*taken.shape.size],
            "numbers": "uint8" if taken.bytes_ else "float32",
            "normalization": around if taken.bytes_ else None,
            "made": taken.made,
        },
        "weights": {"file": WEIGHTS_FILE, **asdict(manifest.make_file_entry(weights)), "averaged": about.averaged},
        "checkpoint": {"run": about.config.run.name, "step": about.step},
        "config": asdict(about.config),
    }


def load_exported(folder: str | Path, factory: Callable[..., nn.Module] | None = None) -> ExportedModel:
    """The model in `folder`. Its weights are compared with their sha256, nothing is unpickled, and no code that the
    folder names or holds is run.

    factory: for a network of the user's own (`module:factory`), the function that makes it. It gets the `args` that
    the folder tells.

    Raises:
        Failure: NO_INPUT where there is no export, DATA for a damaged or newer one, USAGE for a network that cannot be
            built, SECURITY for one whose factory is not given.
    """
    place = Path(folder)
    told = _read_description(place)
    wanted = _parse_model_config(place, told)
    if schema.is_factory(wanted.name) and factory is None:
        raise Failure(
            f"the network of {place} is made by code that is not taken from there",
            found=f"model.name: {wanted.name}",
            expected="the function itself, from code that you know",
            fix="import it, and give it: load_exported(folder, factory=FUNCTION)",
            code=ExitCode.SECURITY,
        )
    try:
        # The run's own: what a network draws and keeps out of its state dict comes from nothing else.
        seed = int(told.get("config", {}).get("run", {}).get("seed", 0))
        taken, shape = told["input"], Shape(channels=told["input"]["channels"], size=tuple(told["input"]["size"]))
        made = inputs.parse_sample_origin(taken.get("made"), told.get("config", {}).get("data", {}).get("name"))
        classes, bytes_ = tuple(map(str, told["classes"])), taken["numbers"] == "uint8"
        tensors = _read_tensors(
            place, FileEntry(size=int(told["weights"]["size"]), sha256=str(told["weights"]["sha256"]))
        )
    except (DamagedCheckpointError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise _damaged_failure(place, f"{type(error).__name__}: {error}") from error
    with torch.random.fork_rng(devices=[]):
        network = registry.build_model(wanted, classes=len(classes), shape=shape, seed=seed, factory=factory)
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise _damaged_failure(place, " ".join(str(error).split())[:300]) from error
    return ExportedModel(
        network=network.requires_grad_(False).eval(), classes=classes, shape=shape, bytes_=bytes_, made=made
    )


def read_model_config(folder: Path) -> ModelConfig:
    """The name and the arguments of the network in `folder`. Raises Failure as `load_exported`."""
    return _parse_model_config(folder, _read_description(folder))


def _parse_model_config(place: Path, told: dict[str, Any]) -> ModelConfig:
    """Held to the rules of a config: torchvision has builders of other networks, which would download."""
    try:
        value = {"model": {"name": str(told["name"]), "args": dict(told["args"])}}
    except (LookupError, TypeError, ValueError) as error:
        raise _damaged_failure(place, f"{type(error).__name__}: {error}") from error
    return build_config(YamlDocument(value=value, lines={}), str(place / DESCRIPTION_FILE)).model


def _read_description(place: Path) -> dict[str, Any]:
    try:
        told = files.read_json(place / DESCRIPTION_FILE)
    except OSError as error:
        found = f"{place / DESCRIPTION_FILE}: {error.strerror}"
        raise Failure(f"{place} is no export", found=found, fix=MISSING_FIX, code=ExitCode.NO_INPUT) from error
    except ValueError as error:
        raise _damaged_failure(place, f"{DESCRIPTION_FILE}: {error}") from error
    number = told.get("format") if isinstance(told, dict) else None
    if number != FORMAT_VERSION:
        raise _damaged_failure(
            place, f"{DESCRIPTION_FILE} has the format {number}; this version reads {FORMAT_VERSION}"
        )
    return told  # type: ignore[no-any-return]


def _read_tensors(place: Path, expected: FileEntry) -> dict[str, Tensor]:
    try:
        data = files.read_regular_file(place / WEIGHTS_FILE, limit=expected.size)
        manifest.refuse_changed_file(WEIGHTS_FILE, expected, manifest.make_file_entry(data))
        return tensors_from(data)
    except (OSError, SafetensorError) as error:
        raise DamagedCheckpointError(f"{WEIGHTS_FILE}: {error}") from error


def _damaged_failure(place: Path, found: str) -> Failure:
    return Failure(f"the export {place} cannot be read back", found=found, fix=DAMAGED_FIX, code=ExitCode.DATA)


FIX_BY_EXIT_CODE: Final = {
    ExitCode.OUTPUT: "name a folder that you may write with --output (in a container: mount one)",
    ExitCode.IO: "free space there, or name a folder on another file system with --output",
    ExitCode.SECURITY: "name the folder that the symbolic link points to with --output",
}


def export_model(config: RunConfig, chosen: ChosenCheckpoint, folder: Path) -> dict[str, int]:
    """Write the model into `folder`, which is made; the size of each file in bytes.

    Raises:
        Failure: OUTPUT for a folder that holds something, or cannot be written; IO for a full disk; and as
            `model_card.collect_model_facts`.
    """
    refuse_nonempty_folder(folder)
    about = model_card.collect_model_facts(config, chosen)
    weights = save({name: tensor.contiguous() for name, tensor in about.tensors.items()}, metadata={"format": "pt"})
    told = json.dumps(describe_export(about, weights), indent=2, ensure_ascii=False) + "\n"
    files = {  # what makes the folder an export comes last
        WEIGHTS_FILE: weights,
        CARD_FILE: model_card.render_card(about, folder.name).encode(errors="backslashreplace"),
        DESCRIPTION_FILE: told.encode(errors="backslashreplace"),
    }
    with _export_fixes():
        _write_files(folder, files)
    return {name: len(data) for name, data in files.items()}


def refuse_nonempty_folder(folder: Path) -> None:
    """Raises Failure (OUTPUT) unless `folder` is not there, or empty."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise _nonempty_failure(folder, "it is a file")
    with _export_fixes(), file_io.translate_os_errors(folder, "read"):
        there = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    if there:
        raise _nonempty_failure(folder, f"it holds {', '.join(there[:3])}{', ...' if len(there) > 3 else ''}")


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Beside its place first; into the folder itself where there is one: it may be a mount, which nothing replaces."""
    there = folder.is_dir()
    place = folder if there else folder.with_name(f"{file_io.TEMPORARY_PREFIX}{folder.name}-{os.urandom(4).hex()}")
    file_io.refuse_full_disk(folder, sum(map(len, files.values())))
    try:
        with file_io.translate_os_errors(folder):
            place.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            file_io.write_atomic(place / name, data)
        if not there:
            refuse_nonempty_folder(folder)
            with file_io.translate_os_errors(folder):
                os.rename(place, folder)
                file_io.fsync_folder(folder.parent)
    except BaseException:
        for path in [place / name for name in files] if there else [place]:
            file_io.remove(path)
        raise


@contextmanager
def _export_fixes() -> Iterator[None]:
    """The same refusal, with a way out that belongs to this command."""
    try:
        yield
    except Failure as failure:
        failure.fix = FIX_BY_EXIT_CODE.get(failure.code, failure.fix)
        raise


def _nonempty_failure(folder: Path, found: str) -> Failure:
    fix = "name a new folder with --output, or remove what is there"
    return Failure(f"{folder} is not empty", found=found, fix=fix, code=ExitCode.OUTPUT)
