"""`build_trainer` makes a complete `Trainer` from the config and a rank's runtime, set to where the run was left."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from entrypoint import Heartbeat, ResourceMonitor, World
from train import batch_size, compilation
from train.batch_size import NO_CACHE, MicroBatchCache
from train.compilation import Compiled
from train.components import (
    adapt_for_training,
    build_components,
    load_initial_weights,
    refuse_unknown_arguments,
)
from train.config import checks
from train.config.batches import BatchSizes, compute_batch_sizes, count_steps
from train.config.resolved import resolve
from train.config.schema import DataConfig, RunConfig
from train.data import statistics
from train.data.class_folders import describe_text_order
from train.data.image_sizes import with_evaluation_size
from train.data.loader import BatchLoader, open_loader, refuse_small_shared_memory
from train.data.registry import find_source, open_splits
from train.data.sampler import BatchSampler
from train.data.shards import order as shard_order
from train.data.shards import source as shard_source
from train.data.shards import staging
from train.data.splits import DataSplits, with_test_as_validation, without_training
from train.data.workers import WorkerLoader
from train.data_fit import describe_image_file_obstacle, image_file_notes, refuse_unfit_data
from train.distributed import replica_check, shared_memory
from train.distributed.runtime import Runtime
from train.distributed.runtime import start as start_runtime
from train.distributed.shared_memory import HostRanks
from train.evaluation import validator
from train.evaluation.results import read_final_score
from train.evaluation.validator import max_batch_size, rank_batches
from train.logging.metrics_logger import MetricsLogger
from train.logging.progress import Progress
from train.logging.resources import start_usage_recorder
from train.models import weights
from train.optim import ema
from train.optim.schedule import build_schedule, regression_warnings
from train.parallel.base import Parallel
from train.parallel.strategies import strategy_class
from train.rank_context import RankContext
from train.run import record, resume
from train.state import TrainState
from train.tasks.base import Task
from train.trainer import IMAGES_TO_NAME, DatasetInfo, Trainer

COMPILING: Final = "compiling the model; this takes a minute or more, unless an earlier start has kept its code"


def build_trainer(
    config: RunConfig,
    runtime: Runtime,
    context: RankContext,
    *,
    progress: Progress | None = None,
    resources: ResourceMonitor | None = None,
    micro_batch_cache: MicroBatchCache = NO_CACHE,
    cache_folder: Path | None = None,
    record_start: Callable[[int], None] = lambda step: None,
    on_first_step: Callable[[Trainer], None] | None = None,
) -> Trainer:
    """Data, model, optimizer, and the state of the last checkpoint if the run resumes. All ranks call it together.

    Args:
        resources: measures this rank; None: nothing is measured.
        cache_folder: the user's, for what is known of the data; None: nothing is kept.
        record_start: called on rank 0 with the step to resume from, once the folder can be written and the state is
            restored. It may refuse the start.
        on_first_step: see `Trainer`; only for a run that resumes.

    Raises:
        Failure: DATA, NO_INPUT, USAGE for what cannot be trained; OUTPUT, IO for a folder that cannot be written.
    """
    progress = progress or Progress(main=runtime.is_main, terminal=False)
    folder, heartbeat, world = context.folder, context.heartbeat, runtime.world
    checkpoints = folder / "checkpoints"
    train, seed = config.train, config.run.seed
    batches = compute_batch_sizes(train.global_batch_size, train.micro_batch_size, world.world_size)
    earlier = checkpoints if config.checkpoint.resume == "auto" else None
    refuse_unknown_arguments(config)

    heartbeat.beat("data")
    fitted = runtime.run_on_rank_zero(lambda: weights.fit_to_weights(config, earlier))
    host = shared_memory.host_ranks(world, runtime.all_gather)
    splits = with_evaluation_size(open_splits(fitted.data, host, cache_folder), config.eval.image_size)
    copies = None if fitted.data.stage is None else host.first(partial(staging.make_folder, fitted.data))
    if copies is not None:
        splits = shard_source.with_copies(splits, copies)
    resolved = resolve(config, fitted, splits.task)
    config = resolved.requested
    refuse_unfit_data(config, splits, batches, runtime.device)
    dataset = _describe_dataset(config, runtime, splits, host)
    steps = count_steps(batches, dataset.num_training, epochs=train.epochs, max_steps=train.max_steps)

    components = build_components(
        resolved,
        splits,
        batches=batches,
        steps=steps,
        device=runtime.device,
        fused=runtime.accelerator.scaler is None,
    )
    network, optimizer, freezing = components.network, components.optimizer, components.freezing
    resume_point = resume.find_resume_point(config, runtime, checkpoints, network, optimizer, steps, record_start)
    is_new_run = resume_point.step is None
    weight_notes = load_initial_weights(config, network, splits, is_new_run=is_new_run)
    if is_new_run and config.model.weights is not None:
        weight_notes += tuple(filter(None, [record.describe_divergence(Path(config.model.weights))]))
    replica_check.refuse_different_weights(runtime, network)

    loader = _open_loader(config, runtime, splits, heartbeat, host)
    batches, micro_batch = batch_size.find_micro_batch(resolved, splits, runtime, batches, micro_batch_cache, heartbeat)
    loader.augmenter.refuse_odd_micro_batch(batches.micro)
    _refuse_small_shared_memory(config, runtime, splits, loader, batches)

    checks.refuse_bitwise_conflicts(config, world.world_size)  # here the world is known for certain
    network = adapt_for_training(config, network, world.world_size)
    if freezing is not None:
        freezing.network = network
        freezing.update(resume_point.step or 0)
        weight_notes += (str(freezing),)
    task = components.task
    parallel = strategy_class(train, world.world_size)(
        runtime, batches, lambda model: task.loss(model, task.example(batches.micro, splits.shape, runtime.device))
    )
    parallel.wrap(network, optimizer)
    state = TrainState(parallel=parallel, ema=ema.build_average(train, parallel.network))
    resume_notes = resume.restore(config, runtime, checkpoints, resume_point, state, dataset.fingerprint)

    heartbeat.beat("start")  # the model is compiled in this phase, however long the data took
    if train.compile is False:
        parallel.warm_up()
        compiled = None
    else:
        compiled = _compile(config, parallel, task, splits, progress, heartbeat)
        loader = loader.compiled(batches.micro)
    resume_notes += resume.start_over(config, runtime, folder, record_start)
    notes = (
        *splits.notes,
        *filter(None, [describe_text_order(splits.classes)]),
        *image_file_notes(config.data, splits),
        *loader.notes,
        *(() if copies is None else _start_staging(config.data, loader, host, copies)),
        *weight_notes,
        *resume_notes,
        *runtime.clock_skew_notes(),
        *context.faults.notes,
    )
    return Trainer(
        config=config,
        runtime=runtime,
        folder=folder,
        dataset=dataset,
        loader=loader,
        sampler=BatchSampler(
            batches=batches,
            steps=steps,
            samples=dataset.num_training,
            rank=world.rank,
            seed=seed,
            labels=statistics.labels_to_balance(config.data, splits),
            repeats=config.data.repeats,
            shard_order=shard_order.draw_orders(splits.training.runs(), config),
        ),
        batches=batches,
        micro_batch=micro_batch,
        steps=steps,
        schedule=build_schedule(config.optim, steps, batches.global_),
        parallel=parallel,
        task=task,
        compiled=compiled,
        state=state,
        faults=context.faults,
        lock=context.lock,
        heartbeat=heartbeat,
        signals=context.signals,
        usage=start_usage_recorder(runtime, resources, config.log.gpu_every_seconds, trained_s=state.seconds),
        metrics_logger=MetricsLogger(
            folder, main=runtime.is_main, tensorboard=config.log.tensorboard, warn=progress.say
        ),
        progress=progress,
        notes=notes,
        class_table=_describe_classes(config, task, splits),
        start_step=state.step,
        on_first_step=on_first_step if state.step else None,
        open_test_loader=_test_loader_opener(config, runtime, splits, heartbeat, host),
        final_score=runtime.run_on_rank_zero(lambda: read_final_score(folder)) if splits.test is not None else None,
        freezing=freezing,
    )


def _test_loader_opener(
    config: RunConfig, runtime: Runtime, splits: DataSplits, heartbeat: Heartbeat, host: HostRanks
) -> Callable[[], BatchLoader] | None:
    """Opens the test split in the place of the validation split; None without a test split.

    Nothing of it is read before. It is not decoded into data.cache, which holds the other two.
    """
    if splits.test is None:
        return None
    test = with_test_as_validation(without_training(splits))
    uncached = replace(config, data=replace(config.data, cache=None))
    return lambda: _open_loader(uncached, runtime, test, heartbeat, host)


def _describe_dataset(config: RunConfig, runtime: Runtime, splits: DataSplits, host: HostRanks) -> DatasetInfo:
    """Raises Failure (DATA) if the ranks do not see the same data."""
    compute = partial(statistics.data_fingerprint, splits, config.data.root)
    fingerprint = host.first(compute) if splits.training.is_mapped else compute()
    statistics.refuse_different_data(fingerprint, config.data.name, runtime.all_gather)
    return DatasetInfo(
        classes=splits.classes,
        num_training=len(splits.training.labels),
        num_validation=len(splits.validation.labels),
        num_test=0 if splits.test is None else len(splits.test.labels),
        fingerprint=fingerprint,
        task=splits.task,
        target=splits.target,
        image=_image_to_predict(config, splits),
    )


def _image_to_predict(config: RunConfig, splits: DataSplits) -> str | None:
    source = splits.validation if len(splits.validation.labels) else splits.training
    if (files := source.image_files()) is not None:
        return str(files.image(0))
    is_drawn = find_source(config.data.name).origin == "computed"
    obstacle = describe_image_file_obstacle(splits.shape, bytes_=not splits.floats)
    return None if is_drawn or obstacle else IMAGES_TO_NAME


def _describe_classes(config: RunConfig, task: Task, splits: DataSplits) -> tuple[str, ...]:
    """Lines for the banner: how many images each class has, and what looks like a mistake in them."""
    lines = task.describe_balance(splits.training.labels, splits.validation.labels, config.optim.class_weights)
    if config.data.sampling == "balanced":
        lines = [*lines, statistics.describe_balanced_sampling(splits.training.labels, splits.classes)]
    warnings = (*splits.warnings, *regression_warnings(config, splits.task))
    return (*lines, *(f"WARNING: {warning}" for warning in warnings))


def _open_loader(
    config: RunConfig, runtime: Runtime, splits: DataSplits, heartbeat: Heartbeat, host: HostRanks
) -> BatchLoader:
    return open_loader(
        splits,
        config.data,
        seed=config.run.seed,
        device=runtime.device,
        cores=host.cores(),
        pulse=heartbeat,
        host=host,
    )


def _start_staging(data: DataConfig, loader: BatchLoader, host: HostRanks, copies: Path) -> tuple[str, ...]:
    """Begin to copy shards on the first rank of each node; a note about the node that copies fewest."""
    if not isinstance(loader.training, WorkerLoader):
        return ("data.stage does nothing here: all images are decoded into memory at the start",)
    plan = host.first(partial(staging.start_copying, data, copies))
    plans = host.all_gather(plan)
    fewest = min(plans, key=lambda each: each.shards)
    is_same = all(each.shards == fewest.shards for each in plans)
    return (fewest.describe(str(data.stage), is_same_everywhere=is_same),)


def _refuse_small_shared_memory(
    config: RunConfig, runtime: Runtime, splits: DataSplits, loader: BatchLoader, batches: BatchSizes
) -> None:
    blocks = rank_batches(len(splits.validation.labels), config.eval.batch_size, runtime.world)
    num_bytes = batches.micro * math.prod(splits.shape.stored)
    num_bytes += max(map(len, blocks), default=0) * math.prod(splits.evaluated_shape.stored)
    refuse_small_shared_memory(loader.workers, num_bytes, ranks=runtime.world.local_world_size)


def _compile(
    config: RunConfig, parallel: Parallel, task: Task, splits: DataSplits, progress: Progress, heartbeat: Heartbeat
) -> Compiled:
    progress.say(COMPILING)
    size, runtime = max_batch_size(len(splits.validation.labels), config.eval.batch_size), parallel.runtime
    example = task.example(size, splits.evaluated_shape, runtime.device)
    rehearse = partial(validator.warm_up, runtime, parallel.network, task, example) if size else None
    return compilation.compile_model(config.train, parallel, rehearse, heartbeat, progress.say)


@contextmanager
def open_trainer(
    config: RunConfig, world: World, environ: MutableMapping[str, str], folder: Path, heartbeat: Heartbeat
) -> Iterator[Trainer]:
    """Build the trainer of a session, but without the folder's lock and record, and without resuming.

    Shards are not copied to data.stage: there may be no parent process that would remove the copies.
    """
    config = replace(config, data=replace(config.data, stage=None))
    rank_runtime = start_runtime(config, world, environ)
    try:
        yield build_trainer(config, rank_runtime, RankContext(world=world, folder=folder, heartbeat=heartbeat))
    finally:
        rank_runtime.close()
