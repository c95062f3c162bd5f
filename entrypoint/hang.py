"""HangWatch reads the ranks' heartbeats, and names the rank that blocks a run that hangs.

The decision is a pure function of heartbeats and a clock. The tasks of one run share what they
know, with the stacks of silent ranks, by files in errors/.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from entrypoint import stacks
from entrypoint.children import Child
from entrypoint.errors import ExitCode, Failure
from entrypoint.heartbeat import POINTS, HeartbeatRecord, Phase, Point
from entrypoint.threads import call_with_timeout

# launch.timeouts.step auto: so many times the slowest of the usual steps, within these bounds.
AUTO_TIMEOUT_FACTOR: Final = 10.0
MIN_STEP_TIMEOUT_S: Final = 30.0
MAX_STEP_TIMEOUT_S: Final = 1800.0
# A rank that misses one of another host at the start names it itself when launch.timeouts.start is over: it has the
# first word. For one of its own host it waits longer (train.distributed.rendezvous): then the parents have it.
START_SLACK_S: Final = 15.0
# Of one look to the next. More was not lived through by the ranks either: a suspended job, a closed laptop.
MAX_COUNTED_INTERVAL_S: Final = 2.0
NUM_TIMED_STEPS: Final = 1000  # so many last steps say what is usual
HALTED_STATES: Final = {"T": "is stopped", "t": "is held by a debugger", "D": "waits for the kernel (a disk, a GPU)"}
_STAGE_ORDER: Final = ("start", "data", "agreement", "evaluation", "save", "step", "end")


@dataclass(frozen=True, slots=True, kw_only=True)
class HangTimeouts:
    """Longest silences in seconds, by phase. start: up to the end of the first step. step: None is found out."""

    start: float
    step: float | None
    evaluation: float
    save: float
    data: float

    def of(self, beat: HeartbeatRecord | None, usual_s: float) -> float:
        """How long the rank may be silent after this beat; usual_s: the 99th percentile of its steps."""
        phase: Phase = beat.phase if beat else "start"
        if beat and phase == "step" and beat.warm:
            return (
                self.step
                if self.step is not None
                else min(max(MIN_STEP_TIMEOUT_S, AUTO_TIMEOUT_FACTOR * usual_s), MAX_STEP_TIMEOUT_S)
            )
        longest = {"evaluation": self.evaluation, "save": self.save, "data": self.data, "end": self.save}
        return longest.get(phase, self.start + START_SLACK_S)


@dataclass(slots=True)
class SilenceTimer:
    """How long one rank has been silent, by a clock that stands still when nobody looks."""

    limits: HangTimeouts
    beat: HeartbeatRecord | None = None
    seconds: float = 0.0
    _looked: float | None = None
    _steps: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_TIMED_STEPS))
    _since: HeartbeatRecord | None = None

    def look(self, beat: HeartbeatRecord | None, now: float) -> None:
        """Take in what the page says now."""
        passed = 0.0 if self._looked is None else min(now - self._looked, MAX_COUNTED_INTERVAL_S)
        self._looked = now
        moved = beat is not None and beat != self.beat  # a place in the step may be told without a number of its own
        self.seconds = 0.0 if moved else self.seconds + passed
        if moved:
            self._measure(beat)
        self.beat = beat

    def _measure(self, beat: HeartbeatRecord | None) -> None:
        if beat is None or beat.phase != "step" or beat.step is None or not beat.warm:
            self._since = None
        elif self._since is None or self._since.step is None or beat.step < self._since.step:
            self._since = beat
        elif beat.step > self._since.step:
            self._steps.append((beat.at - self._since.at) / (beat.step - self._since.step))
            self._since = beat

    @property
    def limit(self) -> float:
        """The longest silence that this rank may keep where it is."""
        ranked = sorted(self._steps)
        return self.limits.of(self.beat, ranked[int(0.99 * (len(ranked) - 1))] if ranked else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """What is known of one rank.

    warm: a step was finished in this start. state: its letter in /proc. where: the file and line that it stands at.
    waits: it stands in an exchange with others.
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

    @property
    def progress(self) -> tuple[int, int, int, int]:
        """How far it came: of ranks that need each other, the last one holds up the others."""
        stage = "agreement" if self.point == "agreement" else self.phase
        step = -1 if self.step is None else self.step
        return step, _STAGE_ORDER.index(stage), self.micro if stage == "step" else 0, POINTS.index(self.point)

    @property
    def who(self) -> str:
        """(node02, GPU 1)"""
        return f"({self.host})" if self.gpu is None else f"({self.host}, GPU {self.gpu})"


def find_blocking_rank(signs: Sequence[RankStatus]) -> RankStatus | None:
    """The rank that holds up all others; None while a rank that came no further than any other still moves.

    What is stopped, or stands anywhere but in an exchange, is held responsible before what only waits.
    """
    least = min((sign.progress for sign in signs), default=None)
    last = [sign for sign in signs if sign.progress == least]
    if not last or any(sign.silent_s < sign.limit_s for sign in last):
        return None
    return min(last, key=lambda sign: (sign.state not in HALTED_STATES, sign.waits, -sign.silent_s))


def describe_hang(guilty: RankStatus, signs: Sequence[RankStatus], world_size: int) -> str:
    """What the user reads of it."""
    if guilty.waits and len(signs) > 1:
        hosts = ", ".join(sorted({sign.host for sign in signs}))
        return (
            f"all {world_size} ranks wait for each other in {_describe_place(guilty)} after step {guilty.step}: "
            f"the network or a device on {hosts} does not answer"
        )
    rank = f"rank {guilty.rank} of {world_size} {guilty.who}"
    done = "has finished no step" if not guilty.step else f"last finished step {guilty.step}"
    halted = f", {HALTED_STATES[guilty.state]}" if guilty.state in HALTED_STATES else ""
    at = f" at {guilty.where}" if guilty.where else ""
    too = [sign.rank for sign in signs if _is_equally_stalled(sign, guilty)]
    others = sorted({_describe_place(sign) for sign in signs if sign.rank not in (guilty.rank, *too)})
    same = f"; so does rank {', '.join(map(str, too))}" if too else ""
    rest = f"; the others wait in {' or '.join(others)}" if others else ""
    return f"{rank} {done}{halted} and sits in {_describe_place(guilty, alone=True)}{at}{same}{rest}"


def _is_equally_stalled(sign: RankStatus, guilty: RankStatus) -> bool:
    """Whether this rank is no better: it came no further, waits for nobody, and is halted if the guilty one is."""
    alike = (sign.state in HALTED_STATES) == (guilty.state in HALTED_STATES)
    return sign.rank != guilty.rank and sign.progress == guilty.progress and not sign.waits and alike


def _describe_place(sign: RankStatus, *, alone: bool = False) -> str:
    if not alone and sign.point in ("backward", "agreement"):
        return "all-reduce"
    return _PLACE_NAMES[sign.point or sign.phase]


_PLACE_NAMES: Final = {
    "start": "the start",
    "data": "the preparation of the data",
    "step": "the step",
    "evaluation": "the evaluation",
    "save": "the save",
    "end": "its last words",
    "agreement": "the agreement with the other ranks",
    "reads data": "the data loader",
    "forward": "the forward pass",
    "backward": "the backward pass (with the exchange of gradients)",
    "optimizer": "the optimizer",
}


POLL_INTERVAL_S: Final = 0.25  # between two looks
PEER_ANSWER_TIMEOUT_S: Final = (
    20.0  # for the other tasks to say what they know: over a file system that may show it late
)
ASK_AGAIN_DELAY_S: Final = 30.0  # after the ranks of another task turned out to be at work
PEER_POLL_INTERVAL_S: Final = 2.0
DEFAULT_STOP_MESSAGES: Final = ("the step is finished and saved first", "not saved")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionPolicy:
    """How ranks of our own are looked after; only they have a pulse.

    errors: the run's folder for them. blame: keeps a failure in it, with its rank, host and last finished step.
    kept: the last good checkpoint. restarts: how often a run that lost a rank or hung is started again in place.
    failed: told the exit code of each start after which that happens. gauges_every_s: how often it is measured what
    each rank and its GPUs consume, None: not at all. promise: what a request to stop leads to, and what is said of
    ranks that a second one ended at once.
    """

    limits: HangTimeouts
    errors: Path
    blame: Callable[[Failure, int, str, int | None], object]
    kept: Callable[[], str | None] = lambda: None
    restarts: int = 0
    failed: Callable[[int], object] = lambda code: None
    gauges_every_s: float | None = None
    promise: tuple[str, str] = DEFAULT_STOP_MESSAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """The run hangs: why, and on which rank."""

    failure: Failure
    rank: int
    host: str
    step: int | None


@dataclass(slots=True)
class HangWatch:
    """Listens to the ranks of this task. launch: the same on all tasks of this start, and on no other."""

    care: SupervisionPolicy
    children: Sequence[Child]
    host: str
    cuda: bool
    launch: str = ""
    _silences: dict[int, SilenceTimer] = field(default_factory=dict)
    _next_look: float = 0.0
    _next_round: float = 0.0
    _next_around: float = 0.0
    _until: float | None = None
    _said: list[RankStatus] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._silences = {child.world.rank: SilenceTimer(self.care.limits) for child in self.children}
        self.withdraw()  # an earlier start's
        self._sweep()

    @property
    def alone(self) -> bool:
        """Whether this task starts all ranks."""
        return len(self.children) == self.children[0].world.world_size

    @property
    def mine(self) -> Path:
        """Where this task says what it knows."""
        return self.care.errors / f"{self._begin}{self.host}-{self.children[0].world.rank:04d}.json"

    @property
    def _begin(self) -> str:
        """Of this start's names: an earlier start on a node that is lost now could not take its word back."""
        return f"hang-{re.sub(r'[^A-Za-z0-9]', '-', self.launch)}-" if self.launch else "hang-"

    def look(self, alive: Iterable[Child], now: float) -> RankFailure | None:
        """To be called often; looks each POLL_INTERVAL_S. Verdict: all ranks are to be ended."""
        if now < self._next_look:
            return None
        self._next_look = now + POLL_INTERVAL_S
        living = list(alive)
        for child in living:
            self._silences[child.world.rank].look(child.line.read() if child.line else None, now)
        if self._until is None and now >= self._next_round and (self._suspect(living) or self._asked(now)):
            self._say(living)
            self._until = now + PEER_ANSWER_TIMEOUT_S
        return None if self._until is None else self._judge(now)

    def withdraw(self) -> None:
        """Take back what was said to the other tasks."""
        with suppress(OSError):
            self.mine.unlink()

    def _sweep(self) -> None:
        """Beside rank 0, take back what earlier starts said anywhere: a node that is lost now cannot."""
        for path in self.care.errors.glob("hang-*.json") if self.children[0].world.rank == 0 else ():
            if not path.name.startswith(self._begin):
                with suppress(OSError):
                    path.unlink()

    def _suspect(self, living: Sequence[Child]) -> bool:
        return bool(living) and find_blocking_rank([self._sign(child) for child in living]) is not None

    def _asked(self, now: float) -> bool:
        """Whether another task has said that its ranks are silent."""
        if self.alone or now < self._next_around:
            return False
        self._next_around = now + PEER_POLL_INTERVAL_S
        return any(sign.silent_s >= sign.limit_s for sign in self._others())

    def _say(self, living: Sequence[Child]) -> None:
        self._said = [self._examine(child) for child in living]
        if not self.alone:
            _write_atomically(self.mine, json.dumps([asdict(sign) for sign in self._said]))

    def _examine(self, child: Child) -> RankStatus:
        assert child.line is not None  # ours have one
        sign, found = self._sign(child), stacks.collect_stacks(child.process.pid, child.line.stacks)
        _write_atomically(self.care.errors / f"stacks-rank-{child.world.rank:04d}.txt", found.text)
        return replace(sign, state=found.state, where=found.where, waits=found.waits)

    def _judge(self, now: float) -> RankFailure | None:
        known = [*self._said, *([] if self.alone else self._others())]
        size = self.children[0].world.world_size
        if len(known) < size and now < (self._until or 0):
            self._repeat(now)
            return None
        guilty = find_blocking_rank(known)
        if guilty is None:
            self._until, self._next_round = None, now + ASK_AGAIN_DELAY_S
            self.withdraw()
            return None
        missing = sorted(set(range(size)) - {sign.rank for sign in known})
        failure = self._hang(guilty, known, size) if self.alone or not missing else self._no_word(missing, size)
        return RankFailure(failure=failure, rank=guilty.rank, host=guilty.host, step=guilty.step)

    def _repeat(self, now: float) -> None:
        """NFS shows a folder as it was half a minute ago, unless one changes it oneself."""
        if now >= self._next_around:
            self._next_around = now + PEER_POLL_INTERVAL_S
            _write_atomically(self.mine, json.dumps([asdict(sign) for sign in self._said]))

    def _sign(self, child: Child) -> RankStatus:
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

    def _others(self) -> list[RankStatus]:
        found: list[RankStatus] = []
        for path in call_with_timeout(lambda: sorted(self.care.errors.glob(f"{self._begin}*.json"))) or ():
            if path != self.mine:
                found += call_with_timeout(partial(_read_statuses, path)) or ()
        return found

    def _hang(self, guilty: RankStatus, known: Sequence[RankStatus], size: int) -> Failure:
        return Failure(
            describe_hang(guilty, known, size),
            found=f"silent for {guilty.silent_s:.0f} s; stacks: {self.care.errors}/stacks-rank-{guilty.rank:04d}.txt",
            expected=f"a sign of life within {guilty.limit_s:.0f} s",
            fix=f"start the same command again; if it is only slow: {_longer_timeout_setting(guilty)}",
            kept=call_with_timeout(self.care.kept),
            code=ExitCode.HANG,
        )

    def _no_word(self, missing: Sequence[int], size: int) -> Failure:
        ranks = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} of {size}"
        return Failure(
            f"no word from {ranks}: its node is lost or cannot be reached",
            found=f"the ranks on {self.host} wait for it, and its parent process has said nothing for "
            f"{PEER_ANSWER_TIMEOUT_S:.0f} s",
            fix="look at that node; start the same command again to resume",
            kept=call_with_timeout(self.care.kept),
            code=ExitCode.PEER,
        )


def _longer_timeout_setting(guilty: RankStatus) -> str:
    cold = guilty.phase == "step" and not guilty.warm
    key = "start" if cold else "save" if guilty.phase == "end" else guilty.phase
    return f"launch.timeouts.{key}={max(60, 4 * guilty.limit_s):.0f}"


def _read_statuses(path: Path) -> list[RankStatus]:
    try:
        found: list[Mapping[str, object]] = json.loads(path.read_bytes())
        return [RankStatus(**facts) for facts in found]  # type: ignore[arg-type]
    except (OSError, ValueError, TypeError):
        return []


def _write_atomically(path: Path, text: str) -> None:
    """Whole or not at all, and never a reason to fail: the disk may be what hangs or is full."""

    def write() -> None:
        if path.parent.is_symlink():  # it leads out of the run's folder
            return
        new = path.with_name(f".{path.name}.{os.getpid()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, errors="replace")
        new.rename(path)

    call_with_timeout(write)
