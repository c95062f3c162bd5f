"""This module decides the deadline, and estimates how long a run needs to save and exit before it.

--time-limit, ENTRYPOINT_DEADLINE and the end of the scheduler's job determine one deadline for all ranks.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from entrypoint import ExitCode, Failure, job_info_from_environ

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


MAX_TIME_LIMIT_S: Final = 360 * 86_400.0  # a job without a limit ends in a year, says Slurm
# sbatch --time's own forms.
TIME_LIMIT_PATTERNS: Final = (
    r"(?P<minutes>\d+)",
    r"(?P<minutes>\d+):(?P<seconds>\d+)",
    r"(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)",
    r"(?P<days>\d+)-(?P<hours>\d+)",
    r"(?P<days>\d+)-(?P<hours>\d+):(?P<minutes>\d+)",
    r"(?P<days>\d+)-(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)",
)
SECONDS_PER_UNIT: Final = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}


def deadline_variables(limit: str | None, environ: Mapping[str, str], *, now: float) -> dict[str, str]:
    """Return the variable that tells the ranks the deadline; nothing if there is none.

    Args:
        limit: the command line's, which counts from `now` and wins over the environment.
        now: seconds since 1970.

    Raises:
        Failure: USAGE.
    """
    if limit is not None:
        return {VARIABLE: f"{now + parse_time_limit(limit):.0f}"}
    job = job_info_from_environ(environ)
    if environ.get(VARIABLE) or job is None or job.ends_at is None:
        return {}
    return {VARIABLE: str(job.ends_at)} if job.ends_at - now <= MAX_TIME_LIMIT_S else {}


def deadline_row(limit: str | None, environ: Mapping[str, str], *, now: float) -> dict[str, str]:
    """Return the deadline as a row of the plan, in the words that a start uses.

    Raises:
        Failure: USAGE, as a start does.
    """
    variables = {**environ, **deadline_variables(limit, environ, now=now)}
    return banner_row(read_deadline(variables, now=now, clock=0.0))


def parse_time_limit(text: str) -> int:
    """Return the seconds of a time limit that is written in one of sbatch's forms.

    Raises:
        Failure: USAGE.
    """
    matches = (re.fullmatch(pattern, text[:21], re.ASCII) for pattern in TIME_LIMIT_PATTERNS)
    parts = next((match.groupdict() for match in matches if match), {})
    total = sum(int(number) * SECONDS_PER_UNIT[unit] for unit, number in parts.items())
    if not 0 < total < MAX_TIME_LIMIT_S:
        raise Failure(
            "--time-limit is no time",
            found=f"--time-limit {text}",
            expected="minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS, as for sbatch --time; less than a year",
            fix="write for example --time-limit 1-12:00:00, or leave it out",
            code=ExitCode.USAGE,
        )
    return total
