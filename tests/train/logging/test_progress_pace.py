"""How long it will still take, by the pace of the last log points."""

from __future__ import annotations

import pytest

from train.logging.progress import TimeLeftEstimator, format_rough_duration


def paced(*points: tuple[int, float], total: int = 100) -> TimeLeftEstimator:
    pace = TimeLeftEstimator(total)
    for step, seconds in points:
        pace.add(step, seconds)
    return pace


@pytest.mark.parametrize("points", [(), ((10, 5.0),), ((10, 5.0), (10, 6.0))])
def test_nothing_is_known_before_two_log_points(points: tuple[tuple[int, float], ...]) -> None:
    assert paced(*points).left is None


def test_the_first_log_point_only_begins_the_measurement() -> None:
    assert paced((10, 300.0), (20, 301.0), (30, 302.0)).left == pytest.approx(7.0)


def test_only_the_last_minute_counts() -> None:
    slow = [(step, 10.0 * step) for step in range(10)]
    fast = [(10 + number, 90.0 + number) for number in range(1, 71)]
    assert paced(*slow, *fast, total=180).left == pytest.approx(100.0)


def test_log_points_far_apart_count_two_at_a_time() -> None:
    assert paced((10, 0.0), (20, 1000.0), (30, 1500.0)).left == pytest.approx(3500.0)


def test_steps_that_are_done_again_say_nothing_of_the_pace() -> None:
    pace = paced((10, 0.0), (20, 10.0))
    pace.clear()
    assert pace.left is None


def test_at_the_end_nothing_is_left() -> None:
    assert paced((90, 0.0), (100, 10.0)).left == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (720, "12 min"),
        (3590, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (176000, "2 d 1 h"),
    ],
)
def test_a_rough_time_reads_naturally(seconds: float, text: str) -> None:
    assert format_rough_duration(seconds) == text
