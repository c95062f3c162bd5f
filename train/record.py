"""The facts of a start become run.json and config.yaml: what ran, where, with what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from entrypoint import World
from train.config import RunConfig

IMAGE = Path("/opt/image.json")  # written when the image is built: its name, digest and commit


def write_config(run_folder: Path, config: RunConfig) -> None:
    """Write `config.yaml`, complete, so that `train --config` of it is the same run. On rank 0.

    Raises:
        Failure: see `durable.MEANING`.
    """
    raise NotImplementedError


def write_run(
    run_folder: Path,
    *,
    step: int,
    world: World,
    hosts: Sequence[str],
    launcher: str,
    sources: Mapping[str, str],
    argv: Sequence[str],
    environ: Mapping[str, str],
    now: float,
) -> None:
    """Write `run.json`: the facts of this start, and one entry in `starts` for each start so far. On rank 0.

    Args:
        step: the step that this start goes on from (0: from the start).
        hosts: one name per node; `sources`: for each fact the variable it came from.
        now: seconds since 1970.

    Raises:
        Failure: see `durable.MEANING`.
    """
    raise NotImplementedError


def read_run(run_folder: Path) -> dict[str, Any] | None:
    """What `write_run` left; None when there is none or it is unreadable."""
    raise NotImplementedError


def set_aside(run_folder: Path) -> Path | None:
    """Move an earlier run's checkpoints, metrics and records to `before-N/` (checkpoint.resume=never); None if none."""
    raise NotImplementedError
