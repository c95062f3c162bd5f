"""Where a run goes on: the checkpoint that rank 0 chose, put into the state of every rank; and what one must hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer

from train import changes, checkpoint, record, state, stopping
from train.config import RunConfig
from train.runtime import Runtime
from train.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The step of the checkpoint to go on from, None for a fresh run; and what is worth saying of it."""

    step: int | None
    notes: tuple[str, ...]


def look(config: RunConfig, runtime: Runtime, folder: Path, net: nn.Module, optimizer: Optimizer) -> Found:
    """Rank 0 looks into the folder of checkpoints and decides, once it was shown to take some of this size.

    Raises:
        Failure: DATA for a changed configuration or where no checkpoint is whole; OUTPUT, IO for the folder.
    """
    size = sum(tensor.nbytes for tensor in net.state_dict().values())
    need = 2 * size * copies(optimizer, averaged=config.train.ema_decay is not None)
    step, notes = runtime.shared(lambda: _choose(config, folder, need))
    return Found(step=step, notes=tuple(notes))


def restore(config: RunConfig, runtime: Runtime, folder: Path, found: Found, current: State) -> tuple[str, ...]:
    """Set `current` to what was found; returns what is worth saying. All ranks read the same checkpoint.

    Raises:
        Failure: DATA where it does not fit, or was damaged since.
    """
    if found.step is None:
        return found.notes
    tensors, facts = checkpoint.load(checkpoint.at(folder, found.step))
    state.restore(current, tensors, facts["state"])
    current.held = stopping.still_held(config.eval, current.held, current.result)
    return (*found.notes, *_other_world(facts, runtime))


def kept(config: RunConfig, runtime: Runtime, current: State) -> tuple[dict[str, Any], dict[str, Any]]:
    """(tensors, facts) of a checkpoint: the state, and what it may be continued with."""
    facts = {"state": state.facts(current), "config": asdict(config), "world_size": runtime.world.world_size}
    return state.tensors(current), facts


def copies(optimizer: Optimizer, *, averaged: bool) -> int:
    """How many times the size of the weights a checkpoint has: themselves, the optimizer's one or two moments of
    them, their average."""
    return 1 + (1 if isinstance(optimizer, SGD) else 2) + averaged


def _choose(config: RunConfig, folder: Path, need: int) -> tuple[int | None, list[str]]:
    notes = []
    if config.checkpoint.resume == "never" and (aside := record.set_aside(folder.parent)):
        notes.append(f"checkpoint.resume=never: the earlier run was moved to {aside}")
    notes += [f"removed {name}, which an interrupted save left" for name in checkpoint.prepare(folder, need=need)]
    found = checkpoint.newest(folder)
    if found is None:
        return None, notes
    notes += [f"skipped a damaged checkpoint: {reason}" for reason in found.skipped]
    changes.refuse_changes(checkpoint.load(found)[1]["config"], asdict(config))
    return found.step, notes


def _other_world(facts: dict[str, Any], runtime: Runtime) -> list[str]:
    before, now = facts["world_size"], runtime.world.world_size
    said = f"the run began on {before} ranks and goes on with {now}: same samples, same learning rates, other rounding"
    return [said] if before != now else []
