"""A run's tensors and JSON become a committed checkpoint folder, and the newest valid one comes back.

`checkpoints/step-00001200/` holds one `<group>.safetensors` for each group of tensors, `state.json`, and
`manifest.json` with the size and sha256 of each. Nothing is ever unpickled (see `train.flatten` for optimizers).

Order of a commit, and what a kill or a power cut leaves at each point:

1. `.tmp-...` folder, each file written and fsynced: ignored, swept at the next start;
2. the manifest, written last, by rename, and the folder fsynced: the same;
3. the folder renamed to `step-...`: whole, since all of it was on disk before;
4. `checkpoints/` fsynced: **committed**. `save` returns after this point only.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_from
from torch import Tensor

from entrypoint import ExitCode, Failure
from train import durable, manifest
from train.manifest import Damaged, Entry, Manifest

STATE = "state.json"
SUFFIX = ".safetensors"
STEP = re.compile(r"step-(\d{8,})")
REPLACED = ".old-"  # a checkpoint of the same step, until the new one stands in its place


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A checkpoint whose hashes were right when it was found; `skipped` says which newer ones were not, and why."""

    path: Path
    step: int
    contents: Manifest
    skipped: tuple[str, ...] = ()


def save(
    folder: Path,
    *,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    keep: int,
    best: int | None = None,
) -> Path:
    """Commit a checkpoint of `step` in `folder` (the run's `checkpoints/`), then prune. On rank 0 only.

    Args:
        tensors: by group ("model", "optimizer") and name; any device, any layout; copied before they are written.
        state: everything else, as JSON; NaN and infinities are allowed.
        keep: how many checkpoints stay; `best` is a step that stays as well.

    Saving the same content again writes nothing. Another content for the same step replaces it.

    Raises:
        Failure: IO or OUTPUT, see `durable.MEANING`; `kept` names the last committed checkpoint.
    """
    raise NotImplementedError


def newest(folder: Path) -> Committed | None:
    """The newest checkpoint whose manifest and hashes are right, checked before anything is parsed; None if none is.

    Raises:
        Failure: DATA when there are checkpoints and all are damaged, or the newest was written by a newer version;
            SECURITY for links and for paths in a manifest.
    """
    raise NotImplementedError


def at(folder: Path, step: int) -> Committed:
    """The checkpoint of `step`: for the ranks that are told which one rank 0 has chosen. Raises as `newest` does."""
    raise NotImplementedError


def load(committed: Committed) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """(tensors by group and name, on the CPU; state) of a checkpoint, hashed again as it is read.

    Raises:
        Failure: DATA when it was damaged since it was found.
    """
    raise NotImplementedError


def prune(folder: Path, *, keep: int, best: int | None = None, trusted: int | None = None) -> list[str]:
    """Delete all but the `keep` newest whole checkpoints, never `best` nor the newest valid one; the names deleted.

    trusted: the step that this process has just committed; it needs no reading again.
    """
    raise NotImplementedError


def sweep(folder: Path) -> list[str]:
    """Remove what killed writers left in `folder`, and say what. On rank 0, before anything is written there."""
    raise NotImplementedError
