"""`python -m bench NAME...` measures ours and other programs in turns, and writes a table, JSON and plots."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Final

from bench import harness
from entrypoint import ExitCode, Failure, protect_output_streams
from train.__main__ import print_failure
from train.cli.bench import BenchCommand, run_command

BENCH: Final = BenchCommand(
    prog="python -m bench",
    description="Compare with other programs that do the same. NAME is all, or some (step,comm) of:",
    examples="""examples:
  python -m bench step                      rows 1, 2, 3, 4, 6, 10 and 13; what needs a GPU says so without one
  python -m bench all --output bench-cpu    everything; bench.json, bench.md and plots in bench-cpu/
  python -m bench step --quick              a minute, to see that it works: the values mean nothing
""",
    benches={
        "step": "time of a step, and images/s, against scripts that do the same by hand",
        "input": "images/s of the input pipeline, and what a step asks of the file system",
        "start": "from the command to the first step",
        "checkpoint": "what a checkpoint costs the training",
        "scaling": "1, 2, 4, ... processes, strong and weak; DataParallel",
        "comm": "all-reduce, broadcast and gather by size",
    },
    modules={
        **{name: f"bench.{name}" for name in ("step", "input", "start", "checkpoint", "scaling")},
        "comm": "train.bench.comm",
    },
    names_in_all=("step", "input", "start", "checkpoint", "scaling", "comm"),
    add_arguments=harness.add_peers_argument,
)


def main() -> int:
    """Run the command; returns the exit code."""
    protect_output_streams(os.environ)
    return run(sys.argv[1:], os.environ)


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command line. Every failure is printed here, once."""
    try:
        return run_command(BENCH, argv, environ)
    except (Failure, KeyboardInterrupt) as error:
        return print_failure(error)
    except Exception:
        traceback.print_exc()
        return int(ExitCode.BUG)


if __name__ == "__main__":
    sys.exit(main())
