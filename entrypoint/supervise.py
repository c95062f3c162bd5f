"""The supervisor watches the ranks of this task until all have ended, and returns one exit code.

It passes output and signals on, names the first rank that fails, and ends the others. It explains
how a rank ended that cannot say it itself, also where that rank belongs to another task.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

from entrypoint import network
from entrypoint.children import Child
from entrypoint.errors import ExitCode, Failure
from entrypoint.hang import DEFAULT_STOP_MESSAGES, HangWatch, RankFailure
from entrypoint.heartbeat import SIGNAL_REPEAT_WINDOW_S
from entrypoint.tee import Console
from entrypoint.threads import call_with_timeout


def out_of_memory_failure(who: str) -> Failure:
    """The kernel took it for want of memory."""
    return Failure(
        f"{who} was killed by the kernel: out of host memory",
        fix="ask for more memory (docker run --memory, sbatch --mem), or lower data.workers or train.micro_batch_size",
        code=ExitCode.RESOURCE,
    )


def killed_by_signal_failure(who: str, signum: int, late_s: float | None = None) -> Failure:
    """It died of a signal. late_s: its own parent's, so long after it was asked to stop."""
    name = signal.Signals(signum).name if signum in set(signal.Signals) else f"signal {signum}"
    hints: dict[int, str] = {
        signal.SIGKILL: "if nobody sent it, the host ran out of memory: ask for more memory or fewer data workers",
        signal.SIGBUS: "shared memory or the image's file system went away: see --shm-size, --ipc=host",
    }
    late = "" if late_s is None else f": still at work {late_s:.0f} s after it was asked to stop"
    hint = "if its saves take so long, raise launch.timeouts.save" if late else hints.get(signum, "see its last lines")
    return Failure(
        f"{who} was killed by {name}{late}",
        fix=f"{hint}; start the same command again to resume",
        code=ExitCode.PEER,
    )


def early_exit_failure(who: str, code: int) -> Failure:
    """It said success, or that it had saved, and had not come to the end."""
    return Failure(
        f"{who} left with exit code {code} before its work was done",
        fix="look for sys.exit, os._exit or exec in your own code or a library; start the same command again to resume",
        code=ExitCode.PEER,
    )


def describe_remote_cause(errors: Path, mine: Collection[int]) -> str | None:
    """What ranks of other tasks have left about themselves, in one line; None where there is no cause among it."""
    found = [facts for facts in _read_error_files(errors) if facts["rank"] not in mine and _is_root_cause(facts)]
    return f"the cause is on {found[0]['host']}, rank {found[0]['rank']}: {found[0]['what']}" if found else None


def describe_lost_host(
    errors: Path, mine: Iterable[int], hosts: Iterable[str], address_of: Callable[[str], str]
) -> str | None:
    """The host behind the address that a rank of this task lost, where no rank there could say anything."""
    texts = " ".join(str(facts.get("found", "")) for facts in _read_error_files(errors) if facts["rank"] in set(mine))
    lost = set(re.findall(r"\[([0-9a-fA-F.:]+)\]:\d+", texts))
    for host in hosts:
        with suppress(Failure):
            if address_of(host) in lost:
                return f"the lost rank is on {host}, from which nothing was heard"
    return None


def _is_root_cause(facts: Mapping[str, Any]) -> bool:
    """Not one that only lost another, or stopped because of it."""
    told = (" was killed by ", " left with exit code ", "sys.exit was called ")
    return facts["code"] not in (ExitCode.PEER, ExitCode.STOPPED) or any(text in facts["what"] for text in told)


def _read_error_files(errors: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(errors.glob("rank-*.json")):
        with suppress(OSError, ValueError):
            facts = json.loads(path.read_bytes())
            if isinstance(facts, dict) and {"rank", "host", "code", "what"} <= facts.keys():
                found.append(facts)
    return found


# What a scheduler or a person sends to stop a run. HUP (a closed terminal) is passed on as TERM.
FORWARDED_SIGNALS = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGUSR1: signal.SIGUSR1,
    signal.SIGUSR2: signal.SIGUSR2,
    signal.SIGHUP: signal.SIGTERM,
}
# A terminal's signals, which stay ignored where the caller ignores them: nohup's wish, and a shell's for `train &` in a
# script. TERM and USR are always taken: a job script that ignores them for itself still wants the save.
TERMINAL_SIGNALS = (signal.SIGHUP, signal.SIGINT)
FAILURE_GRACE_S = 10.0  # after a failure: for the others to leave by themselves
HANG_KILL_TIMEOUT_S = 20.0  # after a hang: for the kernel to end what it can; a rank that waits for a dead disk stays
PEER_REPORT_WAIT_S = 1.5  # after a peer was lost: for its own parent, on another node, to say why
POLL_INTERVAL_S = 0.25
SAVE_TIMEOUT_S = 600.0  # after a request to stop: for the ranks to finish their step and commit a checkpoint
RankT = TypeVar("RankT")


class SignalInbox:
    """Signals as data: handlers only write down what came, and wake the loop up through a pipe."""

    def __init__(self) -> None:
        self.arrived: deque[int] = deque()
        self._last: dict[int, float] = {}
        self._old: dict[int, Any] = {}
        self.read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> SignalInbox:
        self._old_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for signum in (*FORWARDED_SIGNALS, signal.SIGCHLD):
            if signum not in TERMINAL_SIGNALS or signal.getsignal(signum) != signal.SIG_IGN:
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
        if (
            signum in FORWARDED_SIGNALS
            and now - self._last.get(signum, -SIGNAL_REPEAT_WINDOW_S) >= SIGNAL_REPEAT_WINDOW_S
        ):
            self._last[signum] = now
            self.arrived.append(signum)

    def drain(self) -> list[int]:
        """The signals to pass on since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.read_end, 4096)
        return [self.arrived.popleft() for _ in range(len(self.arrived))]


@dataclass(slots=True)
class Supervision:
    """The state of one supervision. oom_kills: how often the kernel has killed here for want of memory.

    hang: for ranks of our own. hosts: of all ranks, where they are known. overdue: one did not stop in its time.
    """

    children: list[Child]
    hostname: str
    foreign: bool
    console: Console
    oom_kills: Callable[[], int] = int
    oom_kills_before: int = 0
    hang: HangWatch | None = None
    hosts: Sequence[str] = ()
    alive: list[Child] = field(default_factory=list)
    first: tuple[Child, int] | None = None
    asked: int | None = None
    kill_at: float | None = None
    overdue: bool = False
    verdict: RankFailure | None = None
    death: RankFailure | None = None
    named: bool = False
    name_until: float = 0.0

    @property
    def save_s(self) -> float:
        """How long ranks may take over their last save."""
        return max(SAVE_TIMEOUT_S, self.hang.care.limits.save) if self.hang else SAVE_TIMEOUT_S

    def forward(self, signum: int) -> None:
        """Pass a request to stop on to every rank."""
        self.asked = FORWARDED_SIGNALS[signal.Signals(signum)]
        if self.kill_at is None and self.hang and self.console.is_terminal:
            self.console.say(f"stopping: {self.hang.care.promise[0]}; Ctrl-C once more ends it at once")
        self.kill_at = self.kill_at or time.monotonic() + self.save_s
        for child in self.alive:
            child.send(self.asked)

    def reap(self) -> None:
        """Take in the ranks that ended; the first failure ends the others."""
        ended = [(child, _rank_exit_code(child)) for child in self.alive if child.process.poll() is not None]
        self.alive = [child for child in self.alive if child.process.returncode is None]
        if (failed := [pair for pair in ended if pair[1] != 0]) and self.first is None and self.verdict is None:
            self.first = first_to_blame(sorted(failed, key=lambda pair: not pair[0].ended_early))
            self._announce()
            stopped = self.first[1] == ExitCode.STOPPED
            self.kill_at = time.monotonic() + (self.save_s if stopped else FAILURE_GRACE_S)
            for child in [] if stopped else self.alive:
                child.send(signal.SIGTERM)

    def _announce(self) -> None:
        """Name the first to fail at once, here and in errors/, unless it can speak for itself."""
        self.name_until = time.monotonic() + PEER_REPORT_WAIT_S
        failure = self._death()
        if self.first is None or failure is None:
            return
        self.named, child = True, self.first[0]
        if self.hang:
            failure.kept = call_with_timeout(self.hang.care.kept)
            self.death = RankFailure(failure=failure, rank=child.world.rank, host=self.hostname, step=child.step)
        self.console.say(str(failure))
        self._keep()

    def _death(self) -> Failure | None:
        """What is to be said of a rank that could not say it itself."""
        if self.first is None or self.asked == -self.first[1]:
            return None
        child, code = self.first
        who = f"rank {child.world.rank} of {child.world.world_size} ({self.hostname}, pid {child.process.pid})"
        if child.ended_early:
            return early_exit_failure(who, child.process.returncode)
        if self.out_of_memory():
            return out_of_memory_failure(who)
        return killed_by_signal_failure(who, -code, late_s=self.save_s if self.overdue else None) if code < 0 else None

    def listen(self) -> None:
        """Look for silence; all ranks of a run that hangs are ended. After a lost peer, look for who it was."""
        if self.hang is None:
            return
        if self.first is not None:
            self._name_elsewhere()
        elif self.verdict is None and (verdict := self.hang.look(self.alive, time.monotonic())):
            self.verdict, self.kill_at = verdict, time.monotonic()
            ranks = {child.world.rank for child in self.children}
            if ranks & {0, verdict.rank}:
                self.console.say(str(verdict.failure))
            self._keep()

    def _keep(self) -> None:
        """Leave in errors/ what ranks cannot say; once more at the end, when none of them can write over it."""
        said = self.verdict or self.death
        if said and self.hang:
            call_with_timeout(partial(self.hang.care.blame, said.failure, said.rank, said.host, said.step))

    def _name_elsewhere(self, *, last: bool = False) -> None:
        """Repeat what the task of a lost rank has said of it."""
        if self.named or self.hang is None or self.first is None or self.first[1] != ExitCode.PEER or self.hang.alone:
            return
        errors, mine = self.hang.care.errors, {child.world.rank for child in self.children}
        told = describe_remote_cause(errors, mine)
        if told is None and last:
            told = describe_lost_host(errors, mine, self.hosts, network.resolve)
        if told:
            self.named = True
            self.console.say(told)

    def ask_around(self) -> None:
        """At the end: wait a moment for the task of a lost rank."""
        while not self.named and self.hang and not self.hang.alone and time.monotonic() < self.name_until:
            self._name_elsewhere()
            time.sleep(0.1)
        self._name_elsewhere(last=True)

    @property
    def over(self) -> bool:
        """Whether there is nobody left to wait for. What a dead disk holds can not be ended."""
        return not self.alive or (
            self.verdict is not None and time.monotonic() >= (self.kill_at or 0) + HANG_KILL_TIMEOUT_S
        )

    def enforce(self) -> None:
        """End by force what did not leave in its time."""
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self.overdue = self.overdue or (self.first is None and self.verdict is None)
            for child in self.alive:
                child.kill_group()

    def exit_code(self) -> int:
        """One code for the whole task."""
        if self.verdict is not None:
            return int(self.verdict.failure.code)
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
        return self.first is not None and self.first[1] == -signal.SIGKILL and self.oom_kills() > self.oom_kills_before

    def report(self) -> None:
        """Say who failed first, where it was not said yet. Rank 0's own words are on the console already."""
        self._keep()
        if self.first is None or self.first[1] == ExitCode.STOPPED:
            return
        child, code = self.first
        if self.asked in (-code, code - 128):  # by one without a handler yet; the latter from one that was asked twice
            lost = f", {(self.hang.care.promise if self.hang else DEFAULT_STOP_MESSAGES)[1]}" if code > 0 else ""
            self.console.say(f"stopped by {signal.Signals(abs(code) % 128).name}{lost}")
            return
        self.ask_around()
        shown = child.tee.was_shown(c.tee for c in self.children if c is not child or c.world.world_size == 1)
        who = f"rank {child.world.rank} of {child.world.world_size} ({self.hostname}, pid {child.process.pid})"
        if self._death() is None and not shown:
            self.console.say(f"{who} was the first to fail: exit code {code}. log: {child.tee.log.name}")
        if child.tee.console is None and not shown:
            self.console.say("\n".join(f"  | {line}" for line in child.tee.memory))


def supervise(watch: Supervision, inbox: SignalInbox) -> int:
    """Run until every rank has ended; returns the exit code for the task."""
    watch.alive = list(watch.children)
    with selectors.DefaultSelector() as selector:
        selector.register(inbox.read_end, selectors.EVENT_READ)
        pipes = _register_pipes(selector, watch.children)
        while not watch.over:
            pipes -= _pump_output(selector, POLL_INTERVAL_S if watch.hang else 0.5)
            for signum in inbox.drain():
                watch.forward(signum)
            watch.reap()
            watch.listen()
            watch.enforce()
        for child in watch.children:
            child.kill_group()  # what a rank left behind holds its pipes and its GPU
        deadline = time.monotonic() + 2.0
        while pipes and time.monotonic() < deadline:
            pipes -= _pump_output(selector, 0.1)
    for child in watch.children:
        child.tee.close()
    if watch.verdict is not None:
        watch.console.end_line()
    watch.report()
    return watch.exit_code()


def _register_pipes(selector: selectors.BaseSelector, children: Sequence[Child]) -> int:
    for child in children:
        for descriptor, stream in ((1, child.process.stdout), (2, child.process.stderr)):
            assert stream is not None  # both are pipes
            selector.register(stream, selectors.EVENT_READ, (child.tee, descriptor))
    return 2 * len(children)


def _pump_output(selector: selectors.BaseSelector, timeout_s: float) -> int:
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


def _rank_exit_code(child: Child) -> int:
    """The exit code of a rank that has ended; success before its last word is none."""
    return int(ExitCode.PEER) if child.ended_early else int(child.process.returncode)


def first_to_blame(failed: Iterable[tuple[RankT, int]]) -> tuple[RankT, int]:
    """Among ranks that ended in one instant: the killed first, then those with a cause, then those that lost a peer."""
    return min(failed, key=lambda pair: 0 if pair[1] < 0 else 2 if pair[1] in (ExitCode.PEER, ExitCode.STOPPED) else 1)
