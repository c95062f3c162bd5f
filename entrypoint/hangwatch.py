"""The lines to this task's ranks to one verdict about a hang, with stacks, shared with the tasks of other ranks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from entrypoint import stacks
from entrypoint.children import Child
from entrypoint.errors import ExitCode, Failure
from entrypoint.hang import Limits, Sign, Silence, culprit, paragraph
from entrypoint.patience import in_time

EVERY_S: Final = 0.25  # between two looks
ANSWER_S: Final = 20.0  # for the other tasks to say what they know: over a file system that may show it late
ASK_AGAIN_S: Final = 30.0  # after the ranks of another task turned out to be at work
LOOK_AROUND_S: Final = 2.0
SAVES: Final = ("the step is finished and saved first", "not saved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """How ranks of our own are looked after; only they have a pulse.

    errors: the run's folder for them. blame: keeps a failure in it, with its rank, host and last finished step.
    kept: the last good checkpoint. restarts: how often a run that lost a rank or hung is started again in place.
    failed: told the exit code of each start after which that happens. gauges_every_s: how often it is measured what
    each rank and its GPUs consume, None: not at all. promise: what a request to stop leads to, and what is said of
    ranks that a second one ended at once.
    """

    limits: Limits
    errors: Path
    blame: Callable[[Failure, int, str, int | None], object]
    kept: Callable[[], str | None] = lambda: None
    restarts: int = 0
    failed: Callable[[int], object] = lambda code: None
    gauges_every_s: float | None = None
    promise: tuple[str, str] = SAVES


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The run hangs: why, and on which rank."""

    failure: Failure
    rank: int
    host: str
    step: int | None


@dataclass(slots=True)
class HangWatch:
    """Listens to the ranks of this task. launch: the same on all tasks of this start, and on no other."""

    care: Care
    children: Sequence[Child]
    host: str
    cuda: bool
    launch: str = ""
    _silences: dict[int, Silence] = field(default_factory=dict)
    _next_look: float = 0.0
    _next_round: float = 0.0
    _next_around: float = 0.0
    _until: float | None = None
    _said: list[Sign] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._silences = {child.world.rank: Silence(self.care.limits) for child in self.children}
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

    def look(self, alive: Iterable[Child], now: float) -> Verdict | None:
        """To be called often; looks each EVERY_S. Verdict: all ranks are to be ended."""
        if now < self._next_look:
            return None
        self._next_look = now + EVERY_S
        living = list(alive)
        for child in living:
            self._silences[child.world.rank].look(child.line.read() if child.line else None, now)
        if self._until is None and now >= self._next_round and (self._suspect(living) or self._asked(now)):
            self._say(living)
            self._until = now + ANSWER_S
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
        return bool(living) and culprit([self._sign(child) for child in living]) is not None

    def _asked(self, now: float) -> bool:
        """Whether another task has said that its ranks are silent."""
        if self.alone or now < self._next_around:
            return False
        self._next_around = now + LOOK_AROUND_S
        return any(sign.silent_s >= sign.limit_s for sign in self._others())

    def _say(self, living: Sequence[Child]) -> None:
        self._said = [self._examine(child) for child in living]
        if not self.alone:
            _write(self.mine, json.dumps([asdict(sign) for sign in self._said]))

    def _examine(self, child: Child) -> Sign:
        assert child.line is not None  # ours have one
        sign, found = self._sign(child), stacks.take(child.process.pid, child.line.stacks)
        _write(self.care.errors / f"stacks-rank-{child.world.rank:04d}.txt", found.text)
        return replace(sign, state=found.state, where=found.where, waits=found.waits)

    def _judge(self, now: float) -> Verdict | None:
        known = [*self._said, *([] if self.alone else self._others())]
        size = self.children[0].world.world_size
        if len(known) < size and now < (self._until or 0):
            self._repeat(now)
            return None
        guilty = culprit(known)
        if guilty is None:
            self._until, self._next_round = None, now + ASK_AGAIN_S
            self.withdraw()
            return None
        missing = sorted(set(range(size)) - {sign.rank for sign in known})
        failure = self._hang(guilty, known, size) if self.alone or not missing else self._no_word(missing, size)
        return Verdict(failure=failure, rank=guilty.rank, host=guilty.host, step=guilty.step)

    def _repeat(self, now: float) -> None:
        """NFS shows a folder as it was half a minute ago, unless one changes it oneself."""
        if now >= self._next_around:
            self._next_around = now + LOOK_AROUND_S
            _write(self.mine, json.dumps([asdict(sign) for sign in self._said]))

    def _sign(self, child: Child) -> Sign:
        silence, world = self._silences[child.world.rank], child.world
        beat = silence.beat
        return Sign(
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

    def _others(self) -> list[Sign]:
        found: list[Sign] = []
        for path in in_time(lambda: sorted(self.care.errors.glob(f"{self._begin}*.json"))) or ():
            if path != self.mine:
                found += in_time(partial(_read, path)) or ()
        return found

    def _hang(self, guilty: Sign, known: Sequence[Sign], size: int) -> Failure:
        return Failure(
            paragraph(guilty, known, size),
            found=f"silent for {guilty.silent_s:.0f} s; stacks: {self.care.errors}/stacks-rank-{guilty.rank:04d}.txt",
            expected=f"a sign of life within {guilty.limit_s:.0f} s",
            fix=f"start the same command again; if it is only slow: {_wait_longer(guilty)}",
            kept=in_time(self.care.kept),
            code=ExitCode.HANG,
        )

    def _no_word(self, missing: Sequence[int], size: int) -> Failure:
        ranks = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} of {size}"
        return Failure(
            f"no word from {ranks}: its node is lost or cannot be reached",
            found=f"the ranks on {self.host} wait for it, and its parent process has said nothing for {ANSWER_S:.0f} s",
            fix="look at that node; start the same command again to resume",
            kept=in_time(self.care.kept),
            code=ExitCode.PEER,
        )


def _wait_longer(guilty: Sign) -> str:
    cold = guilty.phase == "step" and not guilty.warm
    key = "start" if cold else "save" if guilty.phase == "end" else guilty.phase
    return f"launch.timeouts.{key}={max(60, 4 * guilty.limit_s):.0f}"


def _read(path: Path) -> list[Sign]:
    try:
        found: list[Mapping[str, object]] = json.loads(path.read_bytes())
        return [Sign(**facts) for facts in found]  # type: ignore[arg-type]
    except (OSError, ValueError, TypeError):
        return []


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and never a reason to fail: the disk may be what hangs or is full."""

    def write() -> None:
        if path.parent.is_symlink():  # it leads out of the run's folder
            return
        new = path.with_name(f".{path.name}.{os.getpid()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, errors="replace")
        new.rename(path)

    in_time(write)
