"""A checkpoint becomes a folder to hand on: weights, their description and a card, there as a whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from safetensors.torch import save

from entrypoint import ExitCode, Failure
from train.files import durable, refusals
from train.measuring.chosen import Chosen
from train.settings.config import RunConfig
from train.using import card, exported, facts

FIXES: Final = {
    ExitCode.OUTPUT: "name a folder that you may write with --output (in a container: mount one)",
    ExitCode.IO: "free space there, or name a folder on another file system with --output",
    ExitCode.SECURITY: "name the folder that the symbolic link points to with --output",
}


def export(config: RunConfig, chosen: Chosen, folder: Path) -> dict[str, int]:
    """Write the model into `folder`, which is made; the size of each file in bytes.

    Raises:
        Failure: OUTPUT for a folder that holds something, or cannot be written; IO for a full disk; and as `facts.of`.
    """
    refuse_taken(folder)
    about = facts.of(config, chosen)
    weights = save({name: tensor.contiguous() for name, tensor in about.tensors.items()}, metadata={"format": "pt"})
    told = json.dumps(exported.described(about, weights), indent=2, ensure_ascii=False) + "\n"
    files = {  # what makes the folder an export comes last
        exported.WEIGHTS: weights,
        exported.CARD: card.text(about, folder.name).encode(errors="backslashreplace"),
        exported.NAME: told.encode(errors="backslashreplace"),
    }
    with _with_our_fixes():
        _write(folder, files)
    return {name: len(data) for name, data in files.items()}


def refuse_taken(folder: Path) -> None:
    """Raises Failure (OUTPUT) unless `folder` is not there, or empty."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise _taken(folder, "it is a file")
    with _with_our_fixes(), refusals.told(folder, "read"):
        there = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    if there:
        raise _taken(folder, f"it holds {', '.join(there[:3])}{', ...' if len(there) > 3 else ''}")


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Beside its place first; into the folder itself where there is one: it may be a mount, which nothing replaces."""
    there = folder.is_dir()
    place = folder if there else folder.with_name(f"{durable.TEMPORARY}{folder.name}-{os.urandom(4).hex()}")
    durable.refuse_full(folder, sum(map(len, files.values())))
    try:
        with refusals.told(folder):
            place.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            durable.write(place / name, data)
        if not there:
            refuse_taken(folder)
            with refusals.told(folder):
                os.rename(place, folder)
                durable.sync(folder.parent)
    except BaseException:
        for path in [place / name for name in files] if there else [place]:
            durable.remove(path)
        raise


@contextmanager
def _with_our_fixes() -> Iterator[None]:
    """The same refusal, with a way out that belongs to this command."""
    try:
        yield
    except Failure as failure:
        failure.fix = FIXES.get(failure.code, failure.fix)
        raise


def _taken(folder: Path, found: str) -> Failure:
    fix = "name a new folder with --output, or remove what is there"
    return Failure(f"{folder} is not empty", found=found, fix=fix, code=ExitCode.OUTPUT)
