"""What a person reads."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from entrypoint import pluralize
from train.evaluation.results import EvaluationResult
from train.logging.progress import EpochStats, Progress, format_duration, format_rows, format_summary

RESULT = EvaluationResult.from_json({"accuracy": 0.9512, "loss": 0.1234, "samples": 2000})


FIGURES = EpochStats(seconds=200.0, images_per_s=1234.5, loss=0.34567)
UNKNOWN = EpochStats(seconds=None, images_per_s=None, loss=None)


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
    said = "accuracy 95.12%, loss 0.123, train loss 0.346, 3 min 20 s, 1,234 images/s"
    assert out.getvalue() == f"epoch 1/2: {said}\n"


def test_an_epoch_without_an_evaluation_has_a_line_too() -> None:
    progress, out, _ = shown()
    end_epoch(progress, metrics_text=None)
    assert out.getvalue() == "epoch 1/2: train loss 0.346, 3 min 20 s, 1,234 images/s\n"


@pytest.mark.parametrize(("columns", "told"), [(80, True), (50, False)])
def test_a_narrow_terminal_has_the_speed_beside_its_bar_only(columns: int, told: bool) -> None:
    progress, out, _ = shown(terminal=True, columns=columns)
    end_epoch(progress, metrics_text=None)
    line = next(line for line in out.getvalue().replace("\r", "\n").splitlines() if line.startswith("epoch"))
    assert line.endswith("3 min 20 s, 1,234 images/s" if told else "3 min 20 s")


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
