"""What a person reads: an epoch's own figures, and how long it will still take."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest

from entrypoint import pluralize
from train.evaluation.results import EvaluationResult
from train.logging.progress import (
    EpochStats,
    EpochStatsCounter,
    Progress,
    TimeLeftEstimator,
    format_duration,
    format_rough_duration,
    format_rows,
    format_summary,
)

RESULT = EvaluationResult.from_json({"accuracy": 0.9512, "loss": 0.1234, "samples": 2000})
FIGURES = EpochStats(seconds=200.0, images_per_s=1234.5, loss=0.34567)
UNKNOWN = EpochStats(seconds=None, images_per_s=None, loss=None)
BATCH = 10


def shown(
    *, main: bool = True, terminal: bool = False, total: int = 10, columns: int = 80
) -> tuple[Progress, io.StringIO, list[float]]:
    out, now = io.StringIO(), [0.0]
    progress = Progress(main=main, terminal=terminal, out=out, clock=lambda: now[0], columns=columns)
    progress.start(step=0, total=total)
    return progress, out, now


def measure(progress: Progress, step: int = 4) -> None:
    progress.log_point({"loss": 0.5, "images_per_s": 1234.5}, step=step, epoch=1, epochs=2)


def end_epoch(
    progress: Progress, stats: EpochStats = FIGURES, *, is_complete: bool = True, metrics_text: str | None
) -> None:
    progress.epoch(step=5, epoch=1, epochs=2, is_complete=is_complete, stats=stats, metrics_text=metrics_text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.2, "4.2 s"), (59.94, "59.9 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")]
)
def test_durations_read_naturally(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_one_is_singular() -> None:
    assert [pluralize(1, "rank"), pluralize(2, "rank"), pluralize(1200, "step")] == ["1 rank", "2 ranks", "1,200 steps"]


def test_facts_are_aligned() -> None:
    assert format_rows({"a": 1, "long name": 2}) == "a              1\nlong name      2"


def test_the_summary_says_what_came_out_how_fast_and_where() -> None:
    text = format_summary(
        result=RESULT, classes=("a", "b"), steps=10, seconds=20.0, images=4000, checkpoint=Path("runs/x")
    )
    assert "95.12% of 2,000 validation images, loss 0.1234" in text
    assert "10 steps in 20.0 s, 200 images/s" in text
    assert "runs/x" in text


def test_lines_come_at_most_every_ten_seconds_without_a_terminal() -> None:
    progress, out, now = shown()
    measure(progress)
    assert out.getvalue() == ""
    now[0] = 10.0
    measure(progress)
    measure(progress)
    assert out.getvalue() == "step 4/10, epoch 1/2, loss 0.500, 1,234 images/s\n"


def test_a_line_says_how_long_it_will_take_once_that_is_known() -> None:
    progress, out, now = shown(total=1000)
    for step, seconds in ((10, 20.0), (20, 40.0)):
        now[0] = seconds
        measure(progress, step)
    first, second = out.getvalue().splitlines()
    assert "left" not in first
    assert second == "step 20/1000, epoch 1/2, loss 0.500, 1,234 images/s, 33 min left"


def test_after_going_back_the_time_is_unknown_again() -> None:
    progress, out, now = shown(total=1000)
    for step, seconds in ((10, 20.0), (20, 40.0), (10, 60.0)):
        now[0] = seconds
        if step == 10:
            progress.rewind(0)
        measure(progress, step)
    assert ["left" in line for line in out.getvalue().splitlines()] == [False, True, False]


def test_an_epoch_has_one_line_with_what_was_measured() -> None:
    progress, out, _ = shown()
    end_epoch(progress, metrics_text="accuracy 95.12%, loss 0.123")
    line = "accuracy 95.12%, loss 0.123, train loss 0.346, 3 min 20 s, 1,234 images/s"
    assert out.getvalue() == f"epoch 1/2: {line}\n"


def test_an_epoch_without_an_evaluation_has_a_line_too() -> None:
    progress, out, _ = shown()
    end_epoch(progress, metrics_text=None)
    assert out.getvalue() == "epoch 1/2: train loss 0.346, 3 min 20 s, 1,234 images/s\n"


@pytest.mark.parametrize(("columns", "is_told"), [(80, True), (50, False)])
def test_a_narrow_terminal_has_the_speed_beside_its_bar_only(columns: int, is_told: bool) -> None:
    progress, out, _ = shown(terminal=True, columns=columns)
    end_epoch(progress, metrics_text=None)
    line = next(line for line in out.getvalue().replace("\r", "\n").splitlines() if line.startswith("epoch"))
    assert line.endswith("3 min 20 s, 1,234 images/s" if is_told else "3 min 20 s")


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
def test_an_epoch_has_one_line_on_any_terminal(columns: int) -> None:
    progress, out, _ = shown(terminal=True, columns=columns)
    metrics = "val accuracy 95.12%, val loss 0.123, balanced accuracy 91.00%, macro F1 0.912"
    end_epoch(progress, metrics_text=metrics)
    line = next(line for line in out.getvalue().replace("\r", "\n").splitlines() if line.startswith("epoch"))
    assert len(line) <= columns
    assert line.startswith("epoch 1/2: val accuracy 95.12%")


def test_what_is_not_known_is_not_said() -> None:
    progress, out, _ = shown()
    end_epoch(progress, UNKNOWN, metrics_text="accuracy 95.12%")
    assert out.getvalue() == "epoch 1/2: accuracy 95.12%\n"


def test_a_training_that_ends_inside_an_epoch_does_not_claim_it() -> None:
    progress, out, _ = shown()
    end_epoch(progress, UNKNOWN, is_complete=False, metrics_text="accuracy 95.12%")
    assert out.getvalue() == "step 5/10, in epoch 1/2: accuracy 95.12%\n"


def test_no_line_follows_an_epochs_at_once() -> None:
    progress, out, now = shown()
    now[0] = 99.0
    end_epoch(progress, metrics_text=None)
    measure(progress)
    assert out.getvalue().count("\n") == 1


def test_other_ranks_show_nothing() -> None:
    progress, out, now = shown(main=False, terminal=True)
    now[0] = 99.0
    measure(progress)
    progress.say("text")
    end_epoch(progress, metrics_text="accuracy 95.12%")
    progress.close()
    assert out.getvalue() == ""


def test_a_terminal_gets_a_bar_that_ends_at_the_last_step() -> None:
    progress, out, _ = shown(terminal=True)
    for _ in range(10):
        progress.step()
    measure(progress)
    progress.say("a line")
    progress.close()
    assert "a line\n" in out.getvalue()
    assert "step 10/10" in out.getvalue()
    assert "1,234 images/s" in out.getvalue()


def drawn(columns: int, *, total: int) -> str:
    """The bar with all that it can show."""
    progress, out, now = shown(terminal=True, total=total, columns=columns)
    for number in (1, 2):
        now[0] = 3000.0 * number
        progress.log_point({"loss": 0.5, "images_per_s": 123456.0}, step=number, epoch=12, epochs=200)
    progress.say("a line above it")
    bar = out.getvalue().rpartition("\r")[2]
    progress.close()
    return bar


def test_a_bar_that_stands_still_promises_nothing() -> None:
    progress, out, now = shown(terminal=True, total=100)
    for number in (1, 2):
        now[0] = 3000.0 * number
        measure(progress, number)
    progress.close()
    last = out.getvalue().rpartition("\r")[2]
    assert ("1,234 images/s" in last, "left" in last) == (True, False)


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("total", [10, 31_400, 1_000_000])
def test_the_bar_fits_its_terminal(columns: int, total: int) -> None:
    assert len(drawn(columns, total=total)) == columns - 1
    assert "|" in drawn(columns, total=total)


@pytest.mark.parametrize(
    ("columns", "figures"),
    [
        (120, ["loss 0.500", "123,456 images/s", "25 h 00 min left"]),
        (60, ["123,456 images/s", "25 h 00 min left"]),
    ],
)
def test_a_narrow_terminal_shows_what_is_missed_most(columns: int, figures: list[str]) -> None:
    bar = drawn(columns, total=32)
    assert bar.partition("step 0/32, ")[2].split(", ") == figures


def test_nothing_coloured_is_drawn() -> None:
    assert "\x1b" not in drawn(80, total=10)


def read(lap: EpochStatsCounter, losses: dict[int, float], *, to: int, since: int = 0) -> None:
    """A reading at step `to` of all steps after `since`, of which each had its own loss."""
    steps = range(since + 1, to + 1)
    lap.read(to, sum(losses[step] for step in steps) / len(steps), len(steps) * BATCH)


LOSSES = {step: float(step) for step in range(1, 21)}


def test_a_whole_epoch_has_its_time_its_speed_and_its_mean_loss() -> None:
    lap = EpochStatsCounter(0, 100.0, batch=BATCH)
    read(lap, LOSSES, to=4)
    assert lap.close(4, 102.0, epoch=4) == EpochStats(seconds=2.0, images_per_s=20.0, loss=2.5)


def test_each_epoch_has_its_own_loss_where_a_log_point_lies_in_the_next() -> None:
    lap = EpochStatsCounter(0, 0.0, batch=BATCH)
    read(lap, LOSSES, to=3)  # a log point
    read(lap, LOSSES, to=4, since=3)  # the end of an epoch
    first = lap.close(4, 1.0, epoch=4)
    read(lap, LOSSES, to=6, since=3)  # a log point
    read(lap, LOSSES, to=8, since=6)
    assert (first.loss, lap.close(8, 2.0, epoch=4).loss) == (pytest.approx(2.5), pytest.approx(6.5))


def test_a_reading_for_a_save_counts_nothing_twice() -> None:
    lap = EpochStatsCounter(0, 0.0, batch=BATCH)
    for to in (1, 2, 3, 4):
        read(lap, LOSSES, to=to)
    assert lap.close(4, 1.0, epoch=4).loss == pytest.approx(2.5)


def test_a_part_of_an_epoch_has_no_time_of_an_epoch() -> None:
    lap = EpochStatsCounter(2, 0.0, batch=BATCH)
    read(lap, LOSSES, to=4, since=2)
    assert lap.close(4, 1.0, epoch=4) == EpochStats(seconds=None, images_per_s=20.0, loss=3.5)


def test_what_an_earlier_start_has_added_up_belongs_to_its_own_epoch() -> None:
    lap = EpochStatsCounter(4, 0.0, batch=BATCH, loss=(3.0 + 4.0) * BATCH, samples=2 * BATCH)
    read(lap, LOSSES, to=6, since=2)
    read(lap, LOSSES, to=8, since=6)
    assert lap.close(8, 1.0, epoch=4).loss == pytest.approx(6.5)


def test_an_infinite_loss_is_no_figure_and_does_not_spoil_the_next_epoch() -> None:
    lap = EpochStatsCounter(0, 0.0, batch=BATCH)
    read(lap, LOSSES | {2: math.inf}, to=4)
    spoiled = lap.close(4, 1.0, epoch=4)
    read(lap, LOSSES, to=8, since=4)
    assert (spoiled.loss, lap.close(8, 2.0, epoch=4).loss) == (None, pytest.approx(6.5))


def test_no_step_has_no_figures() -> None:
    assert EpochStatsCounter(4, 0.0, batch=BATCH).close(4, 1.0, epoch=4) == EpochStats(
        seconds=None, images_per_s=None, loss=None
    )


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
