"""`train`: the ranks of this task, started and waited for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from train.commands import launching
from train.fetching import fetch
from train.fetching.telling import Teller
from train.front import refusal, rundir
from train.settings import schema


def train(arguments: argparse.Namespace, overrides: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start the ranks of this task and wait for them."""
    config = schema.load(arguments.config, overrides)
    with refusal.noted(rundir.run_folder(config), environ):
        plan = launching.planned(config, launching.options(arguments, config, environ), environ)
    launching.refuse_impossible(config, plan, environ)
    place = rundir.choose(config, plan, environ)
    if config.data.download:
        fetch.ensure(config.data, Teller(sys.stderr))
    plan = launching.with_warnings(replace(plan, warnings=(*plan.warnings, *place.warnings)), config)
    source = ["--config", arguments.config] if arguments.config else []
    return launching.start(plan, [*source, *overrides, *place.overrides], environ, folder=place.folder)
