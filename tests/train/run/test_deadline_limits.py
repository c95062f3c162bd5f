"""A time limit is read as Slurm reads it, and nonsense is refused."""

from __future__ import annotations

from datetime import datetime

import pytest

from entrypoint import ExitCode, Failure
from train.run import deadline

NOW = 1_700_000_000.0


def job_until(text: str) -> dict[str, str]:
    """A job of Slurm's that ends then."""
    return {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": text}


FORMS = {
    "90": 5400,
    "01:30": 90,
    "02:00:00": 7200,
    "1-12": 129_600,
    "1-12:30": 131_400,
    "2-03:04:05": 183_845,
    "0:90": 90,
}


@pytest.mark.parametrize(("text", "seconds"), FORMS.items(), ids=FORMS)
def test_every_form_of_sbatch_is_understood(text: str, seconds: int) -> None:
    assert deadline.parse_time_limit(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "00:00:00", "-5", "1.5", "1h", "soon", "1:2:3:4", "1-", "-1-2", "٣", "9" * 21, "UNLIMITED", " 5"]
)
def test_nonsense_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(Failure, match="--time-limit is no time") as told:
        deadline.parse_time_limit(text)
    assert told.value.code == ExitCode.USAGE
    assert "D-HH:MM" in str(told.value.expected)


def test_the_command_line_counts_from_now() -> None:
    given = {**job_until(f"{NOW + 60:.0f}"), deadline.VARIABLE: "5"}
    assert deadline.deadline_variables("10", given, now=NOW) == {deadline.VARIABLE: "1700000600"}


def test_slurm_s_end_of_the_job_is_taken_without_it() -> None:
    found = deadline.deadline_variables(None, job_until("1700003600"), now=NOW)
    assert found == {deadline.VARIABLE: "1700003600"}


@pytest.mark.parametrize("said", [None, "", f"{NOW + 365 * 86_400:.0f}", "Unknown", "-1", "1e9"])
def test_what_is_no_limit_is_none(said: str | None) -> None:
    environ = {"SLURM_JOB_ID": "7"} if said is None else job_until(said)
    assert deadline.deadline_variables(None, environ, now=NOW) == {}


def test_another_scheduler_s_script_may_say_it_itself() -> None:
    given = {**job_until("1700003600"), deadline.VARIABLE: "1700000100"}
    assert deadline.deadline_variables(None, given, now=NOW) == {}


def test_the_ranks_read_what_the_front_door_writes() -> None:
    found = deadline.read_deadline(deadline.deadline_variables("10", {}, now=NOW), now=NOW, clock=0.0)
    assert found is not None
    assert found.at == 600


def test_the_plan_shows_when_the_time_is_up() -> None:
    (shown,) = deadline.deadline_row("1:00:00", {}, now=0.0).values()
    assert shown.startswith(f"{datetime.fromtimestamp(3600).astimezone().isoformat(sep=' ')}: the run is saved")
    assert deadline.deadline_row(None, job_until("3600"), now=0.0) == {"time limit": shown}


def test_the_plan_shows_no_time_where_none_is_known() -> None:
    assert deadline.deadline_row(None, {}, now=0.0) == {}
