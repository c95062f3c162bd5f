"""How long things took becomes the last moment at which a run can still be saved before the time is up."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from entrypoint import ExitCode, Failure

VARIABLE: Final = "ENTRYPOINT_DEADLINE"  # UNIX seconds; the front door sets it
SAVES: Final = 3  # so many times the longest save must fit in
LEAVING_S: Final = 10.0  # for the ranks to leave, and the job script to put itself back into the queue
RECENT: Final = 20  # durations that are remembered: steps get slower and faster
# A save before any was measured: what a busy file server takes to begin, and bytes per second.
FIRST_S, FIRST_RATE = 5.0, 100e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """at: by the clock that the loop uses; wall: seconds since 1970."""

    at: float
    wall: float

    def __str__(self) -> str:
        return datetime.fromtimestamp(self.wall).astimezone().isoformat(sep=" ", timespec="seconds")


class Times:
    """The longest of the last few durations, by what took them: "step", "save", "evaluation"."""

    def __init__(self, guessed: Mapping[str, float]) -> None:
        """guessed: before anything was measured."""
        self._guessed = dict(guessed)
        self._seen: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))

    def add(self, what: str, seconds: float) -> None:
        """It took so long."""
        self._seen[what].append(seconds)

    def longest(self, what: str) -> float:
        """In seconds; what was guessed where nothing was measured."""
        return max(self._seen.get(what, ()), default=self._guessed.get(what, 0.0))


def needed(times: Times, *, evaluation: bool) -> float:
    """Seconds from a decision to stop to the end of the process: two steps until all ranks have decided, and the save.

    evaluation: whether one comes before.
    """
    measuring = times.longest("evaluation") if evaluation else 0.0
    return SAVES * times.longest("save") + 2 * times.longest("step") + measuring + LEAVING_S


def first_save(size: int) -> float:
    """A careful guess, in seconds, at what the first save of so many bytes takes."""
    return FIRST_S + size / FIRST_RATE


def row(until: Deadline | None) -> dict[str, str]:
    """For the plan: nothing where no end is known."""
    return {"time limit": f"{until}: the run is saved and stops in time before it"} if until else {}


def read(environ: Mapping[str, str], *, now: float, clock: float) -> Deadline | None:
    """What the front door has found out. now: seconds since 1970, at the moment at which the clock says `clock`.

    Raises:
        Failure: USAGE.
    """
    text = environ.get(VARIABLE)
    if not text:
        return None
    try:
        wall = float(text)
        found = Deadline(at=clock + wall - now, wall=wall)
        str(found)  # no year has so many seconds, or it is not a number
        return found
    except (ValueError, OverflowError, OSError) as error:
        raise Failure(
            f"{VARIABLE} is not a time",
            found=f"{VARIABLE}={text}",
            expected="seconds since 1970, as `date +%s` prints them",
            fix=f"unset {VARIABLE}, or give train --time-limit",
            code=ExitCode.USAGE,
        ) from error
