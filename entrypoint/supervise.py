"""Started ranks to one exit code: pass output and signals on, name the first that fails, end the others."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, TypeVar

from entrypoint.children import Child
from entrypoint.errors import ExitCode, Failure
from entrypoint.tee import Console

# What a scheduler or a person sends to stop a run. HUP (a closed terminal) is passed on as TERM.
FORWARDED = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGUSR1: signal.SIGUSR1,
    signal.SIGUSR2: signal.SIGUSR2,
    signal.SIGHUP: signal.SIGTERM,
}
# A terminal's signals, which stay ignored where the caller ignores them: nohup's wish, and a shell's for `train &` in a
# script. TERM and USR are always taken: a job script that ignores them for itself still wants the save.
TERMINALS = (signal.SIGHUP, signal.SIGINT)
REPEAT_S = 2.0  # the same signal again within this time is Slurm's and Apptainer's double delivery, not a second wish
GRACE_S = 10.0  # after a failure: for the others to leave by themselves
T = TypeVar("T")

SAVE_S = 600.0  # after a request to stop: for the ranks to finish their step and commit a checkpoint


class Inbox:
    """Signals as data: handlers only write down what came, and wake the loop up through a pipe."""

    def __init__(self) -> None:
        self.arrived: deque[int] = deque()
        self._last: dict[int, float] = {}
        self._old: dict[int, Any] = {}
        self.read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Inbox:
        self._old_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for signum in (*FORWARDED, signal.SIGCHLD):
            if signum not in TERMINALS or signal.getsignal(signum) != signal.SIG_IGN:
                self._old[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for signum, handler in self._old.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self.read_end)
        os.close(self._write_end)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if signum in FORWARDED and now - self._last.get(signum, -REPEAT_S) >= REPEAT_S:
            self._last[signum] = now
            self.arrived.append(signum)

    def drain(self) -> list[int]:
        """The signals to pass on since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.read_end, 4096)
        return [self.arrived.popleft() for _ in range(len(self.arrived))]


@dataclass(slots=True)
class Watch:
    """The state of one supervision. oom_kills: how often the kernel has killed here for want of memory."""

    children: list[Child]
    hostname: str
    foreign: bool
    console: Console
    oom_kills: Callable[[], int] = int
    oom_kills_before: int = 0
    alive: list[Child] = field(default_factory=list)
    first: tuple[Child, int] | None = None
    asked: int | None = None
    kill_at: float | None = None

    def forward(self, signum: int) -> None:
        """Pass a request to stop on to every rank."""
        self.asked = FORWARDED[signal.Signals(signum)]
        self.kill_at = self.kill_at or time.monotonic() + SAVE_S
        for child in self.alive:
            child.send(self.asked)

    def reap(self) -> None:
        """Take in the ranks that ended; the first failure ends the others."""
        ended = [(child, child.process.returncode) for child in self.alive if child.process.poll() is not None]
        self.alive = [child for child in self.alive if child.process.returncode is None]
        failed = [pair for pair in ended if pair[1] != 0]
        if failed and self.first is None:
            self.first = first_to_blame(failed)
            stopped = self.first[1] == ExitCode.STOPPED
            self.kill_at = time.monotonic() + (SAVE_S if stopped else GRACE_S)
            for child in [] if stopped else self.alive:
                child.send(signal.SIGTERM)

    def enforce(self) -> None:
        """End by force what did not leave in its time."""
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            for child in self.alive:
                child.kill_group()

    def exit_code(self) -> int:
        """One code for the whole task."""
        if self.first is None:
            return 0
        code = self.first[1]
        if code >= 0:
            return code
        if self.asked == -code:  # it had no handler yet (or none at all)
            return 128 - code if self.foreign else int(ExitCode.STOPPED)
        return int(ExitCode.RESOURCE if self.out_of_memory() else ExitCode.PEER)

    def out_of_memory(self) -> bool:
        """Whether the kernel killed the first to fail for want of memory."""
        killed = self.first is not None and self.first[1] == -signal.SIGKILL
        return killed and self.oom_kills() > self.oom_kills_before

    def report(self) -> None:
        """Say who failed first. Rank 0's own words are on the console already."""
        if self.first is None or self.exit_code() == ExitCode.STOPPED:
            return
        child, code = self.first
        if self.asked == -code:
            self.console.say(f"stopped by {signal.Signals(-code).name}")
            return
        who = f"rank {child.world.rank} of {child.world.world_size} ({self.hostname}, pid {child.process.pid})"
        if self.out_of_memory():
            self.console.say(str(_starved(who)))
        elif code < 0:
            self.console.say(str(_killed(who, -code)))
        else:
            self.console.say(f"{who} was the first to fail: exit code {code}. log: {child.tee.log.name}")
        if child.tee.console is None:
            self.console.say("\n".join(f"  | {line}" for line in child.tee.memory))


def supervise(watch: Watch, inbox: Inbox) -> int:
    """Run until every rank has ended; returns the exit code for the task."""
    watch.alive = list(watch.children)
    with selectors.DefaultSelector() as selector:
        selector.register(inbox.read_end, selectors.EVENT_READ)
        pipes = _register(selector, watch.children)
        while watch.alive:
            pipes -= _pump(selector, 0.5)
            for signum in inbox.drain():
                watch.forward(signum)
            watch.reap()
            watch.enforce()
        for child in watch.children:
            child.kill_group()  # what a rank left behind holds its pipes and its GPU
        deadline = time.monotonic() + 2.0
        while pipes and time.monotonic() < deadline:
            pipes -= _pump(selector, 0.1)
    for child in watch.children:
        child.tee.close()
    watch.report()
    return watch.exit_code()


def _register(selector: selectors.BaseSelector, children: Sequence[Child]) -> int:
    for child in children:
        for descriptor, stream in ((1, child.process.stdout), (2, child.process.stderr)):
            assert stream is not None  # both are pipes
            selector.register(stream, selectors.EVENT_READ, (child.tee, descriptor))
    return 2 * len(children)


def _pump(selector: selectors.BaseSelector, timeout_s: float) -> int:
    """Move what is there; returns how many pipes came to their end."""
    ended = 0
    for key, _ in selector.select(timeout_s):
        if key.data is None:
            continue
        tee, descriptor = key.data
        data = os.read(key.fd, 65_536)
        if data:
            tee.feed(descriptor, data)
        else:
            selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
            ended += 1
    return ended


def first_to_blame(failed: Iterable[tuple[T, int]]) -> tuple[T, int]:
    """Among ranks that ended in one instant: the killed first, then those with a cause, then those that lost a peer."""
    return min(failed, key=lambda pair: 0 if pair[1] < 0 else 2 if pair[1] in (ExitCode.PEER, ExitCode.STOPPED) else 1)


def _starved(who: str) -> Failure:
    return Failure(
        f"{who} was killed by the kernel: out of host memory",
        fix="ask for more memory (docker run --memory, sbatch --mem), or lower data.workers or train.micro_batch_size",
        code=ExitCode.RESOURCE,
    )


def _killed(who: str, signum: int) -> Failure:
    name = signal.Signals(signum).name if signum in set(signal.Signals) else f"signal {signum}"
    hints: dict[int, str] = {
        signal.SIGKILL: "if nobody sent it, the host ran out of memory: ask for more memory or fewer data workers",
        signal.SIGBUS: "shared memory or the image's file system went away: see --shm-size, --ipc=host",
    }
    return Failure(
        f"{who} was killed by {name}",
        fix=f"{hints.get(signum, 'see its last lines')}; start the same command again to resume",
        code=ExitCode.PEER,
    )
