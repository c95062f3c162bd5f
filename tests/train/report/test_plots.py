"""Series become panels and pictures of one look: curves, confusion matrices, and the use of GPUs."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from made_up_runs import CLASSES, found_finished, history, make_run, of_gpus
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from train.metrics import METRICS
from train.report import page, plots, read
from train.report.curves import GpuUse
from train.report.document import DPI, Paragraph, Picture, Section, Table
from train.report.plots import Panel, PlotSeries
from train.report.read import ConfusionMatrix, RecordedRun

LINE = PlotSeries(name="a run", x=[1, 2, 4], y=[3.0, math.nan, 1.0])
LINES = history(1000)
MATRIX = ConfusionMatrix(step=20, classes=CLASSES, matrix=((8, 2, 0), (1, 9, 0), (5, 0, 5)))


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


@plots.plot
def drawn(figure: Figure) -> None:
    """A small picture with letters and a line."""
    axes = plots.make_axes(figure, width=2, height=1.5)
    axes.plot([1, 2], [1, 2])
    axes.set_title("100 $_x for 5 $")


def test_a_picture_is_a_png_of_its_inches() -> None:
    with Image.open(io.BytesIO(drawn())) as image:
        assert (image.format, image.size) == ("PNG", (2 * DPI, DPI * 3 // 2))


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert drawn() == drawn()


def test_settings_of_the_machine_change_nothing() -> None:
    before = drawn()
    with matplotlib.rc_context({"lines.linewidth": 9.0, "text.parse_math": True, "axes.facecolor": "black"}):
        assert drawn() == before
        assert matplotlib.rcParams["lines.linewidth"] == 9.0  # and what others set is left alone


def test_neither_a_window_nor_torch_is_looked_for() -> None:
    script = "import sys; from train.report import plots; print({'matplotlib.pyplot', 'torch'} & {*sys.modules})"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert shown.stdout == "set()\n"


def test_a_home_that_cannot_be_written_is_not_worth_a_word(tmp_path: Path) -> None:
    script = "from train.report import plots; p = plots.Panel(title='日本', x='', y='', series=[]); plots.draw_panel(p)"
    nowhere = {"HOME": "/proc/none", "TMPDIR": str(tmp_path)}
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=nowhere)
    assert (shown.returncode, shown.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("short", "short"),
        ("a-very-long-name-of-a-run-lr-0.01", "a-very-lo…un-lr-0.01"),
        ("two\nlines\x1b[1m", "two\\nlines\\x1b[1m"),
    ],
)
def test_a_name_is_cut_in_its_middle_and_stays_on_one_line(name: str, shown: str) -> None:
    assert plots.shorten_middle(name, 20) == shown


def run(folder: Path) -> RecordedRun:
    """One that was read back."""
    return read.load_run(make_run(folder))


def test_one_run_shows_training_beside_validation_by_epoch(tmp_path: Path) -> None:
    loss, scores, _, speed = plots.single_run_panels(run(tmp_path / "run"))
    assert (loss.x, [series.name for series in loss.series]) == ("epoch", ["train loss", "val loss"])
    assert list(loss.series[1].x) == [1.0, 2.0]
    assert list(scores.series[1].y) == [50.0, 75.0]
    assert list(speed.series[0].y)[-1] == 2000


def test_several_runs_share_their_panels(tmp_path: Path) -> None:
    panels = plots.comparison_panels([run(tmp_path / name) for name in ("a", "b")])
    assert [[series.name for series in panel.series] for panel in panels] == [["a", "b"]] * 4


def test_runs_without_a_known_epoch_are_drawn_by_step(tmp_path: Path) -> None:
    old = make_run(tmp_path / "old")
    (old / "run.json").write_text(json.dumps({"starts": []}))
    panels = plots.comparison_panels([read.load_run(old), run(tmp_path / "new")])
    assert {panel.x for panel in panels} == {"step"}
    assert list(panels[1].series[1].x) == [10.0, 20.0]


def test_a_start_that_went_on_is_marked(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    record = json.loads((folder / "run.json").read_text())
    record["starts"].append({"step": 15, "world_size": 4})
    (folder / "run.json").write_text(json.dumps(record))
    assert plots.restart_marks(read.load_run(folder)) == {1.5: "goes on, 4 ranks"}


def test_a_start_that_trained_nothing_is_not_marked(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    found_finished(folder, step=20)
    assert plots.restart_marks(read.load_run(folder)) == {}


def test_a_run_without_a_line_has_words_instead_of_a_picture(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", events=[])
    (block,) = plots.curves_section([read.load_run(folder)]).blocks
    assert isinstance(block, Paragraph)


def test_the_picture_says_what_it_shows(tmp_path: Path) -> None:
    first, *others = plots.curves_section([run(tmp_path / "run")]).blocks
    assert isinstance(first, Picture)
    assert (first.name, first.alt, len(others)) == ("curves-loss", "Loss by epoch, run", 3)


@pytest.mark.parametrize(("classes", "is_told"), [(5, False), (6, True)])
def test_the_best_five_are_drawn_where_there_are_more(tmp_path: Path, classes: int, is_told: bool) -> None:
    scores = plots.single_run_panels(read.load_run(make_run(tmp_path / "run", training={"classes": classes})))[1]
    assert ("val top-5" in [series.name for series in scores.series]) == is_told


def run_of(folder: Path, events: Sequence[dict[str, Any]]) -> RecordedRun:
    """One with these lines."""
    return read.load_run(make_run(folder / "run", events=events))


def gpus_of(recorded: RecordedRun) -> dict[str, list[GpuUse]]:
    return {name: [gpu] for name, gpu in plots.gpus_by_name(recorded).items()}


def test_each_gpu_has_its_means_and_peaks(tmp_path: Path) -> None:
    table = plots.gpu_table(gpus_of(run_of(tmp_path, of_gpus(2))))
    assert [row[:5] for row in table.rows] == [
        ["node01/0", "90", "90", "11", "12"],
        ["node01/1", "91", "91", "11", "12"],
    ]
    assert table.head[1:3] == ["GPU use, %: mean", "GPU use, %: highest"]


def test_what_was_recorded_is_drawn(tmp_path: Path) -> None:
    *pictures, table = plots.gpu_section(run_of(tmp_path, of_gpus(20))).blocks
    assert isinstance(table, Table)
    names = [picture.name for picture in pictures if isinstance(picture, Picture)]
    assert names == ["gpus-gpu-use", "gpus-memory", "gpus-power"]  # temperature was not recorded


def test_gpus_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    assert list(plots.gpus_by_name(run_of(tmp_path, of_gpus(11))))[-2:] == ["node01/9", "node01/10"]


def test_a_run_without_gpus_says_not_measured(tmp_path: Path) -> None:
    (block,) = plots.gpu_section(run_of(tmp_path, [])).blocks
    assert isinstance(block, Paragraph)
    assert block.text.startswith("Not measured")


def test_lines_without_a_time_or_a_number_are_left_out(tmp_path: Path) -> None:
    lines = [{"event": "gpu", "gpu": "a", "utilisation_percent": 3}, {"event": "gpu", "gpu": "b", "time": 1}]
    assert plots.gpu_table(gpus_of(run_of(tmp_path, lines))).rows == [["b"]]


def test_the_mean_is_over_the_time_and_a_wait_between_two_starts_is_none(tmp_path: Path) -> None:
    """Lines get rarer in a long run: 10 of a second each, 2 of 100 s each, and 2 after a day in the queue."""
    times = [*range(10), 109, 209, 86_400, 86_500]
    lines = [
        {"event": "gpu", "gpu": "a", "time": 1.0 + at, "utilisation_percent": 100 if at < 100 else 50} for at in times
    ]
    ((_, mean, highest),) = plots.gpu_table(gpus_of(run_of(tmp_path, lines))).rows
    assert (mean, highest) == ("51.2", "100")


def test_lines_of_ranks_are_not_kept_in_memory(tmp_path: Path) -> None:
    made = run_of(tmp_path, [{"event": "rank", "time": 7.0}, {"event": "train", "step": 1, "time": 9.0}])
    assert (list(made.metrics.events), made.metrics.recorded) == ([], (7.0, 9.0))


@pytest.mark.parametrize("size", [1, 2, 10, 60])
def test_a_matrix_of_any_size_fits_a_page(size: int) -> None:
    matrix = [[row * column for column in range(size)] for row in range(size)]  # the first row has no image
    with Image.open(
        io.BytesIO(plots.draw_confusion_matrix(matrix, [f"class $ {name}" for name in range(size)]))
    ) as image:
        assert max(image.size) <= 11 * 150


@pytest.mark.parametrize(("names", "rotation"), [(["cat", "dog"], 0), (["a long name"] * 5, 90)])
def test_names_that_would_overlap_stand_upright(names: list[str], rotation: float) -> None:
    figure = Figure()
    plots.draw_confusion_matrix.__wrapped__(figure, [[1] * len(names)] * len(names), names)  # type: ignore[attr-defined]
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {rotation}


def test_counts_recall_precision_and_f1_stand_by_class() -> None:
    rows = plots.class_table(MATRIX).rows
    assert rows[0] == ["cat", "10", "14", "8", "80.0%", "57.1%", "66.7%"]
    assert rows[2] == ["<b>owl</b>", "10", "5", "5", "50.0%", "100.0%", "66.7%"]


def test_the_most_frequent_mistake_comes_first() -> None:
    assert plots.mistake_rows(MATRIX)[0] == ["<b>owl</b>", "cat", "5", "50.0%"]


def test_of_many_classes_the_weakest_are_listed() -> None:
    size = 300
    rows = tuple(
        tuple(3 if row == column != 7 else int(row != column) for column in range(size)) for row in range(size)
    )
    names = tuple(f"class {at}" for at in range(size))
    table = plots.class_table(ConfusionMatrix(step=None, classes=names, matrix=rows))
    assert len(table.rows) == plots.MAX_LISTED_CLASSES
    assert table.rows[0][0] == "class 7"


def test_a_class_without_images_has_no_recall() -> None:
    empty = ConfusionMatrix(step=None, classes=("a", "b"), matrix=((0, 0), (0, 2)))
    assert plots.class_table(empty).rows[0] == ["a", "0", "0", "0", "-", "-", "-"]


def test_a_run_shows_its_matrix_as_a_picture(tmp_path: Path) -> None:
    section = plots.confusion_section(read.load_run(make_run(tmp_path / "run")))
    assert section is not None
    assert [block.name for block in section.blocks if isinstance(block, Picture)] == ["confusion"]


def test_a_picture_that_is_not_there_is_not_explained(tmp_path: Path) -> None:
    many = tuple(tuple(int(row == column) for column in range(201)) for row in range(201))
    confusion = ConfusionMatrix(step=1, classes=tuple(map(str, range(201))), matrix=many)
    section = plots.confusion_section(replace(read.load_run(make_run(tmp_path / "run")), confusion=confusion))
    assert section is not None
    assert section.blocks[0] == Paragraph(text="The validation images after step 1.")


def first_was_best(folder: Path, *, kept: bool) -> RecordedRun:
    """A run whose first evaluation, of step 10, was the best of two."""
    worse = [line | {"accuracy": 0.25} if line["event"] == "eval" and line["step"] == 20 else line for line in LINES]
    make_run(folder, events=worse)
    if kept:
        matrix = {"step": 10, "classes": CLASSES, "matrix": [[4, 0, 0], [0, 4, 0], [0, 0, 4]]}
        (folder / "confusion-best.json").write_text(json.dumps(matrix))
    return read.load_run(folder)


def text_of(section: Section | None) -> str:
    assert section is not None
    assert isinstance(section.blocks[0], Paragraph)
    return section.blocks[0].text


def test_the_matrix_is_that_of_the_best_evaluation(tmp_path: Path) -> None:
    section = plots.confusion_section(first_was_best(tmp_path / "run", kept=True))
    assert text_of(section).startswith(
        "The validation images after step 10, the best evaluation (val accuracy 50.00%)."
    )
    assert "'100.0%'" in str(section)
    assert "run after step 10" in str(section)


def test_a_matrix_of_the_last_evaluation_only_does_not_pass_for_the_best(tmp_path: Path) -> None:
    text = text_of(plots.confusion_section(first_was_best(tmp_path / "run", kept=False)))
    assert "after step 20, the last evaluation (val accuracy 25.00%), not the best (50.00%, after step 10)." in text


def test_matrices_side_by_side_are_all_of_the_best_or_all_of_the_last_evaluation(tmp_path: Path) -> None:
    first, two = (first_was_best(tmp_path / name, kept=True) for name in ("one", "two"))
    assert "each run's best evaluation." in text_of(plots.confusion_comparison_section([first, two]))
    old = first_was_best(tmp_path / "old", kept=False)
    assert "each run's last evaluation, which need not be its best." in text_of(
        plots.confusion_comparison_section([first, old])
    )


def test_more_runs_than_fit_on_paper_stand_in_several_tables_of_the_same_classes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    runs = [replace(read.load_run(folder), name=f"run-{number}") for number in range(9)]
    section = plots.confusion_comparison_section(runs)
    assert section is not None
    tables = [block for block in section.blocks if isinstance(block, Table)]
    assert [table.head for table in tables] == [["class", *(f"run-{n}" for n in range(8))], ["class", "run-8"]]
    assert tables[1].rows[0] == ["cat", "80.0%"]


def test_a_run_without_one_has_no_section(tmp_path: Path) -> None:
    (make_run(tmp_path / "run") / "confusion.json").unlink()
    assert plots.confusion_section(read.load_run(tmp_path / "run")) is None
