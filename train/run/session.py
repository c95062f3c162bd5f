"""One start of a run, from a World to its exit code: set up, say what will happen, train, say what came out."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch

from entrypoint import ExitCode, gauges, preload_mapped_files, print_message
from train import files
from train.batch_size import Notebook
from train.config import checks
from train.config.batches import compute_batch_sizes
from train.config.environment import CallerVariables, refuse_contradicting_variables
from train.config.schema import RunConfig
from train.distributed import runtime, shared_folder
from train.distributed.device import describe_precision
from train.distributed.runtime import Runtime
from train.evaluation import early_stopping
from train.evaluation.metrics import describe_best
from train.logging import progress, usage
from train.logging.metrics import MetricsLogger
from train.logging.progress import Progress
from train.models import registry
from train.run import deadline, exit_file, job, record, resuming, rollback, saving, stop
from train.run.bell import Bell
from train.run.deadline import Deadline
from train.run.goingon import VARIABLE, Over, advice
from train.run.job import Job
from train.run.loop import fit, is_finished
from train.run.now import Now
from train.run.seat import Seat
from train.run.signals import Watch
from train.run.spike import Jumped


def run(
    config: RunConfig,
    seat: Seat,
    environ: MutableMapping[str, str],
    bell: Bell,
    *,
    found: CallerVariables,
    argv: Sequence[str],
    now: float,
) -> int:
    """Train as one rank; returns the exit code (OK or STOPPED). `found`: what was taken out of `environ`, and acts.

    Raises:
        Failure: whatever keeps this run from training.
    """
    bell.watch.deadline = deadline.read(environ, now=now, clock=time.monotonic())
    world, folder = seat.world, seat.folder
    batch = compute_batch_sizes(config.train.global_batch_size, config.train.micro_batch_size, world.world_size)
    ready = runtime.start(config, world, environ, accumulation=batch.accumulation)
    refuse_contradicting_variables(
        found.removed, device=ready.device.type, precision=ready.precision, accumulation=batch.accumulation
    )
    shared_folder.refuse_unshared_folder(ready, folder)
    launch = seat.claim.token() if seat.claim else None
    begin = partial(record.add_start, folder, environ=environ, launch=launch, now=now)
    if config.checkpoint.resume == resuming.NEVER and ready.shared(
        lambda: record.is_restart_of_run(folder, environ, launch)
    ):
        config = replace(config, checkpoint=replace(config.checkpoint, resume="auto"))  # begun anew once is enough
    notes = Notebook(caches=files.cache_folder(environ), record=_fit_of(folder) if ready.is_main else {})
    terminal = environ.get("ENTRYPOINT_TTY") == "1"
    tell = partial(_say_early, ready, sys.stderr if terminal else sys.stdout)
    todo = seat.job = job.open_job(
        config, ready, folder, batch, seat.faults, seat.claim, begin, seat.pulse, notes, tell
    )
    used = usage.start_usage_recorder(ready, gauges.attach_resources(environ), config.log.gpu_every_seconds)
    todo = seat.job = replace(todo, usage=used)
    idle = is_finished(todo)
    ready.shared(lambda: _write_start(todo, environ, now, idle=idle))
    facts = partial(_write_facts, todo, dict(environ), argv, found)
    if todo.state.step == 0:
        ready.shared(facts)
    else:  # until it has done a step, the record and what is trained are an earlier start's
        todo = seat.job = replace(todo, first_step=facts)
    shown = Progress(main=ready.is_main, terminal=terminal and not idle, total=todo.steps.total, step=todo.state.step)
    before = (seat.before,) if seat.before else ()
    shown.say(_idle(todo, before) if idle else banner(todo, found, until=bell.watch.deadline, before=before))
    begun = todo.state.step
    preload_mapped_files()  # the image's file server may go with the signal that asks for the last save
    bell.only_note()
    try:
        end = to_the_end(todo, bell.watch, shown)
    finally:
        shown.close()
    code = _finish(todo, end, shown, begun, typed=environ.get(VARIABLE) or "train")
    ready.close()
    return code


def to_the_end(todo: Job, watch: Watch, shown: Progress) -> Now:
    """Train; from the last checkpoint on once more where the loss has jumped and train.spike says so."""
    jump, begun = None, todo.state.step
    while True:
        at, main = todo.state.step, todo.runtime.is_main
        curves, evaluated = todo.config.log.tensorboard, todo.state.evaluated
        metrics = MetricsLogger(
            todo.folder, main=main, step=at, evaluated=evaluated, tensorboard=curves, warn=shown.say
        )
        try:
            if jump is not None:
                rollback.tell(todo, jump, metrics, shown)
            end = fit(todo, watch, metrics, shown)
            todo.usage.end(metrics, todo.state.step, images=_images(todo, begun))
            return end
        except Jumped as jumped:
            jump = jumped.jump  # not the exception itself: its frames hold the stream of batches
        finally:
            metrics.close()
        rollback.back(todo, jump)


def _say_early(ready: Runtime, out: TextIO, said: str) -> None:
    """While there is no Progress yet."""
    if ready.is_main:
        print_message(said, out)


def _idle(todo: Job, before: Sequence[str]) -> str:
    """In place of the banner, where nothing is trained: it would tell of a training."""
    said = f"this run was finished before (step {todo.state.step})"
    return "\n".join([said, progress.format_rows({"output": todo.folder}), *_notes(todo, before)])


def _notes(todo: Job, before: Sequence[str]) -> list[str]:
    return [f"note: {note}" for note in (*before, *todo.notes)]


def banner(todo: Job, found: CallerVariables, *, until: Deadline | None = None, before: Sequence[str] = ()) -> str:
    """What is about to happen, in full. before: what is to be said of the start before this one."""
    config, world = todo.config, todo.runtime.world
    lines = progress.format_rows(
        {
            "world": f"{progress.pluralize(world.world_size, 'rank')} on {progress.pluralize(world.num_nodes, 'node')}",
            "device": _device(todo.runtime),
            "parallel": checks.describe_parallel(config.train, world.world_size),
            "precision": describe_precision(todo.runtime.precision, todo.runtime.device, tf32=config.train.tf32),
            "global batch": todo.batches,
            **({"compiled": todo.compiled} if todo.compiled else {}),
            "reproducible": checks.describe_reproducibility(config.train),
            "model": f"{config.model.name}, {registry.count_parameters(todo.state.network):,} parameters",
            "data": f"{config.data.name}: {todo.images:,} training and {todo.held_out:,} held-out images, "
            f"{len(todo.classes)} classes, loader: {todo.loader.kind}",
            "steps": f"{todo.steps.per_epoch} per epoch, {todo.steps.total} in all{_dropped(todo)}",
            "output": todo.folder,
            "variables": found.shown(),
        }
        | deadline.row(until)
        | ({"resumed": f"at step {todo.state.step} of {todo.steps.total}"} if todo.state.step else {})
    )
    lines = "\n".join([lines, *todo.told])
    return "\n".join([lines, *_notes(todo, before), *(f"note: {note}" for note in found.notes())])


def _finish(todo: Job, end: Now, shown: Progress, begun: int, *, typed: str) -> int:
    """Commit is done; say so on disk and on the console; then wait, since srun ends all when the first leaves."""
    state = todo.state
    early = early_stopping.should_stop(todo.config.eval, state.held)
    stopped = not is_finished(todo)
    code = ExitCode.STOPPED if stopped else ExitCode.OK
    cause = stop.cause(end) if stopped else "finished"
    if todo.runtime.is_main:
        exit_file.write_exit(todo.folder, code=code, step=state.step, cause=cause)
    stopped_by = stop.told(end) if stopped else None
    shown.say(_last_words(todo, end, begun, stopped_by=stopped_by, early=early, typed=typed))
    todo.runtime.barrier()
    return int(code)


def _last_words(todo: Job, end: Now, begun: int, *, stopped_by: str | None, early: bool, typed: str = "train") -> str:
    state, consumed = todo.state, todo.usage.facts(_images(todo, begun))
    if stopped_by is not None:
        saved, at = end.saved or "nothing was saved: no step was done", f"step {state.step} of {todo.steps.total}"
        late = stop.cause(end) == stop.DEADLINE and state.step == begun
        idle = "\nnote: this start had no time for a step: give it more" if late else ""
        used = "".join(f"\n{line}" for line in progress.format_rows(consumed).splitlines())
        return f"stopped by {stopped_by} at {at}: {saved}{idle}{used}\nnext: the same command goes on from there"
    told = progress.format_summary(
        result=state.result,
        classes=todo.classes,
        steps=state.step,
        seconds=state.seconds,
        images=state.step * todo.batches.global_,
        checkpoint=end.saved,
        consumed=consumed,
        best=_best(todo),
    )
    told += f"\n{progress.format_rows({'skipped': skipped})}" if (skipped := todo.loader.broken.told) else ""
    return f"{told}\n{_next(todo, typed, early=early)}"


def _best(todo: Job) -> str | None:
    """The evaluation that `train eval`, `predict` and `export` take the weights of, where it is not the last step's."""
    state = todo.state
    if state.best is None or state.best_step is None or state.best_step == state.step:
        return None
    step, epoch = state.best_step, -(-state.best_step // todo.steps.per_epoch)
    best = describe_best(state.best, todo.config.eval.metric, step=step, epoch=epoch)
    return f"{best}: {saving.place(todo, step)}"


def _images(todo: Job, begun: int) -> int:
    """How many this start has trained on."""
    return (todo.state.step - begun) * todo.batches.global_


def _next(todo: Job, typed: str, *, early: bool) -> str:
    at, batch = todo.state.step, todo.batches.global_
    said = advice(Over(config=todo.config, steps=todo.steps, step=at, global_=batch, early=early), typed)
    if not early or todo.state.step >= todo.steps.total:
        return said
    wanted = todo.config.eval
    found = (
        f"{wanted.metric} reached eval.target {wanted.target:g} in {progress.pluralize(wanted.patience, 'evaluation')}"
    )
    return f"ended early: {found}\n{said}"


def _write_start(todo: Job, environ: Mapping[str, str], now: float, *, idle: bool) -> None:
    """On rank 0: that there is one more, and where; `idle` where it will train nothing."""
    ranks = None if idle else todo.runtime.world.world_size
    record.complete_start(
        todo.folder, step=todo.state.step, world_size=ranks, **_place(environ), environ=environ, now=now
    )


def _place(environ: Mapping[str, str]) -> Mapping[str, Any]:
    hosts = [host for host in environ.get("ENTRYPOINT_HOSTS", "").split(",") if host]
    return {"hosts": hosts, "launcher": environ.get("ENTRYPOINT_LAUNCHER", "unknown")}


def _write_facts(todo: Job, environ: Mapping[str, str], argv: Sequence[str], found: CallerVariables) -> None:
    """On rank 0: config.yaml, and what run.json says of the training."""
    record.write_config(todo.folder, todo.config)
    record.write_run(
        todo.folder,
        world=todo.runtime.world,
        **_place(environ),
        sources=_sources(environ),
        argv=argv,
        environ=environ,
        variables=found.record(),
        training=_training(todo),
    )


def _fit_of(folder: Path) -> Mapping[str, Any]:
    """What an earlier start of this run found, so that it goes on with the same micro batch, and the same bits."""
    training = (record.read_run(folder) or {}).get("training")
    found = training.get("fit") if isinstance(training, dict) else None
    return found if isinstance(found, dict) else {}


def _training(todo: Job) -> dict[str, Any]:
    """What `auto` came to, and how much of what is trained on: `train report` compares runs by it."""
    batch, device = todo.batches, todo.runtime.device
    return {
        "device": _device(todo.runtime) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "precision": todo.runtime.precision,
        "global_batch_size": batch.global_,
        "micro_batch_size": batch.micro,
        "fit": asdict(todo.fit) if todo.fit else None,
        "accumulation": batch.accumulation,
        "compiled": asdict(todo.compiled) if todo.compiled else None,
        "parameters": registry.count_parameters(todo.state.network),
        "training_images": todo.images,
        "held_out_images": todo.held_out,
        "classes": len(todo.classes),
        "loader": todo.loader.kind,
        "steps_per_epoch": todo.steps.per_epoch,
        "steps": todo.steps.total,
    }


def _sources(environ: Mapping[str, str]) -> dict[str, str]:
    """Only a note in run.json: nonsense from whoever starts the worker without its parent may not cost the run."""
    try:
        return dict(json.loads(environ.get("ENTRYPOINT_SOURCES", "{}")))
    except (ValueError, TypeError, RecursionError):
        return {}


def _device(ready: Runtime) -> str:
    if ready.device.type == "cpu":
        return f"CPU, {progress.pluralize(ready.cores, 'thread')} per rank"
    return f"{torch.cuda.get_device_name(ready.device)} (rank 0: {ready.device})"


def _dropped(todo: Job) -> str:
    dropped = todo.steps.dropped
    are = "is" if dropped == 1 else "are"
    return (
        f"; the last {progress.pluralize(dropped, 'sample')} of an epoch {are} left out (shuffled)" if dropped else ""
    )
