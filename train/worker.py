"""One rank: from its command line and environment to a training that ends with an exit code and a reason on disk."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from entrypoint import ExitCode, Failure, World, from_environ
from train import console, exitfile, rundir, schema, session, trouble
from train.config import RunConfig


def main() -> int:
    """`python -m train.worker [--config FILE] [section.key=value ...]`, started by `train`; returns the exit code."""
    console.shield()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, stop)
    return run(sys.argv[1:], os.environ)


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """Train as one rank. Whatever goes wrong is shown here, once."""
    folder, world = None, None
    try:
        arguments = build_parser().parse_args(argv)
        world = from_environ(environ)
        config = schema.load(arguments.config, arguments.overrides)
        folder = rundir.run_folder(config)
        exitfile.clear(folder, rank=world.rank, world_size=world.world_size)
        return train(config, world, folder, environ)
    except Exception as error:
        failure = trouble.as_failure(error)
        if failure is None:
            traceback.print_exc()
            failure = trouble.bug(error)
        else:
            print(failure, file=sys.stderr, flush=True)
        return leave(failure, folder, world)


def build_parser() -> argparse.ArgumentParser:
    """The command line that `train` writes."""
    parser = argparse.ArgumentParser(prog="train.worker", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser


def train(config: RunConfig, world: World, folder: Path, environ: MutableMapping[str, str]) -> int:
    """Train, and say how it ended: exit.json is on disk before any rank leaves (srun ends the others at the first)."""
    return session.run(config, world, folder, environ, argv=sys.argv, now=time.time())


def stop(signum: int, frame: FrameType | None) -> NoReturn:
    """A signal before the first step: there is nothing to save."""
    what = f"stopped by {signal.Signals(signum).name} before the first step"
    raise Failure(what, fix="start the same command again", code=ExitCode.STOPPED)


def leave(failure: Failure, folder: Path | None, world: World | None) -> int:
    """Leave the reason in errors/, and return its code."""
    if folder is not None and world is not None:
        exitfile.write_failure(folder, failure, rank=world.rank, host=socket.gethostname())
        # Who only lost a peer does not know why; the one that does may have said so already.
        if failure.code != ExitCode.PEER or exitfile.read(folder) is None:
            exitfile.write(folder, code=failure.code, step=None, cause=failure.what)
    return int(failure.code)


if __name__ == "__main__":
    sys.exit(main())
