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

from entrypoint import Heartbeat
from train import batch_size
from train.batch_size import NOWHERE, Fit, Model, Notebook
from train.config import checks, schema
from train.config.batches import BatchSizes, StepCounts, count_steps
from train.config.schema import RunConfig
from train.data import statistics
from train.data.loader import BatchLoader, open_loader, refuse_small_shared_memory
from train.data.registry import open_splits
from train.data.sampler import BatchSampler
from train.data.splits import DataSplits
from train.distributed import shared_memory, sync_batchnorm
from train.distributed.bitwise import Exact, refuse_hidden_state
from train.distributed.runtime import Runtime
from train.evaluation import early_stopping
from train.evaluation.evaluate import max_batch_size, rank_batches
from train.fault_injection import FaultInjector
from train.logging.usage import NO_USAGE_RECORDER, UsageRecorder
from train.models import custom, registry, weights
from train.optim import loss
from train.optim import optimizer as optimizers
from train.optim.ema import EMA
from train.optim.loss import Criterion
from train.optim.schedule import Schedule, build_schedule
from train.run import compiling, resuming
from train.run.compiling import Compiled, Rehearsed
from train.run.lock import RunLock
from train.run.state import State

COMPILING: Final = "compiling the model; this takes a minute or more, unless an earlier start has kept its code"
UNHEARD: Final = Heartbeat()  # of a rank that nobody watches


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Fixed for one start; only `state` changes. model and optimizer are as Accelerate wrapped them."""

    config: RunConfig
    runtime: Runtime
    folder: Path
    loader: BatchLoader
    classes: tuple[str, ...]
    data: Mapping[str, Any]
    """What checkpoints say of the data, so that a run goes on with the same."""
    images: int
    held_out: int
    batches: BatchSizes
    fit: Fit | None
    """What trials found, where the micro batch is theirs."""
    steps: StepCounts
    course: BatchSampler
    schedule: Schedule
    model: nn.Module
    optimizer: Optimizer
    criterion: Criterion
    exact: Exact | None
    """With train.reproducible bitwise."""
    compiled: Compiled | None
    """With train.compile."""
    state: State
    faults: FaultInjector
    claim: RunLock | None
    """The lease of the run's folder, on rank 0."""
    pulse: Heartbeat
    told: tuple[str, ...]
    """Lines for the banner: how often each class is seen."""
    notes: tuple[str, ...]
    usage: UsageRecorder = NO_USAGE_RECORDER
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
    batches: BatchSizes,
    faults: FaultInjector | None = None,
    claim: RunLock | None = None,
    begin: Callable[[int], None] = lambda step: None,
    pulse: Heartbeat = UNHEARD,
    notebook: Notebook = NOWHERE,
    tell: Callable[[str], None] = lambda said: None,
) -> Job:
    """Data, model, optimizer, and the state of the last checkpoint, if this run goes on. tell: before a long wait.

    Raises Failure (DATA, NO_INPUT, USAGE) for what cannot be trained, (OUTPUT, IO) for a folder that takes none.
    """
    pulse.beat("data")
    sets, data = _opened(config, runtime)
    early_stopping.refuse_unusable_metric(config.eval, held_out=len(sets.validation.labels), classes=len(sets.classes))
    samples, checkpoints = len(sets.training.labels), folder / "checkpoints"
    counted = count_steps(batches, samples, epochs=config.train.epochs, max_steps=config.train.max_steps)
    net = registry.build_model(config.model, classes=len(sets.classes), shape=sets.shape, seed=config.run.seed)
    optimizer = optimizers.build_optimizer(config.optim, net, runtime.device, fused=_scaler(runtime) is None)
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
        held_out=len(sets.validation.labels),
        batches=batches,
        fit=fit,
        steps=counted,
        course=BatchSampler(
            batches=batches, steps=counted, samples=samples, rank=runtime.world.rank, seed=config.run.seed
        ),
        schedule=build_schedule(config.optim, counted, batches.global_),
        model=model,
        optimizer=wrapped,
        criterion=aimed,
        exact=exact,
        compiled=code,
        state=current,
        faults=faults or FaultInjector(),
        claim=claim,
        pulse=pulse,
        told=_told(config, sets),
        notes=(*sets.notes, *loader.notes, *loaded, *notes, *runtime.clocks(), *(faults.notes if faults else ())),
    )


def _first_weights(config: RunConfig, net: nn.Module, *, fresh: bool) -> tuple[str, ...]:
    """Put those of model.weights in, where the run is a fresh one; what is worth saying of the network."""
    loaded = weights.load_weights(net, config.model.weights) if config.model.weights and fresh else ()
    if fresh and schema.is_factory(config.model.name):
        custom.refuse_nonfinite_weights(config.model, net)
    return (*loaded, *custom.eval_mode_notes(net))


def _opened(config: RunConfig, runtime: Runtime) -> tuple[DataSplits, Mapping[str, Any]]:
    """The data, the same on all ranks, and what checkpoints say of it."""
    sets = open_splits(config.data)
    data = statistics.data_fingerprint(sets, config.data.root)
    statistics.refuse_different_data(data, config.data.name, runtime.gathered)
    return sets, data


def _told(config: RunConfig, sets: DataSplits) -> tuple[str, ...]:
    """Of the classes: how often each is seen, and what looks like a slip in them."""
    lines = statistics.describe_class_balance(
        sets.training.labels, sets.validation.labels, sets.classes, config.optim.class_weights
    )
    return (*lines, *(f"WARNING: {warning}" for warning in sets.warnings))


def _rehearse(
    config: RunConfig,
    runtime: Runtime,
    exact: Exact | None,
    model: nn.Module,
    network: nn.Module,
    batches: BatchSizes,
    sets: DataSplits,
    tell: Callable[[str], None],
) -> Compiled | None:
    """Let the model compute once; returns what was compiled for it."""
    training = compiling.images(batches.micro, sets.shape, runtime.device)
    if exact is not None:
        refuse_hidden_state(model, training)
    elif config.train.compile is not False:
        tell(COMPILING)
        size = max_batch_size(len(sets.validation.labels), config.eval.batch_size)
        held_out = compiling.images(size, sets.shape, runtime.device) if size else None
        rehearsed = Rehearsed(training=training, held_out=held_out)
        wanted, parts = config.train.compile, batches.accumulation
        return compiling.compiled(wanted, runtime, model, network, rehearsed=rehearsed, accumulation=parts)
    else:
        runtime.rehearse(model, training)
    return None


def _fitted(
    config: RunConfig, runtime: Runtime, sets: DataSplits, batches: BatchSizes, notebook: Notebook, pulse: Heartbeat
) -> tuple[BatchLoader, Criterion, BatchSizes, Fit | None]:
    """Loader and criterion, and the micro batch where it is to be found out: once the images have their memory."""
    seed, device, classes = config.run.seed, runtime.device, len(sets.classes)
    host = shared_memory.host_ranks(runtime.world, runtime.gathered)
    loader = open_loader(sets, config.data, seed=seed, device=device, cores=host.cores(), pulse=pulse, host=host)
    counts = statistics.class_counts(sets.training.labels, classes).tolist()
    aimed = loss.build_criterion(config.optim, counts).to(device)
    tried = Model(config=config, classes=classes, shape=sets.shape, criterion=aimed)
    batches, fit = batch_size.fitted(tried, runtime, batches, notebook, pulse)
    blocks = rank_batches(len(sets.validation.labels), config.eval.batch_size, runtime.world)
    images = batches.micro + max(map(len, blocks), default=0)
    refuse_small_shared_memory(
        loader.workers, images * math.prod(sets.shape.stored), ranks=runtime.world.local_world_size
    )
    return loader, aimed, batches, fit


def _synchronized(config: RunConfig, runtime: Runtime, net: nn.Module) -> nn.Module:
    return (
        sync_batchnorm.convert_sync_batchnorm(net, runtime.device, runtime.control)
        if config.train.sync_batchnorm
        else net
    )


def _exact(config: RunConfig, runtime: Runtime, net: nn.Module, batches: BatchSizes) -> Exact | None:
    """Refused by every task's parent already; once more here, where the world is real."""
    checks.refuse_bitwise_conflicts(config, runtime.world.world_size)
    wanted = checks.is_bitwise(config.train)
    return Exact(net, runtime.world, micro_batches=batches.global_ // batches.micro) if wanted else None


def _state(config: RunConfig, runtime: Runtime, model: nn.Module, optimizer: Optimizer) -> State:
    network, decay = runtime.unwrapped(model), config.train.ema_decay
    average = None if decay is None else EMA(network, decay)
    return State(network=network, optimizer=optimizer, scaler=_scaler(runtime), average=average)


def _scaler(runtime: Runtime) -> torch.amp.GradScaler | None:
    return runtime.accelerator.scaler  # type: ignore[no-any-return]
