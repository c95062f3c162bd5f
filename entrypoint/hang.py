"""HangWatch reads the ranks' heartbeats, and names the rank that makes the run hang.

The decision is a pure function of heartbeats and a clock. The tasks of one run exchange the status
of their ranks, and the stacks of silent ones, in files in errors/.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from entrypoint import stacks
from entrypoint.children import Child
from entrypoint.errors import ExitCode, Failure
from entrypoint.files import read_json
from entrypoint.heartbeat import POINTS, HeartbeatRecord, Phase, Point
from entrypoint.run_errors import RunError, RunErrors
from entrypoint.threads import call_with_timeout

# launch.timeouts.step=auto: this factor times the 99th percentile of the steps, within these
# bounds.
AUTO_TIMEOUT_FACTOR: Final = 10.0
MIN_STEP_TIMEOUT_S: Final = 30.0
MAX_STEP_TIMEOUT_S: Final = 1800.0
# After launch.timeouts.start a rank itself reports a missing rank of another host; this slack lets
# it report first. For a rank of its own host it waits longer (train.distributed.rendezvous), so
# that the parent reports it.
START_SLACK_S: Final = 15.0
# Between two polls. A longer gap means that the ranks were suspended too: a suspended job, a closed
# laptop.
MAX_COUNTED_INTERVAL_S: Final = 2.0
NUM_TIMED_STEPS: Final = 1000  # last steps whose durations are kept
HALTED_STATES: Final = {"T": "is stopped", "t": "is held by a debugger", "D": "waits for the kernel (a disk, a GPU)"}
_STAGE_ORDER: Final = ("start", "data", "agreement", "evaluation", "save", "step", "end")


@dataclass(frozen=True, slots=True, kw_only=True)
class HangTimeouts:
    """Longest silence in seconds, by phase.

    start: until the first step has ended. step: None means auto.
    """

    start: float
    step: float | None
    evaluation: float
    save: float
    data: float

    def limit_after(self, beat: HeartbeatRecord | None, usual_s: float) -> float:
        """How long the rank may be silent after this beat, in seconds.

        usual_s: the 99th percentile of its steps.
        """
        phase: Phase = beat.phase if beat else "start"
        if beat and phase == "step" and beat.warm:
            return (
                self.step
                if self.step is not None
                else min(max(MIN_STEP_TIMEOUT_S, AUTO_TIMEOUT_FACTOR * usual_s), MAX_STEP_TIMEOUT_S)
            )
        timeouts = {"evaluation": self.evaluation, "save": self.save, "data": self.data, "end": self.save}
        return timeouts.get(phase, self.start + START_SLACK_S)


@dataclass(slots=True)
class SilenceTimer:
    """How long one rank has been silent, by a clock that stops while nobody polls."""

    limits: HangTimeouts
    beat: HeartbeatRecord | None = None
    seconds: float = 0.0
    _updated_at: float | None = None
    _step_durations: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_TIMED_STEPS))
    _measured_from: HeartbeatRecord | None = None

    def update(self, beat: HeartbeatRecord | None, time_s: float) -> None:
        """Take the latest beat."""
        elapsed = 0.0 if self._updated_at is None else min(time_s - self._updated_at, MAX_COUNTED_INTERVAL_S)
        self._updated_at = time_s
        moved = beat is not None and beat != self.beat  # the point within a step may change while the number stays
        self.seconds = 0.0 if moved else self.seconds + elapsed
        if moved:
            self._measure_step(beat)
        self.beat = beat

    def _measure_step(self, beat: HeartbeatRecord | None) -> None:
        if beat is None or beat.phase != "step" or beat.step is None or not beat.warm:
            self._measured_from = None
        elif self._measured_from is None or self._measured_from.step is None or beat.step < self._measured_from.step:
            self._measured_from = beat
        elif beat.step > self._measured_from.step:
            self._step_durations.append((beat.at - self._measured_from.at) / (beat.step - self._measured_from.step))
            self._measured_from = beat

    @property
    def limit(self) -> float:
        """The longest silence that is allowed in the rank's current phase."""
        durations = sorted(self._step_durations)
        return self.limits.limit_after(self.beat, durations[int(0.99 * (len(durations) - 1))] if durations else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """The last known state of one rank.

    warm: a step was finished in this start. state: its letter in /proc. where: the file and line
    that it executes. waits: it is in a collective operation, or waits for its GPU. unfinished: see
    ProcessStacks.
    """

    rank: int
    host: str
    gpu: int | None
    phase: Phase
    point: Point
    step: int | None
    micro: int
    silent_s: float
    limit_s: float
    warm: bool = True
    state: str = "?"
    where: str | None = None
    waits: bool = False
    unfinished: str = ""

    @property
    def progress(self) -> tuple[int, int, int, int]:
        """A sort key for how far the rank is.

        The rank that is furthest behind blocks the others.
        """
        stage = "agreement" if self.point == "agreement" else self.phase
        step = -1 if self.step is None else self.step
        return step, _STAGE_ORDER.index(stage), self.micro if stage == "step" else 0, POINTS.index(self.point)

    @property
    def is_late(self) -> bool:
        """Whether its GPU has not begun the oldest operation that has not ended."""
        return self.unfinished.endswith("not begun")

    @property
    def who(self) -> str:
        """Host and GPU in parentheses: (node02, GPU 1)."""
        return f"({self.host})" if self.gpu is None else f"({self.host}, GPU {self.gpu})"


def find_blocking_rank(statuses: Sequence[RankStatus]) -> RankStatus | None:
    """The rank that blocks all others.

    None while one of the ranks that are furthest behind may still progress.

    A rank that is stopped, or is outside a collective operation, is chosen before one that only
    waits in it; of these, one whose GPU has not begun the operation.
    """
    min_progress = min((status.progress for status in statuses), default=None)
    last = [status for status in statuses if status.progress == min_progress]
    if not last or any(status.silent_s < status.limit_s for status in last):
        return None
    return min(
        last, key=lambda status: (status.state not in HALTED_STATES, status.waits, not status.is_late, -status.silent_s)
    )


def describe_hang(culprit: RankStatus, statuses: Sequence[RankStatus], world_size: int) -> str:
    """The sentence that tells the user which rank hangs, where, and where the others wait."""
    if culprit.waits and len(statuses) > 1:
        if culprit.is_late and any(status.unfinished and not status.is_late for status in statuses):
            operation = culprit.unfinished.partition(",")[0]
            return (
                f"rank {culprit.rank} of {world_size} {culprit.who} last finished step {culprit.step}: its GPU has not "
                f"begun NCCL's {operation}, in which the GPUs of other ranks wait"
            )
        hosts = ", ".join(sorted({status.host for status in statuses}))
        waiting = "for their GPUs" if culprit.point == "device" else f"for each other in {_describe_phase(culprit)}"
        return (
            f"all {world_size} ranks wait {waiting} after step {culprit.step}: "
            f"the network or a device on {hosts} does not answer"
        )
    rank = f"rank {culprit.rank} of {world_size} {culprit.who}"
    done = "has finished no step" if not culprit.step else f"last finished step {culprit.step}"
    halted = f", {HALTED_STATES[culprit.state]}" if culprit.state in HALTED_STATES else ""
    at = f" at {culprit.where}" if culprit.where else ""
    # As far behind as the culprit, and not only waiting either.
    also_stalled = [
        status.rank
        for status in statuses
        if status.rank != culprit.rank
        and (status.progress, status.waits) == (culprit.progress, False)
        and (status.state in HALTED_STATES) == (culprit.state in HALTED_STATES)
    ]
    others = sorted(
        {_describe_phase(status) for status in statuses if status.rank not in (culprit.rank, *also_stalled)}
    )
    also_stalled_text = f"; so does rank {', '.join(map(str, also_stalled))}" if also_stalled else ""
    others_text = f"; the others wait in {' or '.join(others)}" if others else ""
    return (
        f"{rank} {done}{halted} and sits in {_describe_phase(culprit, alone=True)}{at}{also_stalled_text}{others_text}"
    )


def _describe_phase(status: RankStatus, *, alone: bool = False) -> str:
    if not alone and status.point in ("backward", "agreement"):
        return "all-reduce"
    return _PHASE_NAMES[status.point or status.phase]


_PHASE_NAMES: Final = {
    "start": "the start",
    "data": "the preparation of the data",
    "step": "the step",
    "evaluation": "the evaluation",
    "save": "the save",
    "end": "its exit",
    "agreement": "the agreement with the other ranks",
    "reads data": "the data loader",
    "forward": "the forward pass",
    "backward": "the backward pass (with the exchange of gradients)",
    "optimizer": "the optimizer",
    "device": "the wait for its GPU",
}


POLL_INTERVAL_S: Final = 0.25
# For the other tasks to write the status of their ranks; a shared file system may show it late.
PEER_ANSWER_TIMEOUT_S: Final = 20.0
ASK_AGAIN_DELAY_S: Final = 30.0  # after the ranks of another task turned out to make progress
PEER_POLL_INTERVAL_S: Final = 2.0
DEFAULT_STOP_MESSAGES: Final = ("the step is finished and saved first", "not saved")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionPolicy:
    """How our own workers are supervised; a foreign command has no heartbeat.

    kept: returns the last good checkpoint. restarts: how often a run that lost a rank or hung is
    restarted in place. failed: called with the exit code of each failed start before a restart.
    promise: two messages, for a request to stop and for ranks that a second request ended at once.
    """

    limits: HangTimeouts
    errors: RunErrors
    kept: Callable[[], str | None] = lambda: None
    restarts: int = 0
    failed: Callable[[int], object] = lambda code: None
    promise: tuple[str, str] = DEFAULT_STOP_MESSAGES


@dataclass(slots=True)
class HangWatch:
    """Watches the heartbeats of this task's ranks.

    launch_id: the Plan's, which only the tasks of this start share.
    """

    policy: SupervisionPolicy
    children: Sequence[Child]
    host: str
    cuda: bool
    launch_id: str = ""
    _silences: dict[int, SilenceTimer] = field(default_factory=dict)
    _next_poll: float = 0.0
    _next_check: float = 0.0
    _next_peer_poll: float = 0.0
    _answer_deadline: float | None = None
    _own_statuses: list[RankStatus] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._silences = {child.world.rank: SilenceTimer(self.policy.limits) for child in self.children}
        self.withdraw()  # the file of an earlier start
        if self.children[0].world.rank == 0:
            self.policy.errors.clear_status(self.launch_id)

    @property
    def alone(self) -> bool:
        """Whether this task starts all ranks."""
        return len(self.children) == self.children[0].world.world_size

    @property
    def status_path(self) -> Path:
        """The file with the status of this task's ranks."""
        return self.policy.errors.status_path(self.launch_id, self.host, self.children[0].world.rank)

    def poll(self, alive: Iterable[Child], time_s: float) -> RunError | None:
        """Check the heartbeats once per POLL_INTERVAL_S.

        Return a failure if the run hangs and has to be ended.
        """
        if time_s < self._next_poll:
            return None
        self._next_poll = time_s + POLL_INTERVAL_S
        living = list(alive)
        for child in living:
            self._silences[child.world.rank].update(child.heartbeat.read() if child.heartbeat else None, time_s)
        if (
            self._answer_deadline is None
            and time_s >= self._next_check
            and (find_blocking_rank([*map(self._status_of, living)]) is not None or self._is_asked_by_peer(time_s))
        ):
            self._own_statuses = [self._examine(child) for child in living]
            self._publish()
            self._answer_deadline = time_s + PEER_ANSWER_TIMEOUT_S
        return None if self._answer_deadline is None else self._decide(time_s)

    def withdraw(self) -> None:
        """Remove the status file that the other tasks read."""
        with suppress(OSError):
            self.status_path.unlink()

    def _is_asked_by_peer(self, time_s: float) -> bool:
        """Whether another task has reported silent ranks."""
        if self.alone or time_s < self._next_peer_poll:
            return False
        self._next_peer_poll = time_s + PEER_POLL_INTERVAL_S
        return any(status.silent_s >= status.limit_s for status in self._read_peer_statuses())

    def _publish(self) -> None:
        """Write the status of this task's ranks for the other tasks."""
        if not self.alone:
            self._write(self.status_path, json.dumps([asdict(status) for status in self._own_statuses]))

    def _write(self, path: Path, text: str) -> None:
        """Write a file of errors/; never block: the disk may hang."""
        call_with_timeout(partial(self.policy.errors.write_file, path, text, durable=False))

    def _examine(self, child: Child) -> RankStatus:
        assert child.heartbeat is not None  # our own workers have one
        status, collected = self._status_of(child), stacks.collect_stacks(child.process.pid, child.heartbeat.stacks)
        self._write(self.policy.errors.stacks_path(child.world.rank), collected.text)
        return replace(
            status,
            state=collected.state,
            where=collected.where,
            # Where a GPU hangs, every rank waits for its own, in whatever line asks for a result first.
            waits=collected.waits or (self.cuda and status.point == "device"),
            unfinished=collected.unfinished,
        )

    def _decide(self, time_s: float) -> RunError | None:
        statuses = [*self._own_statuses, *([] if self.alone else self._read_peer_statuses())]
        size = self.children[0].world.world_size
        if len(statuses) < size and time_s < (self._answer_deadline or 0):
            if time_s >= self._next_peer_poll:
                self._next_peer_poll = time_s + PEER_POLL_INTERVAL_S
                self._publish()  # again: NFS shows an old state of the folder until this client changes it
            return None
        culprit = find_blocking_rank(statuses)
        if culprit is None:
            self._answer_deadline, self._next_check = None, time_s + ASK_AGAIN_DELAY_S
            self.withdraw()
            return None
        missing = sorted(set(range(size)) - {status.rank for status in statuses})
        kept = call_with_timeout(self.policy.kept)
        if missing and not self.alone:
            ranks = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} of {size}"
            failure = Failure(
                f"no word from {ranks}: its node is lost or cannot be reached",
                found=f"the ranks on {self.host} wait for it, and its parent process has not answered for "
                f"{PEER_ANSWER_TIMEOUT_S:.0f} s",
                fix="look at that node; start the same command again to resume",
                kept=kept,
                code=ExitCode.PEER,
            )
        else:
            in_first_step = culprit.phase == "step" and not culprit.warm
            key = "start" if in_first_step else "save" if culprit.phase == "end" else culprit.phase
            failure = Failure(
                describe_hang(culprit, statuses, size),
                found=f"silent for {culprit.silent_s:.0f} s; "
                f"stacks: {self.policy.errors.stacks_path(culprit.rank)}"
                + (f"; not ended in NCCL: {culprit.unfinished}" if culprit.unfinished else ""),
                expected=f"a heartbeat within {culprit.limit_s:.0f} s",
                fix=f"start the same command again; if it is only slow: launch.timeouts.{key}="
                f"{max(60, 4 * culprit.limit_s):.0f}",
                kept=kept,
                code=ExitCode.HANG,
            )
        return RunError(failure=failure, rank=culprit.rank, host=culprit.host, step=culprit.step)

    def _status_of(self, child: Child) -> RankStatus:
        silence, world = self._silences[child.world.rank], child.world
        beat = silence.beat
        return RankStatus(
            rank=world.rank,
            host=self.host,
            gpu=world.local_rank if self.cuda else None,
            phase=beat.phase if beat else "start",
            point=beat.point if beat else "",
            step=beat.step if beat else None,
            micro=beat.micro if beat else 0,
            warm=beat.warm if beat else False,
            silent_s=round(silence.seconds, 1),
            limit_s=round(silence.limit, 1),
        )

    def _read_peer_statuses(self) -> list[RankStatus]:
        statuses: list[RankStatus] = []
        for path in call_with_timeout(partial(self.policy.errors.status_paths, self.launch_id)) or ():
            if path != self.status_path:
                statuses += call_with_timeout(partial(_read_statuses, path)) or ()
        return statuses


def _read_statuses(path: Path) -> list[RankStatus]:
    try:
        statuses = [RankStatus(**facts) for facts in read_json(path)]
        # What is no number cannot be added: it is refused here.
        sums = [sum(each.progress, each.rank + each.silent_s + each.limit_s) for each in statuses]
        return statuses if all(map(math.isfinite, sums)) and all(type(each.host) is str for each in statuses) else []
    except (OSError, ValueError, TypeError):
        return []
