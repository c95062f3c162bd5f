"""`python -m train.bench` starts and supervises the ranks of one measured training."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from entrypoint import (
    Failure,
    add_launch_arguments,
    make_plan,
    parse_launch_options,
    protect_output_streams,
    run_plan,
)
from train.bench.processes import module_command, supervision_policy

LIMIT_S: Final = 86_400.0  # a rank that waits between two blocks is silent


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
    logs = Path(arguments.logs)
    try:
        plan = make_plan(environ, parse_launch_options(arguments, environ))
        command = module_command("train.bench.worker", *arguments.words)
        policy = supervision_policy(LIMIT_S, logs)
        return run_plan(plan, command, environ, log_dir=logs, foreign=False, care=policy)
    except Failure as failure:
        print(failure, file=sys.stderr)
        return int(failure.code)


if __name__ == "__main__":
    sys.exit(main())
