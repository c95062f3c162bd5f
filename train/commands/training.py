"""`train`: the ranks of this task, started and waited for, in a folder that is this start's alone."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from entrypoint import ExitCode, Failure, Plan, say
from train.commands import launching
from train.fetching import fetch
from train.fetching.telling import Teller
from train.front import links, refusal, requeued, rundir, timelimit
from train.record import claim, exitfile, starts
from train.record.claim import Claim
from train.run import linetimes
from train.settings import schema
from train.settings.config import RunConfig
from train.settings.overrides import last


def train(arguments: argparse.Namespace, overrides: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start the ranks of this task and wait for them."""
    config = schema.load(arguments.config, overrides)
    if arguments.profile_lines:
        linetimes.load()
    environ = {**environ, **timelimit.variables(arguments.time_limit, environ, now=time.time())}
    folder = rundir.run_folder(config)
    with refusal.noted(folder, environ):
        plan = launching.planned(config, launching.options(arguments, config, environ), environ)
    launching.refuse_impossible(config, plan, environ)
    me = claim.starter(environ, launch=plan.run_id, now=time.time())
    first = plan.world.rank == 0
    waited = claim.refuse_taken(folder, me, tell if first else _quietly, first=first)
    links.refuse(folder)
    with refusal.noted(folder, environ):
        launching.say_what_is_not_ok(plan, config, environ)
    refusal.forget(folder, environ)
    if first and (lost := requeued.look(folder, environ, host=me.host)):
        plan = replace(plan, warnings=(*plan.warnings, lost))
    place = rundir.choose(config, plan, environ)
    plan = launching.with_warnings(replace(plan, warnings=(*plan.warnings, *place.warnings)), config)
    settings = last([*overrides, *place.overrides])
    source = ["--config", arguments.config] if arguments.config else []
    source += [linetimes.OPTION] if arguments.profile_lines else []
    if not first:
        return _run(config, plan, [*source, *settings], environ, place.folder)
    with claim.kept(claim.hold(place.folder, me, waited, tell), lost=stop_ranks) as kept:
        words = ["--lease", str(kept.number), *source, *settings]
        asked: list[int] = []

        def ended(code: int) -> None:
            if not kept.is_lost():
                starts.end(place.folder, code, me)

        def restarting(code: int) -> None:
            ended(code)
            if not kept.is_lost():
                exitfile.clear_ending(place.folder)

        try:
            exitfile.clear_ending(place.folder)
            if place.folder == folder:  # a stand-in is not looked for by the next start
                requeued.mark(folder, environ, host=me.host, now=time.time())
            code = _run(config, plan, words, environ, place.folder, restarting, asked)
        except Failure as failure:  # before the ranks were started
            _write_ending(kept, failure.code, failure.what)
            raise
        if code == ExitCode.STOPPED:  # a rank that is asked before it listens just ends
            by = signal.Signals(asked[0]).name if asked else "a signal"
            _write_ending(kept, code, f"stopped by {by} before the first step")
        requeued.forget(folder, environ, code)
        ended(code)
    return code


def _run(
    config: RunConfig,
    plan: Plan,
    words: Sequence[str],
    environ: Mapping[str, str],
    folder: Path,
    failed: Callable[[int], object] = lambda code: None,
    asked: list[int] | None = None,
) -> int:
    if config.data.download:
        fetch.ensure(config.data, Teller(sys.stderr))
    return launching.start(plan, words, environ, folder=folder, config=config, failed=failed, asked=asked)


def _write_ending(kept: Claim, code: int, cause: str) -> None:
    """Leave errors/exit.json for the job script where no rank has written it and the folder is still this start's."""
    if exitfile.read(kept.folder) is None and not kept.is_lost():
        exitfile.write(kept.folder, code=code, step=None, cause=cause)


def stop_ranks() -> None:
    """The run goes on elsewhere: as if somebody had asked to stop. Rank 0 refuses to commit then."""
    tell("another start has taken this run's folder over: this one seemed dead")
    os.kill(os.getpid(), signal.SIGTERM)


def tell(line: str) -> None:
    """One line on the console."""
    say(f"note: {line}", sys.stderr)


def _quietly(line: str) -> None:
    """The task that starts rank 0 says it."""
