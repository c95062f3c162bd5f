"""Signals before anything was started, and while the ranks of this task are watched."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Final, NoReturn

from entrypoint import ExitCode, Failure

STOPPING: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


def stop(signum: int, frame: FrameType | None) -> NoReturn:
    """A signal before anything was started: there is nothing to save. It may come twice (Slurm and Apptainer)."""
    ignore()
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    what = f"stopped by {signal.Signals(signum).name} before the training began"
    raise Failure(what, fix="start the same command again", code=ExitCode.STOPPED)


def ignore() -> None:
    """From now on, requests to stop are somebody else's or come too late."""
    handle(lambda signum, frame: None)  # not SIG_IGN, which says that the caller ignores it


def handle(handler: Callable[[int, FrameType | None], object]) -> None:
    """Give requests to stop to `handler`, but for Ctrl-C where the caller ignores it (`train &` in a script)."""
    for signum in STOPPING:
        if signum != signal.SIGINT or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, handler)
