"""A time limit is read as Slurm reads it, and what took long before is allowed for."""

from __future__ import annotations

from datetime import datetime

import pytest

from entrypoint import ExitCode, Failure
from train.run import deadline
from train.run.deadline import EXIT_TIME_S, Durations


def times(**measured: float) -> Durations:
    durations = Durations({"save": 100.0})
    for what, seconds in measured.items():
        durations.add(what, seconds)
    return durations


def test_three_of_the_longest_saves_and_two_steps_must_fit_in() -> None:
    durations = times(save=4.0, step=1.0)
    durations.add("save", 2.0)
    assert deadline.seconds_to_exit(durations, evaluation=False) == 3 * 4 + 2 * 1 + EXIT_TIME_S


def test_an_evaluation_that_would_come_before_counts() -> None:
    durations = times(save=4.0, evaluation=30.0)
    assert (
        deadline.seconds_to_exit(durations, evaluation=True) - deadline.seconds_to_exit(durations, evaluation=False)
        == 30
    )


def test_before_anything_was_measured_the_guess_counts() -> None:
    assert deadline.seconds_to_exit(times(), evaluation=True) == 300 + EXIT_TIME_S


def test_the_guess_grows_with_the_checkpoint() -> None:
    assert deadline.estimate_first_save(0) > 1
    assert deadline.estimate_first_save(10**10) - deadline.estimate_first_save(0) == pytest.approx(100)


def test_what_was_slow_long_ago_is_forgotten() -> None:
    durations = times(step=60.0)
    for _ in range(deadline.NUM_RECENT):
        durations.add("step", 1.0)
    assert durations.longest("step") == 1.0


def test_a_deadline_is_kept_by_the_clock_of_the_loop_and_shown_by_that_of_the_wall() -> None:
    limit = deadline.read_deadline({"ENTRYPOINT_DEADLINE": "1700000100"}, now=1_700_000_000.0, clock=7.0)
    assert limit is not None
    assert limit.at == 107.0
    assert "2023-11-1" in str(limit)


def test_without_one_there_is_none() -> None:
    assert deadline.read_deadline({}, now=0.0, clock=0.0) is None


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "1e300"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(Failure, match="ENTRYPOINT_DEADLINE") as caught:
        deadline.read_deadline({"ENTRYPOINT_DEADLINE": text}, now=0.0, clock=0.0)
    assert caught.value.code == ExitCode.USAGE


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
    with pytest.raises(Failure, match="--time-limit is no time") as caught:
        deadline.parse_time_limit(text)
    assert caught.value.code == ExitCode.USAGE
    assert "D-HH:MM" in str(caught.value.expected)


def test_the_command_line_counts_from_now() -> None:
    given = {**job_until(f"{NOW + 60:.0f}"), deadline.VARIABLE: "5"}
    assert deadline.deadline_variables("10", given, now=NOW) == {deadline.VARIABLE: "1700000600"}


def test_slurm_s_end_of_the_job_is_taken_without_it() -> None:
    variables = deadline.deadline_variables(None, job_until("1700003600"), now=NOW)
    assert variables == {deadline.VARIABLE: "1700003600"}


@pytest.mark.parametrize("end_time", [None, "", f"{NOW + 365 * 86_400:.0f}", "Unknown", "-1", "1e9"])
def test_what_is_no_limit_is_none(end_time: str | None) -> None:
    environ = {"SLURM_JOB_ID": "7"} if end_time is None else job_until(end_time)
    assert deadline.deadline_variables(None, environ, now=NOW) == {}


def test_another_scheduler_s_script_may_say_it_itself() -> None:
    given = {**job_until("1700003600"), deadline.VARIABLE: "1700000100"}
    assert deadline.deadline_variables(None, given, now=NOW) == {}


def test_the_ranks_read_what_the_front_door_writes() -> None:
    limit = deadline.read_deadline(deadline.deadline_variables("10", {}, now=NOW), now=NOW, clock=0.0)
    assert limit is not None
    assert limit.at == 600


def test_the_plan_shows_when_the_time_is_up() -> None:
    (shown,) = deadline.deadline_row("1:00:00", {}, now=0.0).values()
    assert shown.startswith(f"{datetime.fromtimestamp(3600).astimezone().isoformat(sep=' ')}: the run is saved")
    assert deadline.deadline_row(None, job_until("3600"), now=0.0) == {"time limit": shown}


def test_the_plan_shows_no_time_where_none_is_known() -> None:
    assert deadline.deadline_row(None, {}, now=0.0) == {}
