"""`train data ...`: what is done with data sets apart from training."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from train.front import datacommands


def handle(arguments: argparse.Namespace, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """What is done with data sets apart from training."""
    told, failure = datacommands.run(words, file=arguments.config, as_json=arguments.json, console=sys.stderr)
    print(told)
    if failure is not None:
        raise failure
    return 0
