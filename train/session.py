"""`train_on_rank` is one start of a run on one rank: banner, training, summary, exit code."""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from entrypoint import (
    DEADLINE_CAUSE,
    TRACE_SIGNAL,
    ExitCode,
    Handover,
    ResourceMonitor,
    RunErrors,
    join_lines,
    pluralize,
    preload_mapped_files,
    shell_command,
)
from train import files
from train.batch_size import MicroBatchCache
from train.build import build_trainer
from train.config import checks
from train.config.batches import compute_batch_sizes, step_notes
from train.config.environment import CallerVariables, refuse_contradicting_variables
from train.config.schema import RunConfig, TrainConfig
from train.config.strategies import STRATEGIES
from train.data.registry import describe_test
from train.distributed import runtime
from train.distributed.device import describe_precision
from train.distributed.runtime import Runtime
from train.evaluation.advice import advise
from train.evaluation.results import describe_best
from train.logging.progress import Progress, format_rows, format_summary
from train.logging.trackers import load_tracker_classes, start_trackers
from train.models import registry
from train.optim.schedule import describe_schedule
from train.rank_context import RankContext
from train.run import deadline, record, resume
from train.run.continue_command import TYPED_COMMAND_VARIABLE, FinishedRun, continue_command, words_for_own_code
from train.trainer import IMAGES_TO_NAME, Trainer


def train_on_rank(
    config: RunConfig,
    context: RankContext,
    environ: MutableMapping[str, str],
    *,
    variables: CallerVariables,
    argv: Sequence[str],
    started_at: float,
) -> int:
    """Train on this rank; returns the exit code (OK or STOPPED).

    Args:
        variables: of the caller, those that were taken out of `environ` and those that act.
        started_at: seconds since 1970.

    Raises:
        Failure: whatever keeps this run from training.
    """
    signals, folder = context.signals, context.folder
    signals.deadline = deadline.read_deadline(environ, now=started_at, clock=time.monotonic())
    rank_runtime = _start_runtime(config, context, environ, variables)
    if rank_runtime.device.type == "cuda" and rank_runtime.cpu_group is not None:
        _answer_about_nccl(context, environ)
    holder_token = context.lock.token() if context.lock else None
    config = _resume_after_restart(config, rank_runtime, folder, environ, holder_token)
    tracker_classes = load_tracker_classes(config.log.trackers)
    is_auto = config.optim.lr == "auto"
    write_facts = partial(_write_facts, environ=dict(environ), argv=argv, variables=variables, is_auto=is_auto)
    progress = Progress(main=rank_runtime.is_main, terminal=Handover.from_environ(environ).terminal)
    cache_folder = files.cache_folder(environ)
    trainer = context.trainer = build_trainer(
        config,
        rank_runtime,
        context,
        progress=progress,
        resources=ResourceMonitor(environ),
        micro_batch_cache=MicroBatchCache(
            folder=cache_folder,
            record=_recorded_micro_batch(folder) if rank_runtime.is_main else {},
        ),
        cache_folder=cache_folder,
        record_start=partial(
            record.add_start, folder, environ=environ, holder_token=holder_token, started_at=started_at
        ),
        on_first_step=write_facts,
    )
    was_finished = trainer.is_finished
    rank_runtime.run_on_rank_zero(lambda: _write_start(trainer, environ, started_at, is_idle=was_finished))
    if trainer.state.step == 0:  # else on the first step: until then the record describes an earlier start
        rank_runtime.run_on_rank_zero(lambda: write_facts(trainer))
    notes = (context.previous_stop,) if context.previous_stop else ()
    if was_finished:
        progress.say(_finished_before(trainer, notes))
    else:
        progress.say(join_lines([banner(trainer, variables, previous_notes=notes, is_auto=is_auto), ""]))
        if rank_runtime.is_main:
            context.trackers = start_trackers(tracker_classes, config, folder, environ, progress.say)
            trainer.metrics_logger.trackers = context.trackers
        progress.start(step=trainer.state.step, total=trainer.steps.total)
    preload_mapped_files()  # the image's file server may end with the signal that asks for the last save
    signals.record_only()
    try:
        trainer.fit()
    finally:
        progress.close()
    code = _finish(trainer, typed=environ.get(TYPED_COMMAND_VARIABLE) or "train")
    context.end_trackers(code)
    rank_runtime.close()
    return code


def _answer_about_nccl(context: RankContext, environ: Mapping[str, str]) -> None:
    """Tell the parent of a hanging run which collective operations have not ended."""
    context.signals.call_on(
        TRACE_SIGNAL, lambda: context.heartbeat.answer(runtime.save_and_describe(context.world.rank, environ))
    )


def _start_runtime(
    config: RunConfig, context: RankContext, environ: MutableMapping[str, str], variables: CallerVariables
) -> Runtime:
    train = config.train
    batches = compute_batch_sizes(train.global_batch_size, train.micro_batch_size, context.world.world_size)
    rank_runtime = runtime.start(config, context.world, environ)
    refuse_contradicting_variables(
        variables.removed,
        device=rank_runtime.device.type,
        precision=rank_runtime.precision,
        accumulation=batches.accumulation,
    )
    runtime.refuse_unshared_folder(rank_runtime, context.folder)
    return rank_runtime


def _resume_after_restart(
    config: RunConfig, rank_runtime: Runtime, folder: Path, environ: Mapping[str, str], holder_token: str | None
) -> RunConfig:
    """With checkpoint.resume=never, a restarted job resumes: it has started over once already."""
    if config.checkpoint.resume == resume.NEVER and rank_runtime.run_on_rank_zero(
        lambda: record.is_restart_of_run(folder, environ, holder_token)
    ):
        return replace(config, checkpoint=replace(config.checkpoint, resume="auto"))
    return config


# What the console shows


def banner(
    trainer: Trainer, variables: CallerVariables, *, previous_notes: Sequence[str] = (), is_auto: bool = False
) -> str:
    """What is about to happen; settings at their defaults are left out.

    previous_notes: about the start before. is_auto: whether optim.lr auto has chosen the learning rate.
    """
    config, world, rank_runtime = trainer.config, trainer.runtime.world, trainer.runtime
    dataset, steps = trainer.dataset, trainer.steps
    rows: dict[str, object] = {
        "data": f"{config.data.name}: {dataset.num_training:,} training and {dataset.num_validation:,} validation "
        f"images{describe_test(dataset.num_test)}, {dataset.description}, loader: {trainer.loader.description}",
        "model": f"{config.model.name}, {registry.count_parameters(trainer.state.network):,} parameters",
        "output": trainer.folder,
        "world": f"{pluralize(world.world_size, 'rank')} on {pluralize(world.num_nodes, 'node')}",
        "device": _describe_device(rank_runtime),
        "precision": describe_precision(rank_runtime.precision, rank_runtime.device, tf32=config.train.tf32),
        "global batch": trainer.batches,
        "steps": f"{steps.per_epoch} per epoch, {steps.total} in all{_describe_dropped(steps.dropped)}",
        "learning rate": describe_schedule(trainer.schedule, is_auto=is_auto),
    }
    rows |= checks.loss_rows(config.optim)
    if config.train.reproducible != TrainConfig().reproducible:
        rows["reproducible"] = checks.describe_reproducibility(config.train)
    if config.train.parallel != TrainConfig().parallel:
        rows["parallel"] = STRATEGIES[config.train.parallel].description
    if trainer.compiled:
        rows["compiled"] = trainer.compiled
    if variables.acting:
        rows["variables"] = variables.describe()
    rows |= deadline.banner_row(trainer.signals.deadline)
    if trainer.state.step:
        rows["resumed"] = f"at step {trainer.state.step} of {steps.total}"
    short = step_notes(steps, trainer.batches, config.train, samples=dataset.num_training)
    notes = [*_notes(trainer, (*previous_notes, *short)), *(f"note: {note}" for note in variables.notes())]
    return join_lines([format_rows(rows), *trainer.class_table, *notes])


def _finished_before(trainer: Trainer, previous_notes: Sequence[str]) -> str:
    """In place of the banner: nothing is trained."""
    heading = f"this run was finished before (step {trainer.state.step})"
    return join_lines([heading, format_rows({"output": trainer.folder}), *_notes(trainer, previous_notes)])


def _notes(trainer: Trainer, previous_notes: Sequence[str]) -> list[str]:
    return [f"note: {note}" for note in (*previous_notes, *trainer.notes)]


def _describe_device(rank_runtime: Runtime) -> str:
    if rank_runtime.device.type == "cpu":
        return f"CPU, {pluralize(rank_runtime.cores, 'thread')} per rank"
    return f"{torch.cuda.get_device_name(rank_runtime.device)} (rank 0: {rank_runtime.device})"


def _describe_dropped(dropped: int) -> str:
    if not dropped:
        return ""
    are = "is" if dropped == 1 else "are"
    return f"; the last {pluralize(dropped, 'sample')} of an epoch {are} left out (shuffled)"


def _finish(trainer: Trainer, *, typed: str) -> int:
    """Everything is committed: write the exit file, print the summary, and wait: srun ends all when one rank leaves."""
    is_stopped = not trainer.is_finished
    code = ExitCode.STOPPED if is_stopped else ExitCode.OK
    is_locked_out = trainer.lock is not None and trainer.lock.is_lost()  # the folder is another start's by now
    if trainer.runtime.is_main and not is_locked_out:
        cause = trainer.loop.stop.cause if is_stopped else "finished"
        RunErrors.in_run(trainer.folder).write_exit(code=code, step=trainer.state.step, cause=cause)
    summary = stopped_summary(trainer, typed) if is_stopped else finished_summary(trainer, typed)
    trainer.progress.say(join_lines(["", summary]))
    trainer.runtime.barrier()
    return int(code)


def stopped_summary(trainer: Trainer, typed: str) -> str:
    """Why training stopped, where, what it consumed, and how it continues."""
    stop, step = trainer.loop.stop, trainer.state.step
    saved = trainer.checkpointer.newest or "nothing was saved: no step was done"
    lines = [f"stopped by {stop} at step {step} of {trainer.steps.total}: {saved}"]
    if stop.cause == DEADLINE_CAUSE and step == trainer.start_step:
        lines.append("note: this start had no time for a step: give it more")
    if usage := trainer.usage.summary_rows(trainer.images_trained):
        lines.append(format_rows(usage))
    return join_lines([*lines, format_rows({"continue:": typed})])


def finished_summary(trainer: Trainer, typed: str) -> str:
    """What came out, what it consumed, and the commands that a user needs next."""
    state, config = trainer.state, trainer.config
    early_stops = trainer.early_stops
    lines: list[str] = [
        format_summary(
            result=state.result,
            classes=trainer.dataset.classes,
            steps=state.step,
            seconds=state.seconds,
            images=state.step * trainer.batches.global_,
            checkpoint=trainer.checkpointer.newest,
            consumed=trainer.usage.summary_rows(trainer.images_trained),
            best=_describe_best(trainer),
        )
    ]
    if trainer.final_score is not None:
        lines.append(format_rows({"test": trainer.final_score.describe(config.eval.metric)}))
    if unreadable := trainer.loader.broken.summary:
        lines.append(format_rows({"skipped": unreadable}))
    if (best := state.best or state.result) is not None and state.result is not None:
        improves, num_classes = state.best_step in (None, state.step), len(trainer.dataset.classes)
        if advice := advise(config, best, num_classes=num_classes, improves=improves, last=state.result):
            lines.append(format_rows({"try": advice}))
    if early_stops and state.step < trainer.steps.total:
        lines.append(f"ended early: {'; '.join(stop.description for stop in early_stops)}")
    run = FinishedRun(config=config, steps=trainer.steps, step=state.step, early_stops=early_stops)
    own_code = words_for_own_code(config, typed)
    image = trainer.dataset.image or (IMAGES_TO_NAME if own_code else None)
    commands = {
        "report:": shell_command("train report", trainer.folder),
        **({"predict:": shell_command("train predict", trainer.folder, image, *own_code)} if image else {}),
        **({} if image else {"evaluate:": shell_command("train eval", trainer.folder, *own_code)}),
        "continue:": continue_command(run, typed),
    }
    return join_lines([*lines, format_rows(commands)])


def _describe_best(trainer: Trainer) -> str | None:
    """The evaluation whose weights `train eval`, `predict` and `export` take, if it is not the last step's."""
    state = trainer.state
    if state.best is None or state.best_step is None or state.best_step == state.step:
        return None
    if not trainer.checkpointer.path(state.best_step).exists():
        return None  # a user has deleted it
    step, epoch = state.best_step, -(-state.best_step // trainer.steps.per_epoch)
    best = describe_best(state.best, trainer.config.eval.metric, step=step, epoch=epoch)
    return f"{best}: {trainer.checkpointer.path(step)}"


# What the run folder records


def _write_start(trainer: Trainer, environ: Mapping[str, str], started_at: float, *, is_idle: bool) -> None:
    """Add this start to run.json, on rank 0. is_idle: it will train nothing."""
    world_size = None if is_idle else trainer.runtime.world.world_size
    handover = Handover.from_environ(environ)
    record.complete_start(
        trainer.folder,
        step=trainer.state.step,
        world_size=world_size,
        hosts=handover.hosts,
        launcher=handover.launcher,
        environ=environ,
        started_at=started_at,
    )


def _write_facts(
    trainer: Trainer, *, environ: Mapping[str, str], argv: Sequence[str], variables: CallerVariables, is_auto: bool
) -> None:
    """Write config.yaml, and what run.json says of the training, on rank 0. is_auto: as in `banner`."""
    handover = Handover.from_environ(environ)
    record.write_config(trainer.folder, trainer.config)
    record.write_run(
        trainer.folder,
        world=trainer.runtime.world,
        hosts=handover.hosts,
        launcher=handover.launcher,
        sources=handover.sources,
        argv=argv,
        environ=environ,
        variables=variables.record(),
        training=_training_facts(trainer) | {record.AUTO_RATE: is_auto},
    )


def _recorded_micro_batch(folder: Path) -> Mapping[str, Any]:
    """What an earlier start of this run has found, so that it continues with the same micro batch and the same bits."""
    training = (record.read_run(folder) or {}).get("training")
    fit = training.get("fit") if isinstance(training, dict) else None
    return fit if isinstance(fit, dict) else {}


def _training_facts(trainer: Trainer) -> dict[str, Any]:
    """What `auto` was decided to be, and the amounts of data and steps: `train report` compares runs by them."""
    batches, dataset, device = trainer.batches, trainer.dataset, trainer.runtime.device
    is_cpu = device.type == "cpu"
    return {
        "device": _describe_device(trainer.runtime) if is_cpu else torch.cuda.get_device_name(device),
        "precision": trainer.runtime.precision,
        "global_batch_size": batches.global_,
        "micro_batch_size": batches.micro,
        "fit": asdict(trainer.micro_batch) if trainer.micro_batch else None,
        "accumulation": batches.accumulation,
        "compiled": asdict(trainer.compiled) if trainer.compiled else None,
        "parameters": registry.count_parameters(trainer.state.network),
        "training_images": dataset.num_training,
        "held_out_images": dataset.num_validation,
        "task": dataset.task,
        "test_images": dataset.num_test,
        "classes": len(dataset.classes),
        "loader": trainer.loader.description,
        "steps_per_epoch": trainer.steps.per_epoch,
        "steps": trainer.steps.total,
    }
