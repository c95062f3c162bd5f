"""A folder that `train export` wrote: what is in its model.json, and the network loaded back from it, ready to use."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from
from torch import Tensor, nn

from entrypoint import ExitCode, Failure
from train.checkpoint import manifest
from train.checkpoint.manifest import Damaged, Entry
from train.data import augment
from train.data.shape import Shape
from train.files import plain
from train.models import networks
from train.settings import names, schema, yaml12
from train.settings.config import Model
from train.using import pixels, takes
from train.using.facts import About
from train.using.takes import Made, Takes

NAME, WEIGHTS, CARD = "model.json", "model.safetensors", "README.md"
FORMAT: Final = 1
MISSING: Final = "name the folder that `train export` wrote"
DAMAGED: Final = "export it again; nothing of it was used"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A network in evaluation mode on the CPU, whose weights do not ask for gradients, and what it takes and tells."""

    network: nn.Module
    classes: tuple[str, ...]
    shape: Shape
    bytes_: bool
    made: Made = "files"

    @property
    def takes(self) -> Takes:
        """The same without the network."""
        return Takes(classes=self.classes, shape=self.shape, bytes_=self.bytes_, made=self.made)

    def read(self, paths: Sequence[str | Path]) -> Tensor:
        """Image files as the network takes them, float32 [n, channels, size, size].

        Warns where it learned from arrays: how those were made of images is not known here.

        Raises:
            Failure: USAGE where it takes no image files; DATA or NO_INPUT for one that cannot be read.
        """
        takes.refuse_files(self.takes)
        if doubt := takes.doubt(self.takes):
            warnings.warn(doubt, stacklevel=2)
        read = [pixels.read(Path(path), self.shape, draft=self.made != "pictures") for path in paths]
        return augment.normalized(torch.from_numpy(np.stack(read)))


def described(about: About, weights: bytes) -> dict[str, Any]:
    """What model.json holds."""
    taken, model = about.takes, about.config.model
    around = {"subtract": augment.MIDDLE, "divide": augment.SPREAD}
    return {
        "format": FORMAT,
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
        "weights": {"file": WEIGHTS, **asdict(manifest.entry(weights)), "averaged": about.averaged},
        "checkpoint": {"run": about.config.run.name, "step": about.step},
        "config": asdict(about.config),
    }


def load(folder: str | Path, factory: Callable[..., nn.Module] | None = None) -> Exported:
    """The model in `folder`. Its weights are compared with their sha256, nothing is unpickled, and no code that the
    folder names or holds is run.

    factory: for a network of the user's own (`module:factory`), the function that makes it. It gets the `args` that
    the folder tells.

    Raises:
        Failure: NO_INPUT where there is no export, DATA for a damaged or newer one, USAGE for a network that cannot be
            built, SECURITY for one whose factory is not given.
    """
    place = Path(folder)
    told = _told(place)
    wanted = _model(place, told)
    if names.is_factory(wanted.name) and factory is None:
        raise Failure(
            f"the network of {place} is made by code that is not taken from there",
            found=f"model.name: {wanted.name}",
            expected="the function itself, from code that you know",
            fix="import it, and give it: exported.load(folder, factory=FUNCTION)",
            code=ExitCode.SECURITY,
        )
    try:
        # The run's own: what a network draws and keeps out of its state dict comes from nothing else.
        seed = int(told.get("config", {}).get("run", {}).get("seed", 0))
        taken, shape = told["input"], Shape(channels=told["input"]["channels"], size=tuple(told["input"]["size"]))
        made = takes.made(taken.get("made"), told.get("config", {}).get("data", {}).get("name"))
        classes, bytes_ = tuple(map(str, told["classes"])), taken["numbers"] == "uint8"
        tensors = _tensors(place, Entry(size=int(told["weights"]["size"]), sha256=str(told["weights"]["sha256"])))
    except (Damaged, LookupError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(place, f"{type(error).__name__}: {error}") from error
    with torch.random.fork_rng(devices=[]):
        network = networks.build(wanted, classes=len(classes), shape=shape, seed=seed, factory=factory)
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise _damaged(place, " ".join(str(error).split())[:300]) from error
    return Exported(
        network=network.requires_grad_(False).eval(), classes=classes, shape=shape, bytes_=bytes_, made=made
    )


def model(folder: Path) -> Model:
    """The name and the arguments of the network in `folder`. Raises Failure as `load`."""
    return _model(folder, _told(folder))


def _model(place: Path, told: dict[str, Any]) -> Model:
    """Held to the rules of a config: torchvision has builders of other networks, which would download."""
    try:
        value = {"model": {"name": str(told["name"]), "args": dict(told["args"])}}
    except (LookupError, TypeError, ValueError) as error:
        raise _damaged(place, f"{type(error).__name__}: {error}") from error
    return schema.build(yaml12.Document(value=value, lines={}), str(place / NAME)).model


def _told(place: Path) -> dict[str, Any]:
    try:
        told = plain.read_json(place / NAME)
    except OSError as error:
        found = f"{place / NAME}: {error.strerror}"
        raise Failure(f"{place} is no export", found=found, fix=MISSING, code=ExitCode.NO_INPUT) from error
    except ValueError as error:
        raise _damaged(place, f"{NAME}: {error}") from error
    number = told.get("format") if isinstance(told, dict) else None
    if number != FORMAT:
        raise _damaged(place, f"{NAME} has the format {number}; this version reads {FORMAT}")
    return told  # type: ignore[no-any-return]


def _tensors(place: Path, expected: Entry) -> dict[str, Tensor]:
    try:
        data = plain.read(place / WEIGHTS, limit=expected.size)
        manifest.compare(WEIGHTS, expected, manifest.entry(data))
        return tensors_from(data)
    except (OSError, SafetensorError) as error:
        raise Damaged(f"{WEIGHTS}: {error}") from error


def _damaged(place: Path, found: str) -> Failure:
    return Failure(f"the export {place} cannot be read back", found=found, fix=DAMAGED, code=ExitCode.DATA)
