"""Signals before anything was started, and while the ranks of this task are watched."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final, NoReturn

from entrypoint import ExitCode, Failure

STOPPING: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


# What a command has not done when it is asked to stop. A training's ranks, once started, save and say it themselves.
UNDONE: Final = {
    "predict": "before all images were answered; each printed line is complete",
    "export": "before the model was written",
    "report": "before the report was written",
    "data": "before the data was looked through",
    "eval": "before the evaluation began",
    "check": "before the plan was made",
    "where": "before the folder was found",
}


def stopper(words: Sequence[str]) -> Callable[[int, FrameType | None], NoReturn]:
    """The handler for the command among these words of a command line, or for a training."""
    undone = next((UNDONE[word] for word in words if word in UNDONE), "before the training began")
    return lambda signum, frame: stop(signum, frame, undone)


def stop(signum: int, frame: FrameType | None, undone: str = "before the training began") -> NoReturn:
    """A signal before anything was started: there is nothing to save. It may come twice (Slurm and Apptainer)."""
    ignore()
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    what = f"stopped by {signal.Signals(signum).name} {undone}"
    raise Failure(what, fix="start the same command again", code=ExitCode.STOPPED)


def note(asked: list[int]) -> None:
    """From now on, requests to stop are added to this list, for those who take them next."""
    handle(lambda signum, frame: asked.append(signum))


def ignore() -> None:
    """From now on, requests to stop are somebody else's or come too late."""
    handle(lambda signum, frame: None)  # not SIG_IGN, which says that the caller ignores it


def handle(handler: Callable[[int, FrameType | None], object]) -> None:
    """Give requests to stop to `handler`, but for Ctrl-C where the caller ignores it (`train &` in a script)."""
    for signum in STOPPING:
        if signum != signal.SIGINT or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, handler)
