"""`train eval`: a checkpoint measured again, by ranks as in a training."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from entrypoint import ExitCode, make_plan
from train.commands import launching
from train.fetching import fetch
from train.fetching.telling import Teller
from train.files import durable
from train.front import rundir
from train.measuring import chosen


def evaluate(arguments: argparse.Namespace, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Measure a checkpoint: by ranks as in a training, which write nothing into the run's folder."""
    given, overrides = chosen.split(words)
    found = chosen.choose(given)
    config, notes = chosen.configured(found, arguments.config, overrides)
    plan = make_plan(environ, launching.options(arguments, config, environ))
    plan = replace(plan, warnings=(*plan.warnings, *found.notes, *notes))
    if config.data.download:
        fetch.ensure(config.data, Teller(sys.stderr))
    folder = rundir.scratch(environ)
    source = ["--config", arguments.config] if arguments.config else []
    source += ["--json"] if arguments.json else []
    measured = ["--evaluate", str(found.path), "--scratch", str(folder)]
    code = int(ExitCode.OK)
    try:
        code = launching.start(plan, [*measured, *source, *overrides], environ, folder=folder, config=config)
    finally:
        if code in (ExitCode.OK, ExitCode.STOPPED):  # else the logs are named in what was said
            durable.remove(folder)
    return code
