"""--time-limit, ENTRYPOINT_DEADLINE and SLURM_JOB_END_TIME determine one deadline for all ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from entrypoint import ExitCode, Failure
from train.run import deadline

SLURM_END_TIME_VARIABLE: Final = "SLURM_JOB_END_TIME"  # UNIX seconds; not set by Slurm 22.05
MAX_TIME_LIMIT_S: Final = 360 * 86_400.0  # without a limit Slurm says a year ahead
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
    """What to give to the ranks; nothing where no end is known.

    limit: the command line's, which counts from `now` (seconds since 1970) and comes before what the environment says.

    Raises:
        Failure: USAGE.
    """
    if limit is not None:
        return {deadline.VARIABLE: f"{now + parse_time_limit(limit):.0f}"}
    said = environ.get(SLURM_END_TIME_VARIABLE, "")
    if (
        environ.get(deadline.VARIABLE)
        or not re.fullmatch(r"\d{1,12}", said, re.ASCII)
        or float(said) - now > MAX_TIME_LIMIT_S
    ):
        return {}
    return {deadline.VARIABLE: said}


def deadline_row(limit: str | None, environ: Mapping[str, str], *, now: float) -> dict[str, str]:
    """For the plan, in the words of a start. Raises Failure (USAGE) as that does."""
    until = deadline.read_deadline({**environ, **deadline_variables(limit, environ, now=now)}, now=now, clock=0.0)
    return deadline.banner_row(until)


def parse_time_limit(text: str) -> int:
    """Of a time limit in one of sbatch's forms.

    Raises:
        Failure: USAGE.
    """
    found = next((match for form in TIME_LIMIT_PATTERNS if (match := re.fullmatch(form, text[:21], re.ASCII))), None)
    total = sum(int(n) * SECONDS_PER_UNIT[unit] for unit, n in found.groupdict().items()) if found else 0
    if not 0 < total < MAX_TIME_LIMIT_S:
        raise Failure(
            "--time-limit is no time",
            found=f"--time-limit {text}",
            expected="minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS, as for sbatch --time; less than a year",
            fix="write for example --time-limit 1-12:00:00, or leave it out",
            code=ExitCode.USAGE,
        )
    return total
