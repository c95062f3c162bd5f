"""Plots of what a bench found."""

from __future__ import annotations

from train.bench import pictures, rows
from train.bench.pairs import Estimate, exactly
from train.bench.rows import Series

PNG = b"\x89PNG"
CURVE = Series(
    name="speed", title="Speed", x="processes", y="images/s", lines={"a": [(1, 10.0), (2, 19.0)], "ideal": [(1, 10.0)]}
)
UNSURE = Estimate(value=2.0, low=1.0, high=4.0, quarter=1.5, three_quarters=3.0, of=5, sure=False)


def test_a_series_and_the_rows_become_pictures() -> None:
    found = pictures.drawn([CURVE, rows.measured("1", UNSURE)])
    assert set(found) == {"speed.png", "rows.png"}
    assert all(picture.startswith(PNG) for picture in found.values())


def test_without_a_number_to_be_held_against_a_target_there_is_no_picture_of_rows() -> None:
    reported = rows.figure("x", "a figure", exactly(1.0))
    assert pictures.drawn([rows.unmeasured("1", "needs a GPU"), rows.measured("5", exactly(0.0)), reported]) == {}


def test_series_over_processes_are_drawn_as_speed_up_and_efficiency() -> None:
    lines = {"images_per_s": [(1, 10.0), (2, 19.0)], "low": [(1, 9.0), (2, 18.0)], "efficiency": [(1, 1.0), (2, 0.95)]}
    series = Series(name="scaling-strong", title="Strong scaling", x="processes", y="images/s", lines=lines)
    assert [panel.title for panel in pictures._scaled(series)] == ["Speed-up", "Efficiency"]
    assert pictures.drawn([series])["scaling-strong.png"].startswith(PNG)
