"""A run's tensors and JSON become a committed checkpoint folder, and the newest valid one comes back.

`checkpoints/step-00001200/` holds one `<group>.safetensors` for each group of tensors, `state.json`, and
`manifest.json` with the size and sha256 of each. Nothing is ever unpickled (see `flatten` for optimizers).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from
from torch import Tensor

from entrypoint import ExitCode, Failure
from train.checkpoint import commit, manifest, shelf, snapshot
from train.checkpoint.manifest import Damaged, Manifest
from train.checkpoint.snapshot import STATE, SUFFIX, Snapshot
from train.files import durable, refusals

OVER = "start over with checkpoint.resume=never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A checkpoint whose manifest is right; of `newest`, its hashes too: `skipped` says which newer ones were not."""

    path: Path
    step: int
    contents: Manifest
    skipped: tuple[str, ...] = ()


def prepare(folder: Path, *, need: int = 0) -> list[str]:
    """Make `folder` ready: sweep what killed writers left (their names are returned), and rehearse one small save.

    The rehearsal shows before training that checkpoints can be kept there, with `need` bytes to spare, and loads all
    code that a save runs: a signal may take the image's file server away (Apptainer under proctrack/linuxproc).
    On rank 0, before `newest`.

    Raises:
        Failure: as `save` does.
    """
    shelf.steps(folder)  # refuses a link before anything is written through it
    durable.prepare(folder, need)
    swept = shelf.sweep(folder)
    rehearsal = folder / f"{durable.TEMPORARY}rehearsal"
    try:
        save(rehearsal, step=0, tensors={"model": {"weight": torch.zeros(1)}}, state={}, keep=1)
        newest(rehearsal)
    finally:
        durable.remove(rehearsal)
    return swept


def save(
    folder: Path,
    *,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    keep: int,
    best: int | None = None,
) -> Path:
    """`write` what `snapshot.take` takes, then prune: `keep` checkpoints stay, and that of step `best`."""
    final = write(folder, snapshot.take(step, tensors, state))
    shelf.prune(folder, keep=keep, best=best, trusted=step)
    return final


def write(folder: Path, taken: Snapshot) -> Path:
    """Commit a snapshot in `folder` (the run's `checkpoints/`). On rank 0 only, in any thread: torch is not used.

    Writing the same content again changes nothing. Another content for the same step replaces it.

    Raises:
        Failure: as in `refusals.MEANING`, before anything is written where there is no room for it; `kept` names the
            last committed checkpoint.
    """
    before = shelf.steps(folder)
    final = folder / shelf.name(taken.step)
    try:
        entries = {name: manifest.entry(data) for name, data in taken.files.items()}
        contents = Manifest(format=manifest.FORMAT, step=taken.step, torch=taken.torch, files=entries)
        with refusals.told(final):
            if not commit.holds(final, contents):
                durable.refuse_full(folder, taken.size)
                commit.make(final, taken.files, contents)
    except Failure as failure:
        failure.kept = next((str(path) for path in reversed(before.values()) if shelf.is_valid(path)), None)
        raise
    return final


def newest(folder: Path) -> Committed | None:
    """The newest checkpoint whose manifest and hashes are right, checked before anything is parsed; None if none is.

    Raises:
        Failure: DATA when there are checkpoints and all are damaged, or the newest was written by a newer version;
            SECURITY for links and for paths in a manifest.
    """
    skipped: list[str] = []
    for step, path in reversed(shelf.steps(folder).items()):
        try:
            return Committed(path=path, step=step, contents=shelf.examine(path), skipped=tuple(skipped))
        except Damaged as reason:
            skipped.append(f"{path.name}: {reason}")
    if skipped:
        raise Failure(f"no checkpoint in {folder} is whole", found="; ".join(skipped), fix=OVER, code=ExitCode.DATA)
    return None


def at(folder: Path, step: int) -> Committed:
    """The checkpoint of `step`: for the ranks that are told which one rank 0 has chosen. `load` compares its hashes.

    Raises as `newest` does.
    """
    path = shelf.steps(folder).get(step, folder / shelf.name(step))
    try:
        return Committed(path=path, step=step, contents=shelf.listed(path))
    except Damaged as reason:
        raise _damaged(path, reason) from reason


def load(
    committed: Committed, groups: Collection[str] | None = None
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """(tensors by group and name, on the CPU; state) of a checkpoint, hashed again as it is read.

    groups: those to read, as far as they are there; None for all.

    Raises:
        Failure: DATA when it was damaged since it was found.
    """
    try:
        names = [name for name in committed.contents.files if name.endswith(SUFFIX)]
        wanted = [name for name in names if groups is None or name.removesuffix(SUFFIX) in groups]
        tensors = {name.removesuffix(SUFFIX): tensors_from(_checked(committed, name)) for name in wanted}
        return tensors, json.loads(_checked(committed, STATE))
    except (Damaged, SafetensorError, ValueError, KeyError, RecursionError) as reason:
        raise _damaged(committed.path, reason) from reason


def _checked(committed: Committed, name: str) -> bytes:
    expected = committed.contents.files[name]
    data = manifest.read(committed.path, name, limit=expected.size)
    manifest.compare(name, expected, manifest.entry(data))
    return data


def _damaged(path: Path, reason: Exception) -> Failure:
    fix = f"delete it, so that the one before is taken, or {OVER}"
    return Failure(f"the checkpoint {path} is damaged", found=str(reason), fix=fix, code=ExitCode.DATA)
