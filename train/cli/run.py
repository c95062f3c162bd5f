"""The command `train` locks the run's folder, starts the ranks of this task and waits for them."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from entrypoint import ExitCode, Failure, Plan, print_message
from train import line_profiling
from train.cli import launch
from train.config import load
from train.config.load import keep_last_overrides
from train.config.schema import RunConfig
from train.data import download
from train.data.download import StatusLine
from train.run import exit_file, lock, record, requeue, time_limit
from train.run.folder import choose_writable_folder, refuse_symlinks, run_folder
from train.run.lock import RunLock


def train(arguments: argparse.Namespace, overrides: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start the ranks of this task and wait for them."""
    config = load.load_config(arguments.config, overrides)
    if arguments.profile_lines:
        line_profiling.load()
    environ = {**environ, **time_limit.deadline_variables(arguments.time_limit, environ, now=time.time())}
    folder = run_folder(config)
    with lock.record_node_failure(folder, environ):
        plan = launch.plan_launch(config, launch.launch_options(arguments, config, environ), environ)
    launch.refuse_invalid_launch(config, plan, environ)
    me = lock.this_start_as_holder(environ, launch=plan.run_id, now=time.time())
    first = plan.world.rank == 0
    waited = lock.wait_until_unlocked(folder, me, print_note if first else _print_nothing, first=first)
    refuse_symlinks(folder)
    with lock.record_node_failure(folder, environ):
        launch.print_preflight_findings(plan, config, environ)
    lock.forget_node_failure(folder, environ)
    if first and (lost := requeue.refuse_missing_run(folder, environ, host=me.host)):
        plan = replace(plan, warnings=(*plan.warnings, lost))
    place = choose_writable_folder(config, plan, environ)
    plan = launch.add_config_warnings(replace(plan, warnings=(*plan.warnings, *place.warnings)), config)
    settings = keep_last_overrides([*overrides, *place.overrides])
    source = ["--config", arguments.config] if arguments.config else []
    source += [line_profiling.OPTION] if arguments.profile_lines else []
    if not first:
        return _fetch_and_start_ranks(config, plan, [*source, *settings], environ, place.folder)
    with lock.keep_run_lock(lock.lock_run_folder(place.folder, me, waited, print_note), lost=stop_ranks) as kept:
        words = ["--lease", str(kept.number), *source, *settings]
        asked: list[int] = []

        def ended(code: int) -> None:
            if not kept.is_lost():
                record.write_start_exit(place.folder, code, me)

        def restarting(code: int) -> None:
            ended(code)
            if not kept.is_lost():
                exit_file.clear_exit(place.folder)

        try:
            exit_file.clear_exit(place.folder)
            if place.folder == folder:  # a stand-in is not looked for by the next start
                requeue.write_job_marker(folder, environ, host=me.host, now=time.time())
            code = _fetch_and_start_ranks(config, plan, words, environ, place.folder, restarting, asked)
        except Failure as failure:  # before the ranks were started
            _write_missing_exit(kept, failure.code, failure.what)
            raise
        if code == ExitCode.STOPPED:  # a rank that is asked before it listens just ends
            by = signal.Signals(asked[0]).name if asked else "a signal"
            _write_missing_exit(kept, code, f"stopped by {by} before the first step")
        requeue.remove_job_marker(folder, environ, code)
        ended(code)
    return code


def _fetch_and_start_ranks(
    config: RunConfig,
    plan: Plan,
    words: Sequence[str],
    environ: Mapping[str, str],
    folder: Path,
    failed: Callable[[int], object] = lambda code: None,
    asked: list[int] | None = None,
) -> int:
    if config.data.download:
        download.ensure_downloaded(config.data, StatusLine(sys.stderr))
    return launch.start_ranks(plan, words, environ, folder=folder, config=config, failed=failed, asked=asked)


def _write_missing_exit(kept: RunLock, code: int, cause: str) -> None:
    """Leave errors/exit.json for the job script where no rank has written it and the folder is still this start's."""
    if exit_file.read_exit(kept.folder) is None and not kept.is_lost():
        exit_file.write_exit(kept.folder, code=code, step=None, cause=cause)


def stop_ranks() -> None:
    """The run goes on elsewhere: as if somebody had asked to stop. Rank 0 refuses to commit then."""
    print_note("another start has taken this run's folder over: this one seemed dead")
    os.kill(os.getpid(), signal.SIGTERM)


def print_note(line: str) -> None:
    """One line on the console."""
    print_message(f"note: {line}", sys.stderr)


def _print_nothing(line: str) -> None:
    """The task that starts rank 0 says it."""
