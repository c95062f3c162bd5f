"""A run stops early because of a signal to any rank, or because of the deadline on rank 0's clock."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Final

from entrypoint import DEADLINE_CAUSE, SIGNAL_REPEAT_WINDOW_S, ExitCode, Failure, start_daemon_thread
from train.run.deadline import Deadline, Durations, seconds_to_exit

# TERM: preemption, time limit, docker stop. INT: Ctrl-C. USR1, USR2: `#SBATCH --signal`, `scancel -s`. HUP: a closed
# terminal.
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
INTERRUPTED: Final = 128 + signal.SIGINT
# How long the main thread may not react. While ranks meet it waits in C++, for minutes if another rank has left
# because of the same signal, and Python runs handlers in the main thread only.
REACTION_TIME_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSignal:
    """The first stop signal: its name ("SIGTERM") and when it came (the clock's seconds)."""

    name: str
    at: float


class StopSignals:
    """Handles stop signals in three modes; all of them set `received`.

    1. From `install` a signal is only recorded: there is no run folder yet to write the reason to.
    2. From `exit_on_signal` it ends the process immediately: nothing is trained yet.
    3. From `record_only`, shortly before the first step, it is recorded again, and the training loop checks it.

    The handler does no more: saving, logging and collectives deadlock in one. A second TERM (Slurm sends one at the end
    of the grace time) changes nothing, because the save has begun. A second INT after 2 s ends the process with 130.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, abort: Callable[[int], Any] = os._exit) -> None:
        self.received: ReceivedSignal | None = None
        self.deadline: Deadline | None = None
        self.when = "before the first step"  # ends the message of an immediate exit
        self._clock, self._abort = clock, abort
        self._interrupted_at: float | None = None
        self._exit: Callable[[Failure], None] = lambda failure: os._exit(failure.code)
        self._exits, self._deferred = False, False
        self._actions: dict[int, Callable[[], None]] = {}

    def install(self) -> None:
        """Handle this process's stop signals from now on. In the main thread only, as Python demands.

        Raises:
            RuntimeError: the system has no thread left.
        """
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write_end, False)
        # The C handler writes the signal's number there, whatever the main thread does.
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        start_daemon_thread(partial(self._exit_for_main_thread, read_end))
        for number in STOP_SIGNALS:
            signal.signal(number, self.handle)

    def call_on(self, number: int, action: Callable[[], None]) -> None:
        """Call `action` in the second thread at each signal of this number, whatever the main thread does."""
        self._actions[number] = action
        signal.signal(number, lambda *_: None)  # without a handler nothing would reach the second thread

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        """The handler."""
        received_at = self._clock()
        if self.received is None:
            self.received = ReceivedSignal(name=signal.Signals(number).name, at=received_at)
        if number == signal.SIGINT:
            if self._interrupted_at is None:
                self._interrupted_at = received_at
            elif received_at - self._interrupted_at > SIGNAL_REPEAT_WINDOW_S:
                self._abort(INTERRUPTED)
        self._raise_if_received()

    def exit_on_signal(self, exit_process: Callable[[Failure], None]) -> None:
        """From now on a signal raises a Failure (STOPPED) in the main thread; now, if one has come already.

        exit_process: a second thread calls it if the main thread does not react; it does not return.
        """
        self._exit, self._exits = exit_process, True
        self._raise_if_received()

    def record_only(self) -> None:
        """From now on nothing is interrupted: training has begun, or this rank is about to exit."""
        self._exits = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Raise nothing inside: importing torch swallows exceptions, and cannot be repeated."""
        self._deferred = True
        yield
        self._deferred = False
        self._raise_if_received()

    def _raise_if_received(self) -> None:
        if self.received and self._exits and not self._deferred:
            raise _stopped_failure(self.received.name, self.when)

    def _exit_for_main_thread(self, read_end: int) -> None:
        """In the second thread: exit if the main thread does not."""
        while written := os.read(read_end, 1):
            number = written[0]
            if number in self._actions:
                with suppress(Exception):  # this thread has to live on for the stop signals
                    self._actions[number]()
            if number in STOP_SIGNALS:
                time.sleep(0 if self._deferred else REACTION_TIME_S)
                if self._exits:
                    self._exit(_stopped_failure(signal.Signals(number).name, self.when))


def _stopped_failure(signal_name: str, when: str) -> Failure:
    return Failure(f"stopped by {signal_name} {when}", fix="start the same command again", code=ExitCode.STOPPED)


class StopRequest:
    """Whether and why this rank would stop: a signal to it, or on rank 0 the deadline."""

    def __init__(
        self, signals: StopSignals, durations: Durations, *, is_main: bool, clock: Callable[[], float]
    ) -> None:
        self._signals, self.durations = signals, durations
        self._is_main, self._clock = is_main, clock
        self._out_of_time = False

    def is_made(self, *, evaluation: bool = False) -> bool:
        """Whether this rank alone would stop. evaluation: whether one would come before the save."""
        return self._signals.received is not None or self._is_out_of_time(evaluation=evaluation)

    @property
    def cause(self) -> str:
        """In one word, if this rank knows it; exit.json holds it."""
        if self._signals.received is not None:
            return self._signals.received.name
        return DEADLINE_CAUSE if self._out_of_time else "a signal to another rank"

    def __str__(self) -> str:
        """The cause, for people."""
        return f"the deadline {self._signals.deadline}" if self.cause == DEADLINE_CAUSE else self.cause

    def _is_out_of_time(self, *, evaluation: bool) -> bool:
        """On rank 0, because one clock must decide. Once true it stays true."""
        deadline = self._signals.deadline
        if deadline is None or not self._is_main:
            return False
        seconds_left = deadline.at - self._clock()
        self._out_of_time |= seconds_left < seconds_to_exit(self.durations, evaluation=evaluation)
        return self._out_of_time
