"""The supervisor watches the ranks of this task until all have ended, and returns one exit code.

It forwards output and signals, reports the first rank that fails, and ends the others. It explains
the end of a rank that was killed and could not report it itself, also for a rank of another task.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from entrypoint import engines, network
from entrypoint.children import Child
from entrypoint.console import join_lines
from entrypoint.errors import ExitCode, Failure, resource_limit_failure
from entrypoint.hang import DEFAULT_STOP_MESSAGES, HangWatch
from entrypoint.heartbeat import SIGNAL_REPEAT_WINDOW_S
from entrypoint.run_errors import RunError, RunErrors, blame_order, cause
from entrypoint.tee import Console
from entrypoint.threads import call_with_timeout


def killed_by_signal_failure(who: str, signum: int, late_s: float | None = None) -> Failure:
    """The Failure for a rank that a signal killed.

    late_s: for our own SIGKILL, the seconds since the request to stop.
    """
    name = signal.Signals(signum).name if signum in set(signal.Signals) else f"signal {signum}"
    hints: dict[int, str] = {
        signal.SIGKILL: "if nobody sent it, the host ran out of memory: ask for more memory or fewer data workers",
        signal.SIGBUS: "shared memory or the image's file system went away: see --shm-size, --ipc=host",
    }
    late = "" if late_s is None else f": still running {late_s:.0f} s after the request to stop"
    hint = "if its saves take so long, raise launch.timeouts.save" if late else hints.get(signum, "see its last lines")
    return Failure(
        f"{who} was killed by {name}{late}",
        fix=f"{hint}; start the same command again to resume",
        code=ExitCode.PEER,
    )


def limit_failure(who: str, last_lines: Iterable[str]) -> Failure | None:
    """The Failure for a rank that could not report itself which limit of the system ended it; None for another end.

    gloo aborts where it may open no more files or start no thread, and the C library where it gets no memory.
    """
    for line in last_lines:
        if failure := resource_limit_failure(RuntimeError(line)):
            failure.what = f"{who} has ended: {failure.what}"
            return failure
    return None


def cuda_abort_failure(who: str, host: str, last_lines: Iterable[str]) -> Failure | None:
    """The Failure for a rank that C++ ended for an error of its GPU; None for any other abort.

    torch's watch over NCCL does so while the rank waits for another one. A device-side assert is the program's error.
    """
    text = "\n".join(last_lines)
    error = re.search(r"CUDA error: [^\n]+", text)
    if "terminate called after throwing" not in text or error is None or "device-side assert" in error[0]:
        return None
    return Failure(
        f"{who} was ended by torch: its GPU reports an error",
        found=error[0].strip(),
        fix=f"leave this node out (srun --exclude={host}) and report it: nvidia-smi -q -d ECC shows the GPU's memory",
        code=ExitCode.NODE,
    )


def describe_remote_cause(errors: RunErrors, own_ranks: Collection[int]) -> str | None:
    """One line about the root cause from the error files of other tasks' ranks.

    None if none has a root cause.
    """
    blamed = cause(error for error in errors.read() if error.rank not in own_ranks)
    if blamed is None or blamed.symptom:
        return None
    return f"the cause is on {blamed.host}, rank {blamed.rank}: {blamed.failure.what}"


def describe_lost_host(
    errors: RunErrors, own_ranks: Iterable[int], hosts: Iterable[str], address_of: Callable[[str], str]
) -> str | None:
    """One line about a host to which a rank of this task lost its connection."""
    texts = " ".join(error.failure.found or "" for error in errors.read() if error.rank in set(own_ranks))
    lost = set(re.findall(r"\[([0-9a-fA-F.:]+)\]:\d+", texts))
    for host in hosts:
        with suppress(Failure):
            if address_of(host) in lost:
                return f"the lost rank is on {host}, which reported nothing"
    return None


# What a scheduler or a person sends to stop a run. HUP (a closed terminal) reaches a foreign command as TERM.
FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
# Signals from a terminal, which stay ignored if the caller ignores them, as nohup and a script's
# `train &` do. TERM and USR are always handled: a job script that ignores them itself still needs
# the checkpoint.
TERMINAL_SIGNALS = (signal.SIGHUP, signal.SIGINT)
FAILURE_GRACE_S = 10.0  # after a failure: for the other ranks to exit by themselves
HANG_KILL_TIMEOUT_S = 20.0  # after a hang: for killed ranks to end; one that waits for a dead disk never does
PEER_REPORT_WAIT_S = 1.5  # after a lost peer: for its parent, on another node, to report why
POLL_INTERVAL_S = 0.25
SAVE_TIMEOUT_S = 600.0  # after a request to stop: for the ranks to finish their step and commit a checkpoint


class SignalInbox:
    """Collects signals: its handlers only record the signal, and wake the loop through a pipe."""

    def __init__(self) -> None:
        self.arrived: deque[int] = deque()
        self._last_arrival: dict[int, float] = {}
        self._previous_handlers: dict[int, Any] = {}
        self.read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> SignalInbox:
        self._previous_wakeup_fd = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for signum in (*FORWARDED_SIGNALS, signal.SIGCHLD):
            if signum not in TERMINAL_SIGNALS or signal.getsignal(signum) != signal.SIG_IGN:
                self._previous_handlers[signum] = signal.signal(signum, self._record)
        return self

    def __exit__(
        self, exception_type: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for signum, handler in self._previous_handlers.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._previous_wakeup_fd)
        os.close(self.read_end)
        os.close(self._write_end)

    def _record(self, signum: int, frame: FrameType | None) -> None:
        arrived_s = time.monotonic()
        if (
            signum in FORWARDED_SIGNALS
            and arrived_s - self._last_arrival.get(signum, -SIGNAL_REPEAT_WINDOW_S) >= SIGNAL_REPEAT_WINDOW_S
        ):
            self._last_arrival[signum] = arrived_s
            self.arrived.append(signum)

    def drain(self) -> list[int]:
        """The signals to pass on since the last call."""
        with suppress(BlockingIOError):
            os.read(self.read_end, 4096)
        return [self.arrived.popleft() for _ in range(len(self.arrived))]


@dataclass(slots=True)
class Supervision:
    """Supervises the ranks of one start. oom_kills: counts the OOM killer's kills in this cgroup.

    hang: the watch over our own workers' heartbeats. hosts: of all ranks, if known. stop_signal:
    the request to stop that was forwarded. overdue: a rank did not stop in time. hang_failure: the
    run hangs. death: how the first failed rank ended, if it could not report that itself.
    cause_reported: the cause of the first failure is on the console.
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
    first_failed: tuple[Child, int] | None = None
    stop_signal: int | None = None
    kill_at: float | None = None
    overdue: bool = False
    hang_failure: RunError | None = None
    death: Failure | None = None
    cause_reported: bool = False
    peer_report_deadline: float = 0.0

    @property
    def save_timeout_s(self) -> float:
        """How long ranks may take for their last checkpoint."""
        return max(SAVE_TIMEOUT_S, self.hang.policy.limits.save) if self.hang else SAVE_TIMEOUT_S

    def forward(self, signum: int) -> None:
        """Forward a request to stop to every rank."""
        self.stop_signal = signal.SIGTERM if self.foreign and signum == signal.SIGHUP else signum
        if self.kill_at is None and self.hang and self.console.is_terminal:
            self.console.say(f"stopping: {self.hang.policy.promise[0]}; Ctrl-C once more ends it at once")
        self.kill_at = self.kill_at or time.monotonic() + self.save_timeout_s
        for child in self.alive:
            child.send(self.stop_signal)

    def reap(self) -> None:
        """Collect the ranks that ended; the first failure ends the others."""
        # A rank that exits before the end of its work is a lost peer to the others, whatever its code says.
        ended = [
            (child, int(ExitCode.PEER) if child.ended_early else int(child.process.returncode))
            for child in self.alive
            if child.process.poll() is not None
        ]
        self.alive = [child for child in self.alive if child.process.returncode is None]
        failed = [pair for pair in ended if pair[1] != 0]
        if failed and self.first_failed is None and self.hang_failure is None:
            self.first_failed = child, code = min(failed, key=_blame_order)
            self.peer_report_deadline = time.monotonic() + PEER_REPORT_WAIT_S
            if death := self._death_failure(child, code):  # at once: it cannot report itself
                self.death, self.cause_reported = death, True
                death.kept = call_with_timeout(self.hang.policy.kept) if self.hang else None
                self.console.say(str(death))
                self._record_failure()
            stopped = code == ExitCode.STOPPED
            self.kill_at = time.monotonic() + (self.save_timeout_s if stopped else FAILURE_GRACE_S)
            for other in [] if stopped else self.alive:
                other.send(signal.SIGTERM)

    def _describe(self, child: Child) -> str:
        return f"rank {child.world.rank} of {child.world.world_size} ({self.hostname}, pid {child.process.pid})"

    def _death_failure(self, child: Child, code: int) -> Failure | None:
        """The Failure of a first failed rank that could not report it itself; None if it could."""
        who = self._describe(child)
        if self.stop_signal == -code:
            return None
        if child.ended_early:
            return Failure(
                f"{who} left with exit code {child.process.returncode} before its work was done",
                fix="look for sys.exit, os._exit or exec in your own code or a library; start the same command again "
                "to resume",
                code=ExitCode.PEER,
            )
        if code == -signal.SIGKILL and self.oom_kills() > self.oom_kills_before:
            return Failure(
                f"{who} was killed by the kernel: out of host memory",
                fix=f"ask for more memory ({engines.fix('memory')}, sbatch --mem), or lower data.workers or "
                "train.micro_batch_size",
                code=ExitCode.RESOURCE,
            )
        is_explained = code in (*ExitCode, -signal.SIGKILL) or (self.foreign and code > 0)
        failure = None if is_explained else limit_failure(who, child.tee.last_lines)
        if failure is None and code == -signal.SIGABRT:
            failure = cuda_abort_failure(who, self.hostname, child.tee.last_lines)
        if failure is None and code < 0:
            failure = killed_by_signal_failure(who, -code, late_s=self.save_timeout_s if self.overdue else None)
        return failure

    def check_heartbeats(self) -> None:
        """Look for a hang, which ends all ranks.

        After a lost peer, look for the report about it.
        """
        if self.hang is None:
            return
        if self.first_failed is not None:
            self._report_remote_cause()
        elif self.hang_failure is None and (failure := self.hang.poll(self.alive, time.monotonic())):
            self.hang_failure, self.kill_at = failure, time.monotonic()
            ranks = {child.world.rank for child in self.children}
            if ranks & {0, failure.rank}:
                self.console.say(str(failure.failure))
            self._record_failure()

    def _record_failure(self) -> None:
        """Write to errors/ what killed ranks cannot.

        Once more at the end, when no rank can overwrite it.
        """
        failed = self.hang_failure
        if self.death and self.first_failed:
            child, code = self.first_failed
            rank, step = child.world.rank, child.step
            failed = RunError(failure=self.death, rank=rank, host=self.hostname, step=step, killed=code < 0)
        if failed and self.hang:
            call_with_timeout(partial(self.hang.policy.errors.write_cause, failed))

    def _report_remote_cause(self, *, last: bool = False) -> None:
        """Repeat on the console what the task of a lost rank has reported about it."""
        if (
            self.cause_reported
            or self.hang is None
            or self.first_failed is None
            or self.first_failed[1] != ExitCode.PEER
            or self.hang.alone
        ):
            return
        errors, own_ranks = self.hang.policy.errors, {child.world.rank for child in self.children}
        message = describe_remote_cause(errors, own_ranks)
        if message is None and last:
            message = describe_lost_host(errors, own_ranks, self.hosts, network.resolve)
        if message:
            self.cause_reported = True
            self.console.say(message)

    def wait_for_peer_report(self) -> None:
        """At the end, wait a moment for the report from the task of a lost rank."""
        while (
            not self.cause_reported
            and self.hang
            and not self.hang.alone
            and time.monotonic() < self.peer_report_deadline
        ):
            self._report_remote_cause()
            time.sleep(0.1)
        self._report_remote_cause(last=True)

    @property
    def finished(self) -> bool:
        """Whether no rank is left to wait for; one that waits for a dead disk cannot be killed."""
        return not self.alive or (
            self.hang_failure is not None and time.monotonic() >= (self.kill_at or 0) + HANG_KILL_TIMEOUT_S
        )

    def kill_overdue(self) -> None:
        """Kill the ranks that did not exit in time."""
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self.overdue = self.overdue or (self.first_failed is None and self.hang_failure is None)
            for child in self.alive:
                child.kill_group()

    def exit_code(self) -> int:
        """One exit code for the task."""
        if self.hang_failure is not None:
            return int(self.hang_failure.failure.code)
        if self.first_failed is None:
            return 0
        code = self.first_failed[1]
        if self.stop_signal == -code:  # it had no signal handler (yet)
            return 128 - code if self.foreign else int(ExitCode.STOPPED)
        return code if self.death is None else int(self.death.code)

    def report(self) -> None:
        """Report the first failed rank, unless that was done.

        Rank 0's own messages are on the console already.
        """
        self._record_failure()
        if self.first_failed is None or self.first_failed[1] == ExitCode.STOPPED:
            return
        child, code = self.first_failed
        if self.stop_signal in (-code, code - 128):  # it had no handler yet, or got the signal twice
            outcome = f", {(self.hang.policy.promise if self.hang else DEFAULT_STOP_MESSAGES)[1]}" if code > 0 else ""
            self.console.say(f"stopped by {signal.Signals(abs(code) % 128).name}{outcome}")
            return
        self.wait_for_peer_report()
        was_shown = child.tee.was_shown(
            other.tee for other in self.children if other is not child or other.world.world_size == 1
        )
        if self.death is None and not was_shown:
            self.console.say(
                f"{self._describe(child)} was the first to fail: exit code {code}. log: {child.tee.log.name}"
            )
        if child.tee.console is None and not was_shown:
            self.console.say(join_lines(f"  | {line}" for line in child.tee.last_lines))


def supervise(watch: Supervision, inbox: SignalInbox) -> int:
    """Run until every rank has ended, and return the exit code for the task."""
    watch.alive = list(watch.children)
    with selectors.DefaultSelector() as selector:
        selector.register(inbox.read_end, selectors.EVENT_READ)
        pipes = 2 * len(watch.children)
        for child in watch.children:
            for descriptor, stream in ((1, child.process.stdout), (2, child.process.stderr)):
                assert stream is not None  # both are pipes
                selector.register(stream, selectors.EVENT_READ, (child.tee, descriptor))
        while not watch.finished:
            pipes -= _pump_output(selector, POLL_INTERVAL_S if watch.hang else 0.5)
            for signum in inbox.drain():
                watch.forward(signum)
            if any(child.process.poll() is not None for child in watch.alive):
                pipes -= _pump_output(selector, 0)  # their last lines may say why they ended
            watch.reap()
            watch.check_heartbeats()
            watch.kill_overdue()
        for child in watch.children:
            child.kill_group()  # processes that a rank left behind hold its pipes and its GPU
        deadline = time.monotonic() + 2.0
        while pipes and time.monotonic() < deadline:
            pipes -= _pump_output(selector, 0.1)
    for child in watch.children:
        child.tee.close()
    if watch.hang_failure is not None:
        watch.console.end_line()
    watch.report()
    return watch.exit_code()


def _pump_output(selector: selectors.BaseSelector, timeout_s: float) -> int:
    """Pass on the available output; return how many pipes were closed."""
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


def _blame_order(ended: tuple[Child, int]) -> tuple[bool, bool, int]:
    """The order of ranks that ended together. Whoever left its work early has an error of its own."""
    child, code = ended
    symptom = not child.ended_early and code in {each for each in ExitCode if each.symptom}
    return blame_order(child.world.rank, killed=code < 0, symptom=symptom)
