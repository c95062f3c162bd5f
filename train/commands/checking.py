"""`train check` and `train where`: what would be done, in words, and where. Nothing is started or written."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from entrypoint import ExitCode, Failure, say
from train.commands import launching
from train.front import check as looks
from train.front import rundir, timelimit
from train.settings import schema


def check(arguments: argparse.Namespace, overrides: Sequence[str], environ: Mapping[str, str]) -> int:
    """Show what would be done. Where the GPUs are missing (a login node), for the ranks that were asked for."""
    config = schema.load(arguments.config, overrides)
    asked, note = launching.options(arguments, config, environ), None
    try:
        plan = launching.planned(config, asked, environ)
    except Failure as failure:
        if failure.code != ExitCode.NODE:
            raise
        note = f"here it would not start: {failure.what}. fix: {failure.fix}"
        plan = launching.planned(config, replace(asked, device="cpu"), environ)
    if note is None:
        launching.refuse_impossible(config, plan, environ)
    until = timelimit.row(arguments.time_limit, environ, now=time.time())
    say(looks.describe(config, arguments.config, launching.with_warnings(plan, config), note, until), sys.stdout)
    return 0


def where(arguments: argparse.Namespace, overrides: Sequence[str], environ: Mapping[str, str]) -> int:
    """The run's folder, for job scripts: they read errors/exit.json in it. Asks nothing of the launcher."""
    print(rundir.run_folder(schema.load(arguments.config, overrides)))
    return 0
