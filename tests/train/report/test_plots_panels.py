"""Series become panels of one picture: looked at through matplotlib's own objects."""

from __future__ import annotations

import io
import math

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from train.metrics import METRICS
from train.report import page, plots
from train.report.document import DPI
from train.report.plots import Panel, PlotSeries

LINE = PlotSeries(name="a run", x=[1, 2, 4], y=[3.0, math.nan, 1.0])


def filled(panel: Panel) -> Axes:
    """The axes of one panel."""
    with plots.plot_style():
        axes = plots.make_axes(Figure(dpi=DPI, layout="constrained"))
        plots._draw_axes(axes, panel)
    return axes


def test_a_panel_is_a_picture_of_its_own() -> None:
    panel = Panel(title="Loss", x="step", y="nats", series=[LINE])
    with Image.open(io.BytesIO(plots.draw_panel(panel))) as image:
        assert image.size == (round(plots.PANEL_WIDTH * DPI), round(plots.PANEL_HEIGHT * DPI))


def test_labels_titles_and_names_are_there() -> None:
    other = PlotSeries(name="another", x=[1], y=[2.0])
    axes = filled(Panel(title="Loss", x="step", y="nats", series=[LINE, other], marks={2: "start 2"}))
    (legend,) = axes.figure.legends
    assert (axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()) == ("Loss", "step", "nats")
    assert [text.get_text() for text in legend.get_texts()] == ["a run", "another"]
    assert words(axes) == ["start 2"]


def words(axes: Axes) -> list[str]:
    """Of its marks."""
    (above,) = axes.child_axes
    return [label.get_text() for label in above.get_xticklabels()]


@pytest.mark.parametrize("places", [[2.0], [1.0, 1.1, 1.2, 1.3, 1.4, 3.9, 4.0]], ids=["one", "many"])
def test_words_of_marks_stand_above_the_curves_and_do_not_touch(places: list[float]) -> None:
    axes = filled(Panel(title="Loss", x="epoch", y="", series=[LINE], marks=dict.fromkeys(places, "goes on, 16 ranks")))
    axes.figure.draw_without_rendering()
    top, (above,) = axes.get_window_extent().y1, axes.child_axes
    shown = above.get_xticklabels()
    assert all(word.get_window_extent().y0 >= top for word in shown)
    leaning = [word.get_rotation() for word in shown]
    assert set(leaning) == ({0.0} if len(places) == 1 else {30.0})


@pytest.mark.parametrize(("last", "ticks"), [(10, "0 2 4 6 8 10"), (3, "0 1 2 3"), (1, "0 1")])
def test_epochs_are_counted_in_whole_numbers(last: int, ticks: str) -> None:
    line = PlotSeries(name="x", x=[0, last], y=[1, 2])
    axes = filled(Panel(title="", x="epoch", y="", series=[line]))
    axes.figure.draw_without_rendering()
    left, right = axes.get_xlim()
    assert [f"{tick:g}" for tick in axes.get_xticks() if left <= tick <= right] == ticks.split()


def test_a_logarithmic_axis_says_that_it_is_one() -> None:
    axes = filled(Panel(title="", x="processes", y="speed-up", series=[LINE], log_y=2))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("processes", "speed-up (log scale)")


@pytest.mark.parametrize("series", [[], [PlotSeries(name="x", x=[1.0], y=[math.nan])]])
def test_what_has_no_number_is_said_to_be_not_measured(series: list[PlotSeries]) -> None:
    axes = filled(Panel(title="GPU", x="s", y="%", series=series))
    assert [text.get_text() for text in axes.texts] == ["not measured"]


def test_series_differ_without_colours_too() -> None:
    many = [PlotSeries(name=str(number), x=[1, 2], y=[1, 2], style="points") for number in range(49)]
    lines = filled(Panel(title="", x="", y="", series=many)).get_lines()
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines[:7]}) == 7
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 49


def test_more_lines_than_a_legend_holds_are_said_to_be_too_many() -> None:
    many = [PlotSeries(name=str(number), x=[1, 2], y=[1, 2]) for number in range(13)]
    axes = filled(Panel(title="", x="", y="", series=many))
    assert (axes.figure.legends, axes.texts[0].get_text()) == ([], "13 lines: too many for a legend")


@pytest.mark.parametrize("names", [2, 12])
def test_a_legend_hides_nothing_and_makes_the_picture_higher(names: int) -> None:
    series = [PlotSeries(name=f"resnet-{number}", x=[0, 1], y=[number, 12]) for number in range(names)]
    axes = filled(Panel(title="Loss", x="epoch", y="", series=series))
    axes.figure.draw_without_rendering()
    (legend,) = axes.figure.legends
    assert legend.get_window_extent().y1 <= axes.get_tightbbox().y0
    assert axes.get_window_extent().height > 0.6 * plots.PANEL_HEIGHT * DPI


def test_of_many_lines_those_with_a_name_stand_in_the_legend_and_the_rest_is_gray() -> None:
    named = [PlotSeries(name=str(number), x=[1, 2], y=[1, 2]) for number in range(12)]
    faint = [PlotSeries(name="", x=[1, 2], y=[1, 2], style="faint")] * 3
    (legend,) = filled(Panel(title="", x="", y="", series=[*named, *faint])).figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [str(number) for number in range(12)]
    assert legend.get_title().get_text() == "3 further runs are gray"


def test_a_spread_is_drawn_around_its_points() -> None:
    spread = PlotSeries(name="x", x=[1, 2], y=[5, 6], low=[4, 7], high=[6, 8], style="points")
    axes = filled(Panel(title="", x="", y="", series=[spread]))
    assert axes.dataLim.ymin == 4
    assert axes.dataLim.ymax == 8


def test_processes_are_counted_in_whole_numbers() -> None:
    axes = filled(Panel(title="", x="", y="", series=[LINE], ticks=[1, 2, 4], log_x=2, from_zero=True))
    axes.figure.draw_without_rendering()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4"]
    assert axes.get_ylim()[0] == 0


def test_text_of_strangers_is_only_text() -> None:
    hostile = "$\\frac{$ <script>\x00\n日本 " + "x" * 500
    axes = Panel(
        title=hostile, x=hostile, y=hostile, series=[PlotSeries(name=hostile, x=[1], y=[1])], marks={1: hostile}
    )
    assert plots.draw_panel(axes, note=hostile).startswith(b"\x89PNG")


def test_every_metric_has_a_picture_that_the_next_report_replaces() -> None:
    names = [f"curves-{plots._slug(f'Val {metric.label}')}.png" for metric in METRICS.values()]
    assert [name for name in names if not page.PICTURE_PATTERN.fullmatch(name)] == []
