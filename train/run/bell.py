"""A signal becomes an ending at once before the first step, and a note for the loop after it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Final

from entrypoint import ExitCode, Failure, start_daemon_thread
from train.run.signals import WATCHED, Watch

# How long the main thread may be deaf. While ranks meet it waits in C++, for minutes if another rank has left for
# the same signal, and Python runs handlers in no other thread.
PATIENCE_S: Final = 3.0


class Bell:
    """A signal ends this rank at once while there is nothing to save; later the loop looks at `watch`.

    Until `may_leave` is called it is only noted: there would be no place yet to write the reason to. undone: what the
    rank has not done when it ends so.
    """

    def __init__(self) -> None:
        self.watch = Watch()
        self.undone = "before the first step"
        self._leave: Callable[[Failure], None] = lambda failure: os._exit(failure.code)
        self._notes, self._imports = True, False

    def listen(self) -> None:
        """Take the signals of this process from now on. In the main thread only, as Python demands."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)  # written to in C, whatever the main thread does
        start_daemon_thread(partial(self._stand_by, read_end))
        for number in WATCHED:
            signal.signal(number, self.ring)

    def ring(self, signum: int, frame: FrameType | None) -> None:
        """The handler."""
        self.watch.handle(signum, frame)
        self._answer()

    def may_leave(self, leave: Callable[[Failure], None]) -> None:
        """From here on a signal ends this rank: by a Failure, raised here too if one has come already.

        `leave` is what a second thread does where the main thread does not answer; it does not return.
        """
        self._leave, self._notes = leave, False
        self._answer()

    def only_note(self) -> None:
        """From here on nothing is interrupted: training has begun, or this rank is leaving anyway."""
        self._notes = True

    @contextmanager
    def importing(self) -> Iterator[None]:
        """Raise nothing inside: importing torch swallows exceptions, and cannot be begun twice."""
        self._imports = True
        yield
        self._imports = False
        self._answer()

    def _answer(self) -> None:
        if self.watch.received and not self._notes and not self._imports:
            raise _stopped(self.watch.received.name, self.undone)

    def _stand_by(self, read_end: int) -> None:
        """In the second thread: act for a main thread that does not."""
        while rung := os.read(read_end, 1):
            if rung[0] in WATCHED:
                time.sleep(0 if self._imports else PATIENCE_S)
                if not self._notes:
                    self._leave(_stopped(signal.Signals(rung[0]).name, self.undone))


def _stopped(name: str, undone: str) -> Failure:
    what = f"stopped by {name} {undone}"
    return Failure(what, fix="start the same command again", code=ExitCode.STOPPED)
