"""--time-limit, ENTRYPOINT_DEADLINE and the end of the scheduler's job determine one deadline for all ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from entrypoint import ExitCode, Failure, job_info_from_environ
from train.run import deadline

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
        return {deadline.VARIABLE: f"{now + parse_time_limit(limit):.0f}"}
    job = job_info_from_environ(environ)
    if environ.get(deadline.VARIABLE) or job is None or job.ends_at is None:
        return {}
    return {deadline.VARIABLE: str(job.ends_at)} if job.ends_at - now <= MAX_TIME_LIMIT_S else {}


def deadline_row(limit: str | None, environ: Mapping[str, str], *, now: float) -> dict[str, str]:
    """Return the deadline as a row of the plan, in the words that a start uses.

    Raises:
        Failure: USAGE, as a start does.
    """
    variables = {**environ, **deadline_variables(limit, environ, now=now)}
    return deadline.banner_row(deadline.read_deadline(variables, now=now, clock=0.0))


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
