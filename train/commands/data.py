"""`train data ...`: what is done with data sets apart from training."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence

from entrypoint import say
from train.commands import launching
from train.front import datacommands
from train.settings import variables
from train.settings.config import RunConfig


def handle(arguments: argparse.Namespace, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """What is done with data sets apart from training."""
    process: MutableMapping[str, str] = os.environ if environ is os.environ else dict(environ)

    def place(config: RunConfig) -> datacommands.Place:
        """Where a training would compute. This process computes as one of its ranks would."""
        plan = launching.planned(config, launching.options(arguments, config, environ), environ)
        process["OMP_NUM_THREADS"] = plan.num_threads(environ)
        variables.share_cores(process)
        return plan.device, plan.world.local_world_size, plan.world.world_size

    told, failure = datacommands.run(
        words, file=arguments.config, as_json=arguments.json, console=sys.stderr, place=place
    )
    say(told, sys.stdout)
    if failure is not None:
        raise failure
    return 0
