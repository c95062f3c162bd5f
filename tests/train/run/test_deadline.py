"""What took long before is allowed for; what is not known is guessed with care."""

from __future__ import annotations

import pytest

from entrypoint import ExitCode, Failure
from train.run import deadline
from train.run.deadline import EXIT_TIME_S, Durations


def times(**measured: float) -> Durations:
    found = Durations({"save": 100.0})
    for what, seconds in measured.items():
        found.add(what, seconds)
    return found


def test_three_of_the_longest_saves_and_two_steps_must_fit_in() -> None:
    found = times(save=4.0, step=1.0)
    found.add("save", 2.0)
    assert deadline.seconds_to_exit(found, evaluation=False) == 3 * 4 + 2 * 1 + EXIT_TIME_S


def test_an_evaluation_that_would_come_before_counts() -> None:
    found = times(save=4.0, evaluation=30.0)
    assert deadline.seconds_to_exit(found, evaluation=True) - deadline.seconds_to_exit(found, evaluation=False) == 30


def test_before_anything_was_measured_the_guess_counts() -> None:
    assert deadline.seconds_to_exit(times(), evaluation=True) == 300 + EXIT_TIME_S


def test_the_guess_grows_with_the_checkpoint() -> None:
    assert deadline.estimate_first_save(0) > 1
    assert deadline.estimate_first_save(10**10) - deadline.estimate_first_save(0) == pytest.approx(100)


def test_what_was_slow_long_ago_is_forgotten() -> None:
    found = times(step=60.0)
    for _ in range(deadline.NUM_RECENT):
        found.add("step", 1.0)
    assert found.longest("step") == 1.0


def test_a_deadline_is_kept_by_the_clock_of_the_loop_and_shown_by_that_of_the_wall() -> None:
    found = deadline.read_deadline({"ENTRYPOINT_DEADLINE": "1700000100"}, now=1_700_000_000.0, clock=7.0)
    assert found is not None
    assert found.at == 107.0
    assert "2023-11-1" in str(found)


def test_without_one_there_is_none() -> None:
    assert deadline.read_deadline({}, now=0.0, clock=0.0) is None


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "1e300"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(Failure, match="ENTRYPOINT_DEADLINE") as told:
        deadline.read_deadline({"ENTRYPOINT_DEADLINE": text}, now=0.0, clock=0.0)
    assert told.value.code == ExitCode.USAGE
