"""The parent process of one measured training starts and supervises its ranks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Final

from bench.processes import module_command, run_ranks
from entrypoint import (
    Failure,
    add_launch_arguments,
    make_plan,
    parse_launch_options,
    protect_output_streams,
)

LIMIT_S: Final = 86_400.0  # a rank that waits between two blocks is silent


def main(argv: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """Start the ranks and wait for them: `--logs DIR [launch arguments] -- WORDS of the worker`.

    Returns the exit code.
    """
    protect_output_streams(environ)
    parser = argparse.ArgumentParser(prog="bench.ranks", allow_abbrev=False)
    parser.add_argument("--logs", metavar="DIR", required=True)
    add_launch_arguments(parser)
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args(argv)
    logs = Path(arguments.logs)
    try:
        plan = make_plan(environ, parse_launch_options(arguments, environ))
        command = module_command("bench.worker", *arguments.words)
        return run_ranks(plan, command, environ, logs=logs, limit_s=LIMIT_S)
    except Failure as failure:
        print(failure, file=sys.stderr)
        return int(failure.code)
