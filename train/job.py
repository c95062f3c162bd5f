"""From the config and a ready rank to everything that training needs, set to where the run was left."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from train import changes, checkpoint, criterion, data, distribution, models, optim, record, schedules, state, stopping
from train.batches import Batches, Steps, steps
from train.config import RunConfig
from train.ema import Average
from train.loader import Loader, open_loader
from train.runtime import Runtime
from train.sampling import Course
from train.schedules import Schedule
from train.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Fixed for one start; only `state` changes. model and optimizer are as Accelerate wrapped them."""

    config: RunConfig
    runtime: Runtime
    folder: Path
    loader: Loader
    classes: tuple[str, ...]
    images: int
    held_out: int
    batches: Batches
    steps: Steps
    course: Course
    schedule: Schedule
    model: nn.Module
    optimizer: Optimizer
    criterion: nn.Module
    state: State
    told: tuple[str, ...]
    """Lines for the banner: how often each class is seen."""
    notes: tuple[str, ...]

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.folder / "checkpoints"


def open_job(config: RunConfig, runtime: Runtime, folder: Path, batches: Batches) -> Job:
    """Data, model, optimizer, and the state of the last checkpoint, if this run goes on.

    Raises:
        Failure: DATA, NO_INPUT or USAGE for what cannot be trained; OUTPUT or IO for a folder that takes no checkpoint.
    """
    train = config.train
    sets = data.open_sets(config.data)
    labels, images = sets.training.labels, len(sets.training.labels)
    counts = distribution.counts(labels, len(sets.classes)).tolist()
    counted = steps(batches, images, epochs=train.epochs, max_steps=train.max_steps)
    net = models.build(config.model, classes=len(sets.classes), shape=sets.shape, seed=config.run.seed)
    model, optimizer = runtime.prepare(net, optim.build(config.optim, net))
    current = _state(config, runtime, model, optimizer)
    notes = resume(config, runtime, folder / "checkpoints", current)
    runtime.rehearse(model, models.laid_out(torch.zeros((batches.micro, *sets.shape.input), device=runtime.device)))
    return Job(
        config=config,
        runtime=runtime,
        folder=folder,
        loader=open_loader(sets, config.data, seed=config.run.seed, device=runtime.device, cores=runtime.cores),
        classes=sets.classes,
        images=images,
        held_out=len(sets.held_out.labels),
        batches=batches,
        steps=counted,
        course=Course(batches=batches, steps=counted, samples=images, rank=runtime.world.rank, seed=config.run.seed),
        schedule=schedules.schedule(config.optim, counted, batches.global_),
        model=model,
        optimizer=optimizer,
        criterion=criterion.criterion(config.optim, counts).to(runtime.device),
        state=current,
        told=tuple(distribution.lines(labels, sets.held_out.labels, sets.classes, config.optim.class_weights)),
        notes=(*sets.notes, *notes),
    )


def resume(config: RunConfig, runtime: Runtime, folder: Path, current: State) -> tuple[str, ...]:
    """Set `current` to the newest valid checkpoint in `folder`, if there is one; returns what is worth saying.

    Rank 0 looks and decides; all ranks read the one that it chose.

    Raises:
        Failure: DATA for a changed configuration or where no checkpoint is whole.
    """
    step, notes = runtime.shared(lambda: _choose(config, folder, current))
    if step is None:
        return tuple(notes)
    tensors, facts = checkpoint.load(checkpoint.at(folder, step))
    state.restore(current, tensors, facts["state"])
    current.held = stopping.still_held(config.eval, current.held, current.result)
    return (*notes, *_other_world(facts, runtime))


def kept(config: RunConfig, runtime: Runtime, current: State) -> tuple[dict[str, Any], dict[str, Any]]:
    """(tensors, facts) of a checkpoint: the state, and what it may be continued with."""
    facts = {"state": state.facts(current), "config": asdict(config), "world_size": runtime.world.world_size}
    return state.tensors(current), facts


def _choose(config: RunConfig, folder: Path, current: State) -> tuple[int | None, list[str]]:
    """The step to go on from, once the folder was shown to take checkpoints of this size."""
    notes = []
    if config.checkpoint.resume == "never" and (aside := record.set_aside(folder.parent)):
        notes.append(f"checkpoint.resume=never: the earlier run was moved to {aside}")
    size = sum(tensor.nbytes for tensor in current.network.state_dict().values())
    swept = checkpoint.prepare(folder, need=_copies(current.optimizer) * size)
    notes += [f"removed {name}, which an interrupted save left" for name in swept]
    found = checkpoint.newest(folder)
    if found is None:
        return None, notes
    notes += [f"skipped a damaged checkpoint: {reason}" for reason in found.skipped]
    changes.refuse_changes(checkpoint.load(found)[1]["config"], asdict(config))
    return found.step, notes


def _copies(optimizer: Optimizer) -> int:
    """Room for two checkpoints, each with the weights and the optimizer's one or two moments of them."""
    return 2 * (3 if "betas" in optimizer.param_groups[0] else 2)


def _other_world(facts: dict[str, Any], runtime: Runtime) -> list[str]:
    before, now = facts["world_size"], runtime.world.world_size
    said = f"the run began on {before} ranks and goes on with {now}: same samples, same learning rates, other rounding"
    return [said] if before != now else []


def _state(config: RunConfig, runtime: Runtime, model: nn.Module, optimizer: Optimizer) -> State:
    network, decay = runtime.accelerator.unwrap_model(model), config.train.ema_decay
    average = None if decay is None else Average(network, decay)
    return State(network=network, optimizer=optimizer, scaler=_scaler(runtime), average=average)


def _scaler(runtime: Runtime) -> torch.amp.GradScaler | None:
    return runtime.accelerator.scaler  # type: ignore[no-any-return]
