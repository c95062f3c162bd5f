"""Plots of what a bench found."""

from __future__ import annotations

from train.bench import pictures, rows
from train.bench.pairs import Estimate, exactly
from train.bench.rows import Series

PNG = b"\x89PNG"
CURVE = Series(
    name="speed", title="Speed", x="processes", y="images/s", lines={"a": [(1, 10.0), (2, 19.0)], "ideal": [(1, 10.0)]}
)
UNSURE = Estimate(value=2.0, low=1.0, high=4.0, quarter=1.5, three_quarters=3.0, of=5)


def test_a_series_and_the_rows_become_pictures() -> None:
    found = pictures.drawn([CURVE, rows.measured("1", UNSURE)])
    assert set(found) == {"speed.png", "rows.png"}
    assert all(picture.startswith(PNG) for picture in found.values())


def test_without_a_number_to_be_held_against_a_target_there_is_no_picture_of_rows() -> None:
    reported = rows.figure("x", "a figure", exactly(1.0))
    assert pictures.drawn([rows.unmeasured("1", "needs a GPU"), rows.measured("5", exactly(0.0)), reported]) == {}


def test_more_is_better_on_the_picture_whichever_way_a_target_points() -> None:
    assert pictures._share(rows.measured("1", UNSURE)) == (2.0 / 2.5, 1.0 / 2.5, 4.0 / 2.5)
    assert pictures._share(rows.measured("6", UNSURE)) == (1 / 2.0, 1 / 4.0, 1 / 1.0)
