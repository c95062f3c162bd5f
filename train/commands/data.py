"""`train data ...`: what is done with data sets apart from training."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from entrypoint import say
from train.commands import launching
from train.front import datacommands
from train.settings.config import RunConfig


def handle(arguments: argparse.Namespace, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """What is done with data sets apart from training."""

    def place(config: RunConfig) -> datacommands.Place:
        plan = launching.planned(config, launching.options(arguments, config, environ), environ)
        return plan.device, plan.world.local_world_size, plan.world.world_size

    told, failure = datacommands.run(
        words, file=arguments.config, as_json=arguments.json, console=sys.stderr, place=place
    )
    say(told, sys.stdout)
    if failure is not None:
        raise failure
    return 0
