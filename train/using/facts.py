"""A checkpoint, and what lies beside it in its run, become the facts that a model is handed on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from train.evaluation.scores import Result
from train.measuring import measuring
from train.measuring.chosen import Chosen
from train.record import record
from train.settings.config import RunConfig
from train.using import takes
from train.using.takes import Takes


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """tensors: averaged over steps, where the run did so. told: the checkpoint's state.json. recorded: run.json of its
    run, as the last start that trained left it; empty where it is not there."""

    config: RunConfig
    takes: Takes
    path: Path
    step: int
    tensors: Mapping[str, Tensor]
    averaged: bool
    told: Mapping[str, Any]
    recorded: Mapping[str, Any]

    @property
    def result(self) -> Result | None:
        """What was measured of these very weights, where they were measured."""
        of = section(self.told, "state")
        if not of.get("result") or of.get("evaluated") != self.step:
            return None
        known = {one.name for one in fields(Result)}  # a later version may measure more
        return Result(**{name: value for name, value in of["result"].items() if name in known})


def of(config: RunConfig, chosen: Chosen) -> About:
    """All there is to know. Raises Failure as `measuring.read` and `takes.of`."""
    told, weights = takes.state(chosen), measuring.read(chosen)
    return About(
        config=config,
        takes=takes.of(config, told),
        path=chosen.path,
        step=chosen.contents.step,
        tensors=weights.tensors,
        averaged=weights.averaged,
        told=told,
        recorded=_beside(chosen.path),
    )


def section(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of it that may be missing, or be something else in a file of others' making."""
    found = mapping.get(name)
    return found if isinstance(found, Mapping) else {}


def _beside(checkpoint: Path) -> Mapping[str, Any]:
    inside = checkpoint.parent.name == "checkpoints"
    return (record.read_run(checkpoint.parents[1]) if inside else None) or {}
