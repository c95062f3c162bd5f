"""From what was asked for to the plan of this task, and its ranks started and waited for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from entrypoint import (
    Care,
    Failure,
    Limits,
    Options,
    Plan,
    look_around,
    make_plan,
    options_from,
    run_plan,
)
from train.checkpoint import shelf
from train.commands import stopping
from train.front import check
from train.record import exitfile
from train.settings import idle, names, parallel, variables
from train.settings.config import Data, RunConfig


def options(arguments: argparse.Namespace, config: RunConfig, environ: Mapping[str, str]) -> Options:
    """Command line over ENTRYPOINT_* over the file."""
    procs = config.launch.procs_per_node
    number = None if procs == "auto" else procs
    return options_from(arguments, environ, device=config.launch.device, procs_per_node=number)


def planned(config: RunConfig, asked: Options, environ: Mapping[str, str]) -> Plan:
    """What this task will start. `train.parallel` dp or none is one process, unless another number is asked for.

    Raises:
        Failure: as `make_plan`.
    """
    plan = make_plan(environ, asked)
    if plan.spawn == 1 or asked.procs_per_node or not parallel.one_process(config.train.parallel):
        return plan
    # dp uses all GPUs that it sees: what is said of GPUs that are not used does not hold.
    alone = make_plan(environ, replace(asked, procs_per_node=1))
    return replace(alone, warnings=plan.warnings) if config.train.parallel == "dp" else alone


def with_warnings(plan: Plan, config: RunConfig) -> Plan:
    """The plan, and what is to be said of the configuration."""
    said = (*parallel.warnings(config.train.parallel), *idle.warnings(config))
    return replace(plan, warnings=(*plan.warnings, *said))


def refuse_impossible(config: RunConfig, plan: Plan, environ: Mapping[str, str]) -> None:
    """What each task can know before anything is started or written; ranks look again at what they alone know.

    Raises:
        Failure: as `check.possible` and `variables.refuse_contradictions`.
    """
    parallel.refuse_several(config.train.parallel, plan.world.world_size)
    batch = check.possible(config, plan.world.world_size)
    auto = None if plan.device == "cuda" else "fp32"
    precision = auto if config.train.precision == "auto" else config.train.precision
    variables.refuse_contradictions(environ, device=plan.device, precision=precision, accumulation=batch.accumulation)


def say_what_is_not_ok(plan: Plan, config: RunConfig, environ: Mapping[str, str]) -> None:
    """The short form of `entrypoint doctor`: what costs this training something here, with a fix for each.

    Raises:
        Failure: as `look_around`.
    """
    terminal = sys.stderr.fileno() if sys.stderr.isatty() else None
    for line in look_around(plan, environ, workers=_workers_asked_for(config.data), terminal=terminal):
        print(line, file=sys.stderr, flush=True)


def _workers_asked_for(data: Data) -> int | None:
    """None where they count the processors by themselves, or are not used."""
    unused = data.loader == "memory" or (data.loader == "auto" and data.name == names.SYNTHETIC)
    return None if data.workers == "auto" or unused else data.workers


def start(
    plan: Plan,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    *,
    folder: Path,
    config: RunConfig,
    failed: Callable[[int], object] = lambda code: None,
    promise: tuple[str, str] | None = None,
    asked: list[int] | None = None,
) -> int:
    """Run one worker per rank of the plan, with these arguments; returns the exit code. Logs go into `folder`.

    failed: told the exit code of a start after which all are started again in place. promise: what `Care` says to a
    request to stop, where that leads to something else than a save. asked: the requests to stop are added to it.

    Raises:
        Failure: as `run_plan`.
    """
    asked = [] if asked is None else asked
    stopping.note(asked)  # run_plan has handlers of its own; when it gives these back, the exit code must not change
    command = [sys.executable, "-m", "train.worker", *arguments]
    looked_after = replace(care(config, folder), failed=failed)
    looked_after = replace(looked_after, promise=promise) if promise else looked_after
    return run_plan(plan, command, environ, log_dir=folder / "logs", foreign=False, care=looked_after, asked=asked)


def care(config: RunConfig, folder: Path) -> Care:
    """How long ranks may be silent, and where it is kept what became of one that cannot say it itself."""
    timeouts = config.launch.timeouts
    limits = Limits(
        start=timeouts.start,
        step=None if timeouts.step == "auto" else timeouts.step,
        evaluation=timeouts.evaluation,
        save=timeouts.save,
        data=timeouts.data,
    )

    def blame(failure: Failure, rank: int, host: str, step: int | None) -> None:
        exitfile.write_failure(folder, failure, rank=rank, host=host)
        exitfile.write(folder, code=failure.code, step=step, cause=failure.what)

    def kept() -> str | None:
        with suppress(Failure):
            return next((str(path) for path in reversed(shelf.steps(folder / "checkpoints").values())), None)
        return None

    restarts = config.launch.max_restarts
    return Care(
        limits=limits,
        errors=folder / exitfile.FOLDER,
        blame=blame,
        kept=kept,
        restarts=restarts,
        gauges_every_s=config.log.gpu_every_seconds,
    )
