"""The command `train` locks the run's folder, starts the ranks of this task and waits for them."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure, Plan, RunErrors, print_message
from train import files, line_profiling
from train.cli import launch
from train.config import load
from train.config.load import keep_last_overrides
from train.config.schema import RunConfig
from train.data import download
from train.data.download import StatusLine
from train.data.shards import staging
from train.run import deadline, lock, record
from train.run.folder import choose_writable_folder, refuse_symlinks, run_folder
from train.run.lock import LOCK_NAME, RunLock


def train(arguments: argparse.Namespace, overrides: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start the ranks of this task and wait for them."""
    config = load.load_config(arguments.config, overrides)
    if arguments.profile_lines:
        line_profiling.load()
    environ = {**environ, **deadline.deadline_variables(arguments.time_limit, environ, now=time.time())}
    folder = run_folder(config)
    with lock.record_node_failure(folder, environ):
        plan = launch.plan_launch(config, launch.launch_options(arguments, config, environ), environ)
        launch.refuse_cpu_after_gpu(config, plan)
    launch.refuse_invalid_launch(config, plan, environ)
    holder = lock.this_start_as_holder(environ, launch_id=plan.launch_id, started_at=time.time())
    has_rank_0 = plan.world.rank == 0
    waited = lock.wait_until_unlocked(folder, holder, print_note if has_rank_0 else lambda _: None, first=has_rank_0)
    refuse_symlinks(folder)
    with lock.record_node_failure(folder, environ):
        launch.print_preflight_findings(plan, config, environ)
    lock.forget_node_failure(folder, environ)
    if has_rank_0 and (warning := record.refuse_missing_run(folder, environ, host=holder.host)):
        plan = replace(plan, warnings=(*plan.warnings, warning))
    missing = [path for path in (folder, *folder.parents) if not path.exists()]  # this start makes them
    output = choose_writable_folder(config, plan, environ)
    plan = launch.add_config_warnings(replace(plan, warnings=(*plan.warnings, *output.warnings)), config)
    settings = keep_last_overrides([*overrides, *output.overrides])
    source = ["--config", arguments.config] if arguments.config else []
    source += [line_profiling.OPTION] if arguments.profile_lines else []
    if not has_rank_0:
        return _fetch_and_start_ranks(config, plan, [*source, *settings], environ, output.folder)
    with lock.keep_run_lock(
        lock.lock_run_folder(output.folder, holder, waited, print_note), lost=stop_ranks
    ) as run_lock:
        words = ["--lease", str(run_lock.number), *source, *settings]
        stop_signals: list[int] = []

        def ended(code: int) -> None:
            if not run_lock.is_lost():
                record.write_start_exit(output.folder, code, holder)

        def restarting(code: int) -> None:
            ended(code)
            if not run_lock.is_lost():
                RunErrors.in_run(output.folder).clear_exit()

        try:
            RunErrors.in_run(output.folder).clear_exit()
            if output.folder == folder:  # the next start does not look for a replacement folder
                record.write_job_marker(folder, environ, host=holder.host, written_at=time.time())
            code = _fetch_and_start_ranks(config, plan, words, environ, output.folder, restarting, stop_signals)
        except Failure as failure:  # raised before the ranks were started
            _write_missing_exit(run_lock, failure.code, failure.what)
            raise
        if code == ExitCode.STOPPED:  # a rank without a signal handler yet writes no exit file
            by = signal.Signals(stop_signals[0]).name if stop_signals else "a signal"
            _write_missing_exit(run_lock, code, f"stopped by {by} before the first step")
        record.remove_job_marker(folder, environ, code)
        # Of several tasks the others may still write there, and job scripts read errors/: their folder stays.
        is_ours = plan.spawn == plan.world.world_size and output.folder in missing and not run_lock.is_lost()
        is_refused = code == ExitCode.USAGE and is_ours and _holds_no_run(output.folder)
        if is_refused:
            for name in FIRST_FOLDERS:
                files.remove(output.folder / name)
        else:
            ended(code)
    if is_refused:  # empty by now, unless another start has come since the lock was given back
        with suppress(OSError):
            folder.rmdir()
            print_note(f"{folder} was removed: this start had made it, and nothing was trained")
            for path in missing[1:]:
                path.rmdir()
    return code


# What a start writes into its folder before its ranks have checked what only torch knows, beside the lock.
FIRST_FOLDERS: Final = ("errors", "logs")


def _holds_no_run(folder: Path) -> bool:
    """Whether nothing but the beginning of a start is in the folder."""
    return all(path.name in FIRST_FOLDERS or path.name.startswith(LOCK_NAME) for path in folder.iterdir())


def _fetch_and_start_ranks(
    config: RunConfig,
    plan: Plan,
    words: Sequence[str],
    environ: Mapping[str, str],
    folder: Path,
    failed: Callable[[int], object] = lambda code: None,
    stop_signals: list[int] | None = None,
) -> int:
    if config.data.download:
        download.ensure_downloaded(config.data, StatusLine(sys.stderr))
    try:
        return launch.start_ranks(
            plan, words, environ, folder=folder, config=config, failed=failed, stop_signals=stop_signals
        )
    finally:
        if config.data.stage is not None:
            staging.remove_left_folders(Path(config.data.stage))


def _write_missing_exit(run_lock: RunLock, code: int, cause: str) -> None:
    """Write errors/exit.json if no rank did and this start still holds the folder."""
    errors = RunErrors.in_run(run_lock.folder)
    if errors.read_exit() is None and not run_lock.is_lost():
        errors.write_exit(code=code, step=None, cause=cause)


def stop_ranks() -> None:
    """Stop, because another start continues the run; rank 0 then refuses to commit a checkpoint."""
    print_note("another start has taken this run's folder over: this one seemed dead")
    os.kill(os.getpid(), signal.SIGTERM)


def print_note(line: str) -> None:
    """Print a note on the console."""
    print_message(f"note: {line}", sys.stderr)
