"""The facts of a start become run.json and config.yaml: what ran, where, with what."""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from entrypoint import World, redact_words
from train.files import durable, plain, refusals
from train.record import source
from train.settings import schema
from train.settings.config import RunConfig

RUN, CONFIG = "run.json", "config.yaml"
PROJECT = "train-image"
PACKAGES = (PROJECT, "torch", "torchvision", "accelerate", "safetensors", "numpy")
# What belongs to a training that is not continued; the configuration and the record of it go with it.
RESULTS = (
    "checkpoints",
    "best.json",
    "confusion.json",
    "confusion-best.json",
    "metrics.jsonl",
    "tensorboard",
    "profile",
    "report",
    "errors",
    RUN,
    CONFIG,
)


def write_config(run_folder: Path, config: RunConfig) -> None:
    """Write `config.yaml`, complete, so that `train --config` of it is the same run. On rank 0.

    Raises:
        Failure: as in `refusals.MEANING`.
    """
    durable.write(run_folder / CONFIG, schema.dump(config).encode())


def write_start(
    run_folder: Path,
    *,
    step: int,
    world_size: int | None,
    hosts: Sequence[str],
    launcher: str,
    environ: Mapping[str, str],
    now: float,
) -> None:
    """Complete the entry of this start in `starts` of `run.json`, where `starts.begin` has begun one. On rank 0.

    Args:
        step: the step that this start goes on from (0: from the start).
        world_size: None for a start that finds the run finished and trains nothing: its place is not the training's.
        now: seconds since 1970.

    Raises:
        Failure: as in `refusals.MEANING`.
    """
    ranks = {"idle": True} if world_size is None else {"world_size": world_size}
    start = {"at": utc(now), "step": step, **ranks, "hosts": [*hosts], "launcher": launcher}
    found = read_run(run_folder) or {}
    before = found.get("starts", [])
    begun = before.pop() if before and not {"world_size", "idle"} & before[-1].keys() else {}  # a moment ago
    durable.write_json(run_folder / RUN, found | {"starts": [*before, {**begun, **start, **job(environ)}]})


def write_run(
    run_folder: Path,
    *,
    world: World,
    hosts: Sequence[str],
    launcher: str,
    sources: Mapping[str, str],
    argv: Sequence[str],
    environ: Mapping[str, str],
    variables: Mapping[str, Mapping[str, str]],
    training: Mapping[str, Any],
) -> None:
    """Write what `run.json` says of the training: the facts of this start in place of an earlier one's. On rank 0.

    Args:
        hosts: one name per node; `sources`: for each fact the variable it came from.
        variables: of the caller: those that act, and those that were not used.
        training: what `auto`, the data and the model came to: runs are compared by it.

    Raises:
        Failure: as in `refusals.MEANING`.
    """
    image = source.image(environ)
    facts = {
        "versions": versions(),
        "image": image,
        "git": source.commit() or (image or {}).get("revision"),
        "world": asdict(world),
        "training": dict(training),
        "sources": dict(sources),
        "argv": redact_words(argv),
        "variables": {kind: dict(found) for kind, found in variables.items()},
        "starts": (read_run(run_folder) or {}).get("starts", []),
    }
    durable.write_json(run_folder / RUN, {"hosts": [*hosts], "launcher": launcher} | facts)


def read_run(run_folder: Path) -> dict[str, Any] | None:
    """What `write_run` left; None when there is none or it is unreadable."""
    try:
        found = plain.read_json(run_folder / RUN)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("starts"), list) else None


def versions() -> dict[str, str | None]:
    """Python's, this project's and its packages' versions; None for one that is not installed as a package."""
    return {"python": platform.python_version()} | {name: installed(name) for name in PACKAGES}


def set_aside(run_folder: Path) -> Path | None:
    """Move an earlier run's results to `before-N/` (checkpoint.resume=never); the folder, or None if there were none.

    Raises:
        Failure: as in `refusals.MEANING`.
    """
    with refusals.told(run_folder, "read"):
        there = [name for name in RESULTS if _holds_something(run_folder / name)]
    if not there:
        return None
    places = (run_folder / f"before-{number}" for number in itertools.count(1))
    place = next(place for place in places if not place.exists())
    with refusals.told(place):
        place.mkdir()
        for name in there:
            os.rename(run_folder / name, place / name)
        durable.sync(run_folder)
    return place


def _holds_something(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def job(environ: Mapping[str, str]) -> dict[str, str]:
    """The scheduler's name for this start: the same job id again is a requeue."""
    nouns = {"job": "SLURM_JOB_ID", "restart": "SLURM_RESTART_COUNT"}
    return {noun: environ[variable] for noun, variable in nouns.items() if environ.get(variable)}


def installed(package: str) -> str | None:
    """Its version; None where it is not installed as a package. Nothing of it is imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def utc(seconds: float) -> str:
    """For people."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
