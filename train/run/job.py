"""From the config and a ready rank to everything that training needs, set to where the run was left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from entrypoint import Pulse
from train.data import catalog, digest, distribution, onehost, sharing
from train.data.loader import Loader, open_loader
from train.data.sampling import Course
from train.data.sets import Sets
from train.evaluation import stopping
from train.evaluation.evaluation import largest, shares
from train.faults import Faults
from train.models import bespoke, networks, syncnorm, weights
from train.optim import criterion, optimizers, schedules
from train.optim.criterion import Criterion
from train.optim.ema import Average
from train.optim.schedules import Schedule
from train.ranks.runtime import Runtime
from train.record.claim import Claim
from train.run import compiling, fitting, resuming
from train.run.compiling import Compiled, Rehearsed
from train.run.exact import Exact, refuse_hidden_state
from train.run.fitting import NOWHERE, Fit, Model, Notebook
from train.run.state import State
from train.run.usage import UNMEASURED, Usage
from train.settings import bitwise, names
from train.settings.batches import Batches, Steps, steps
from train.settings.config import RunConfig

COMPILING: Final = "compiling the model; this takes a minute or more, unless an earlier start has kept its code"
UNHEARD: Final = Pulse()  # of a rank that nobody watches


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Fixed for one start; only `state` changes. model and optimizer are as Accelerate wrapped them."""

    config: RunConfig
    runtime: Runtime
    folder: Path
    loader: Loader
    classes: tuple[str, ...]
    data: Mapping[str, Any]
    """What checkpoints say of the data, so that a run goes on with the same."""
    images: int
    held_out: int
    batches: Batches
    fit: Fit | None
    """What trials found, where the micro batch is theirs."""
    steps: Steps
    course: Course
    schedule: Schedule
    model: nn.Module
    optimizer: Optimizer
    criterion: Criterion
    exact: Exact | None
    """With train.reproducible bitwise."""
    compiled: Compiled | None
    """With train.compile."""
    state: State
    faults: Faults
    claim: Claim | None
    """The lease of the run's folder, on rank 0."""
    pulse: Pulse
    told: tuple[str, ...]
    """Lines for the banner: how often each class is seen."""
    notes: tuple[str, ...]
    usage: Usage = UNMEASURED
    first_step: Callable[[], None] | None = None
    """On rank 0, once this start has done one: it is a part of the training from then on."""

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.folder / "checkpoints"


def open_job(
    config: RunConfig,
    runtime: Runtime,
    folder: Path,
    batches: Batches,
    faults: Faults | None = None,
    claim: Claim | None = None,
    begin: Callable[[int], None] = lambda step: None,
    pulse: Pulse = UNHEARD,
    notebook: Notebook = NOWHERE,
    tell: Callable[[str], None] = lambda said: None,
) -> Job:
    """Data, model, optimizer, and the state of the last checkpoint, if this run goes on. tell: before a long wait.

    Raises Failure (DATA, NO_INPUT, USAGE) for what cannot be trained, (OUTPUT, IO) for a folder that takes none.
    """
    pulse.beat("data")
    sets, data = _opened(config, runtime)
    stopping.refuse_unmeasurable(config.eval, held_out=len(sets.held_out.labels), classes=len(sets.classes))
    samples, checkpoints = len(sets.training.labels), folder / "checkpoints"
    counted = steps(batches, samples, epochs=config.train.epochs, max_steps=config.train.max_steps)
    net = networks.build(config.model, classes=len(sets.classes), shape=sets.shape, seed=config.run.seed)
    optimizer = optimizers.build(config.optim, net, runtime.device, fused=_scaler(runtime) is None)
    found = resuming.look(config, runtime, checkpoints, net, optimizer, counted, begin)
    loaded = _first_weights(config, net, fresh=found.step is None)
    runtime.same_weights(net)
    loader, aimed, batches, fit = _fitted(config, runtime, sets, batches, notebook, pulse)
    exact = _exact(config, runtime, net, batches)
    model, wrapped = runtime.prepare(_synchronized(config, runtime, net), optimizer)
    current = _state(config, runtime, model, wrapped)
    notes = resuming.restore(config, runtime, checkpoints, found, current, data)
    pulse.beat("start")  # compiling belongs to it, whatever the data took
    code = _rehearse(config, runtime, exact, model, current.network, batches, sets, tell)
    notes = (*notes, *resuming.start_over(config, runtime, folder, begin))
    return Job(
        config=config,
        runtime=runtime,
        folder=folder,
        loader=loader,
        classes=sets.classes,
        data=data,
        images=samples,
        held_out=len(sets.held_out.labels),
        batches=batches,
        fit=fit,
        steps=counted,
        course=Course(batches=batches, steps=counted, samples=samples, rank=runtime.world.rank, seed=config.run.seed),
        schedule=schedules.schedule(config.optim, counted, batches.global_),
        model=model,
        optimizer=wrapped,
        criterion=aimed,
        exact=exact,
        compiled=code,
        state=current,
        faults=faults or Faults(),
        claim=claim,
        pulse=pulse,
        told=_told(config, sets),
        notes=(*sets.notes, *loader.notes, *loaded, *notes, *runtime.clocks(), *(faults.notes if faults else ())),
    )


def _first_weights(config: RunConfig, net: nn.Module, *, fresh: bool) -> tuple[str, ...]:
    """Put those of model.weights in, where the run is a fresh one; what is worth saying of the network."""
    loaded = weights.load(net, config.model.weights) if config.model.weights and fresh else ()
    if fresh and names.is_factory(config.model.name):
        bespoke.refuse_not_finite(config.model, net)
    return (*loaded, *bespoke.notes(net))


def _opened(config: RunConfig, runtime: Runtime) -> tuple[Sets, Mapping[str, Any]]:
    """The data, the same on all ranks, and what checkpoints say of it."""
    sets = catalog.open_sets(config.data)
    data = digest.facts(sets, config.data.root)
    digest.refuse_others(data, config.data.name, runtime.gathered)
    return sets, data


def _told(config: RunConfig, sets: Sets) -> tuple[str, ...]:
    """Of the classes: how often each is seen, and what looks like a slip in them."""
    lines = distribution.lines(sets.training.labels, sets.held_out.labels, sets.classes, config.optim.class_weights)
    return (*lines, *(f"WARNING: {warning}" for warning in sets.warnings))


def _rehearse(
    config: RunConfig,
    runtime: Runtime,
    exact: Exact | None,
    model: nn.Module,
    network: nn.Module,
    batches: Batches,
    sets: Sets,
    tell: Callable[[str], None],
) -> Compiled | None:
    """Let the model compute once; returns what was compiled for it."""
    training = compiling.images(batches.micro, sets.shape, runtime.device)
    if exact is not None:
        refuse_hidden_state(model, training)
    elif config.train.compile is not False:
        tell(COMPILING)
        size = largest(len(sets.held_out.labels), config.eval.batch_size)
        held_out = compiling.images(size, sets.shape, runtime.device) if size else None
        rehearsed = Rehearsed(training=training, held_out=held_out)
        wanted, parts = config.train.compile, batches.accumulation
        return compiling.compiled(wanted, runtime, model, network, rehearsed=rehearsed, accumulation=parts)
    else:
        runtime.rehearse(model, training)
    return None


def _fitted(
    config: RunConfig, runtime: Runtime, sets: Sets, batches: Batches, notebook: Notebook, pulse: Pulse
) -> tuple[Loader, Criterion, Batches, Fit | None]:
    """Loader and criterion, and the micro batch where it is to be found out: once the images have their memory."""
    seed, device, classes = config.run.seed, runtime.device, len(sets.classes)
    host = onehost.host(runtime.world, runtime.gathered)
    loader = open_loader(sets, config.data, seed=seed, device=device, cores=host.cores(), pulse=pulse, host=host)
    counts = distribution.counts(sets.training.labels, classes).tolist()
    aimed = criterion.criterion(config.optim, counts).to(device)
    tried = Model(config=config, classes=classes, shape=sets.shape, criterion=aimed)
    batches, fit = fitting.fitted(tried, runtime, batches, notebook, pulse)
    blocks = shares(len(sets.held_out.labels), config.eval.batch_size, runtime.world)
    images = batches.micro + max(map(len, blocks), default=0)
    sharing.refuse_small(loader.workers, images * math.prod(sets.shape.stored), ranks=runtime.world.local_world_size)
    return loader, aimed, batches, fit


def _synchronized(config: RunConfig, runtime: Runtime, net: nn.Module) -> nn.Module:
    return syncnorm.convert(net, runtime.device, runtime.control) if config.train.sync_batchnorm else net


def _exact(config: RunConfig, runtime: Runtime, net: nn.Module, batches: Batches) -> Exact | None:
    """Refused by every task's parent already; once more here, where the world is real."""
    bitwise.refuse(config, runtime.world.world_size)
    wanted = bitwise.asked_for(config.train)
    return Exact(net, runtime.world, micro_batches=batches.global_ // batches.micro) if wanted else None


def _state(config: RunConfig, runtime: Runtime, model: nn.Module, optimizer: Optimizer) -> State:
    network, decay = runtime.unwrapped(model), config.train.ema_decay
    average = None if decay is None else Average(network, decay)
    return State(network=network, optimizer=optimizer, scaler=_scaler(runtime), average=average)


def _scaler(runtime: Runtime) -> torch.amp.GradScaler | None:
    return runtime.accelerator.scaler  # type: ignore[no-any-return]
