"""`python -m train.bench`: the parent of a measured run's ranks, as `train` is of a training's; for `train bench`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from entrypoint import (
    Failure,
    HangTimeouts,
    SupervisionPolicy,
    add_launch_arguments,
    make_plan,
    parse_launch_options,
    protect_output_streams,
    run_plan,
)

LONG_S: Final = 86_400.0  # held between two steps, a rank is silent
# Ranks of ours are started without PYTHONPATH; a checkout need not be installed.
START: Final = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module('train.bench.worker', run_name='__main__', alter_sys=True)"
)


def main() -> int:
    """Start the ranks and wait for them; returns the exit code."""
    protect_output_streams(os.environ)
    return run(sys.argv[1:], os.environ)


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """`--logs DIR [launch arguments] -- WORDS of the worker`."""
    parser = argparse.ArgumentParser(prog="train.bench", allow_abbrev=False)
    parser.add_argument("--logs", metavar="DIR", required=True)
    add_launch_arguments(parser)
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args(argv)
    try:
        plan = make_plan(environ, parse_launch_options(arguments, environ))
        root = str(Path(__file__).parents[2])
        command = [sys.executable, "-c", START, root, *arguments.words]
        return run_plan(plan, command, environ, log_dir=Path(arguments.logs), foreign=False, care=_care(arguments.logs))
    except Failure as failure:
        print(failure, file=sys.stderr)
        return int(failure.code)


def _care(logs: str) -> SupervisionPolicy:
    limits = HangTimeouts(start=LONG_S, step=LONG_S, evaluation=LONG_S, save=LONG_S, data=LONG_S)
    return SupervisionPolicy(limits=limits, errors=Path(logs), blame=lambda failure, rank, host, step: None)


if __name__ == "__main__":
    sys.exit(main())
