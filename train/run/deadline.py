"""This module reads the deadline, and estimates how long a run needs to save and exit before it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from entrypoint import ExitCode, Failure

VARIABLE: Final = "ENTRYPOINT_DEADLINE"  # UNIX seconds; the parent process sets it
SAVES_THAT_MUST_FIT: Final = 3  # so many times the longest save
EXIT_TIME_S: Final = 10.0  # for the ranks to exit, and the job script to requeue the job
NUM_RECENT: Final = 20  # durations that count: steps get slower and faster
# Estimates until the first save was measured: the latency of a busy file server, and bytes per second.
FIRST_SAVE_LATENCY_S, FIRST_SAVE_BYTES_PER_S = 5.0, 100e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """The end of the run's time. at: by the training loop's clock. wall: seconds since 1970."""

    at: float
    wall: float

    def __str__(self) -> str:
        return datetime.fromtimestamp(self.wall).astimezone().isoformat(sep=" ", timespec="seconds")


class Durations:
    """The longest of the last few durations of each activity: "step", "save", "evaluation"."""

    def __init__(self, estimates: Mapping[str, float]) -> None:
        """estimates: seconds, used until the activity was measured."""
        self._estimates = dict(estimates)
        self._measured: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=NUM_RECENT))

    def add(self, activity: str, seconds: float) -> None:
        """Record one duration."""
        self._measured[activity].append(seconds)

    def longest(self, activity: str) -> float:
        """Seconds; 0 if it was neither measured nor estimated."""
        return max(self._measured.get(activity, ()), default=self._estimates.get(activity, 0.0))


def seconds_to_exit(durations: Durations, *, evaluation: bool) -> float:
    """Seconds from a decision to stop to the end of the process: two steps until all ranks have agreed, and the save.

    evaluation: whether one comes first.
    """
    evaluation_s = durations.longest("evaluation") if evaluation else 0.0
    steps_s = 2 * durations.longest("step")
    return SAVES_THAT_MUST_FIT * durations.longest("save") + steps_s + evaluation_s + EXIT_TIME_S


def estimate_first_save(num_bytes: int) -> float:
    """A careful estimate, in seconds, of the first save."""
    return FIRST_SAVE_LATENCY_S + num_bytes / FIRST_SAVE_BYTES_PER_S


def banner_row(deadline: Deadline | None) -> dict[str, str]:
    """The banner's row about the deadline; empty without one."""
    return {"time limit": f"{deadline}: the run is saved and stops in time before it"} if deadline else {}


def read_deadline(environ: Mapping[str, str], *, now: float, clock: float) -> Deadline | None:
    """The deadline that the parent process set. now: seconds since 1970, when the clock says `clock`.

    Raises:
        Failure: USAGE.
    """
    text = environ.get(VARIABLE)
    if not text:
        return None
    try:
        wall = float(text)
        deadline = Deadline(at=clock + wall - now, wall=wall)
        str(deadline)  # raises for a number that is no date
        return deadline
    except (ValueError, OverflowError, OSError) as error:
        raise Failure(
            f"{VARIABLE} is not a time",
            found=f"{VARIABLE}={text}",
            expected="seconds since 1970, as `date +%s` prints them",
            fix=f"unset {VARIABLE}, or give train --time-limit",
            code=ExitCode.USAGE,
        ) from error
