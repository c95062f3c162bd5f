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
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from torch import distributed

from entrypoint import ExitCode, Failure, from_environ
from train import console, exitfile, rundir, schema, session, shelf, trouble
from train.session import Seat
from train.signals import WATCHED


def main() -> int:
    """`python -m train.worker [--config FILE] [section.key=value ...]`, started by `train`; returns the exit code."""
    console.shield()
    for number in WATCHED:
        signal.signal(number, stop)
    code = run(sys.argv[1:], os.environ)
    if distributed.is_initialized():  # left in disorder: NCCL would wait for ranks that are gone
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def run(argv: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """Train as one rank. Whatever goes wrong is shown here, once."""
    seat = None
    try:
        arguments = build_parser().parse_args(argv)
        world = from_environ(environ)
        config = schema.load(arguments.config, arguments.overrides)
        seat = Seat(world=world, folder=rundir.run_folder(config))
        exitfile.clear(seat.folder, rank=world.rank, world_size=world.world_size)
        return session.run(config, seat, environ, argv=sys.argv, now=time.time())
    except Exception as error:
        end_of_stops()
        failure = trouble.as_failure(error)
        if failure is None:
            traceback.print_exc()
            failure = trouble.bug(error)
        else:
            failure.kept = failure.kept or last_checkpoint(seat)
            print(failure, file=sys.stderr, flush=True)
        return leave(failure, seat)


def build_parser() -> argparse.ArgumentParser:
    """The command line that `train` writes."""
    parser = argparse.ArgumentParser(prog="train.worker", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser


def stop(signum: int, frame: FrameType | None) -> NoReturn:
    """A signal before the first step: there is nothing to save."""
    what = f"stopped by {signal.Signals(signum).name} before the first step"
    raise Failure(what, fix="start the same command again", code=ExitCode.STOPPED)


def end_of_stops() -> None:
    """From here on this rank is leaving: what its parent sends to end it must not cut its reason short."""
    for number in WATCHED:
        if signal.getsignal(number) is stop:
            signal.signal(number, signal.SIG_IGN)


def last_checkpoint(seat: Seat | None) -> str | None:
    """Where the next start goes on; None before training began."""
    if seat is None or seat.job is None:
        return None
    with suppress(Failure):
        return next((str(path) for path in reversed(shelf.steps(seat.job.checkpoints).values())), None)
    return None


def leave(failure: Failure, seat: Seat | None) -> int:
    """Leave the reason in errors/, and return its code."""
    if seat is not None:
        exitfile.write_failure(seat.folder, failure, rank=seat.world.rank, host=socket.gethostname())
        # Who only lost a peer does not know why; the one that does may have said so already.
        if failure.code != ExitCode.PEER or exitfile.read(seat.folder) is None:
            exitfile.write(seat.folder, code=failure.code, step=seat.step, cause=failure.what)
    return int(failure.code)


if __name__ == "__main__":
    sys.exit(main())
