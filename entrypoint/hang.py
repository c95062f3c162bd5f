"""The beats of all ranks and a clock to a verdict: does the run hang, and on which rank. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from entrypoint.pulse import POINTS, Beat, Phase, Point

# launch.timeouts.step auto: so many times the slowest of the usual steps, within these bounds.
TIMES: Final = 10.0
LEAST_S: Final = 30.0
MOST_S: Final = 1800.0
# A rank that misses one of another host at the start names it itself when launch.timeouts.start is over: it has the
# first word. For one of its own host it waits longer (train.ranks.attendance): then the parents have it.
SLACK_S: Final = 15.0
# Of one look to the next. More was not lived through by the ranks either: a suspended job, a closed laptop.
LONGEST_LOOK_S: Final = 2.0
STEPS: Final = 1000  # so many last steps say what is usual
HALTED: Final = {"T": "is stopped", "t": "is held by a debugger", "D": "waits for the kernel (a disk, a GPU)"}
_ORDER: Final = ("start", "data", "agreement", "evaluation", "save", "step", "end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Longest silences in seconds, by phase. start: up to the end of the first step. step: None is found out."""

    start: float
    step: float | None
    evaluation: float
    save: float
    data: float

    def of(self, beat: Beat | None, usual_s: float) -> float:
        """How long the rank may be silent after this beat; usual_s: the 99th percentile of its steps."""
        phase: Phase = beat.phase if beat else "start"
        if beat and phase == "step" and beat.warm:
            return self.step if self.step is not None else min(max(LEAST_S, TIMES * usual_s), MOST_S)
        longest = {"evaluation": self.evaluation, "save": self.save, "data": self.data, "end": self.save}
        return longest.get(phase, self.start + SLACK_S)


@dataclass(slots=True)
class Silence:
    """How long one rank has been silent, by a clock that stands still when nobody looks."""

    limits: Limits
    beat: Beat | None = None
    seconds: float = 0.0
    _looked: float | None = None
    _steps: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS))
    _since: Beat | None = None

    def look(self, beat: Beat | None, now: float) -> None:
        """Take in what the page says now."""
        passed = 0.0 if self._looked is None else min(now - self._looked, LONGEST_LOOK_S)
        self._looked = now
        moved = beat is not None and beat != self.beat  # a place in the step may be told without a number of its own
        self.seconds = 0.0 if moved else self.seconds + passed
        if moved:
            self._measure(beat)
        self.beat = beat

    def _measure(self, beat: Beat | None) -> None:
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
class Sign:
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
        return step, _ORDER.index(stage), self.micro if stage == "step" else 0, POINTS.index(self.point)

    @property
    def who(self) -> str:
        """(node02, GPU 1)"""
        return f"({self.host})" if self.gpu is None else f"({self.host}, GPU {self.gpu})"


def culprit(signs: Sequence[Sign]) -> Sign | None:
    """The rank that holds up all others; None while a rank that came no further than any other still moves.

    What is stopped, or stands anywhere but in an exchange, is held responsible before what only waits.
    """
    least = min((sign.progress for sign in signs), default=None)
    last = [sign for sign in signs if sign.progress == least]
    if not last or any(sign.silent_s < sign.limit_s for sign in last):
        return None
    return min(last, key=lambda sign: (sign.state not in HALTED, sign.waits, -sign.silent_s))


def paragraph(guilty: Sign, signs: Sequence[Sign], world_size: int) -> str:
    """What the user reads of it."""
    if guilty.waits and len(signs) > 1:
        hosts = ", ".join(sorted({sign.host for sign in signs}))
        return (
            f"all {world_size} ranks wait for each other in {_place(guilty)} after step {guilty.step}: "
            f"the network or a device on {hosts} does not answer"
        )
    rank = f"rank {guilty.rank} of {world_size} {guilty.who}"
    done = "has finished no step" if not guilty.step else f"last finished step {guilty.step}"
    halted = f", {HALTED[guilty.state]}" if guilty.state in HALTED else ""
    at = f" at {guilty.where}" if guilty.where else ""
    too = [sign.rank for sign in signs if _as_silent(sign, guilty)]
    others = sorted({_place(sign) for sign in signs if sign.rank not in (guilty.rank, *too)})
    same = f"; so does rank {', '.join(map(str, too))}" if too else ""
    rest = f"; the others wait in {' or '.join(others)}" if others else ""
    return f"{rank} {done}{halted} and sits in {_place(guilty, alone=True)}{at}{same}{rest}"


def _as_silent(sign: Sign, guilty: Sign) -> bool:
    """Whether this rank is no better: it came no further, waits for nobody, and is halted if the guilty one is."""
    alike = (sign.state in HALTED) == (guilty.state in HALTED)
    return sign.rank != guilty.rank and sign.progress == guilty.progress and not sign.waits and alike


def _place(sign: Sign, *, alone: bool = False) -> str:
    if not alone and sign.point in ("backward", "agreement"):
        return "all-reduce"
    return _WORDS[sign.point or sign.phase]


_WORDS: Final = {
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
