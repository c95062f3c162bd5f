"""What a person reads."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from train.evaluation.scores import Result
from train.record.progress import Progress, duration, many, rows, summary

RESULT = Result(accuracy=0.9512, loss=0.1234, samples=2000)


def shown(*, main: bool = True, terminal: bool = False, at: float = 0.0) -> tuple[Progress, io.StringIO, list[float]]:
    out, now = io.StringIO(), [at]
    return Progress(main=main, terminal=terminal, total=10, step=0, out=out, clock=lambda: now[0]), out, now


def measure(progress: Progress) -> None:
    progress.measured(step=4, epoch=1, epochs=2, loss=0.5, images_per_s=1234.5)


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.2, "4.2 s"), (59.94, "59.9 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")]
)
def test_durations_read_naturally(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_one_is_singular() -> None:
    assert [many(1, "rank"), many(2, "rank"), many(1200, "step")] == ["1 rank", "2 ranks", "1,200 steps"]


def test_facts_are_aligned() -> None:
    assert rows({"a": 1, "long name": 2}) == "a              1\nlong name      2"


def test_the_summary_says_what_came_out_how_fast_and_where() -> None:
    text = summary(result=RESULT, classes=("a", "b"), steps=10, seconds=20.0, images=4000, checkpoint=Path("runs/x"))
    assert "95.12% of 2,000 held-out images, loss 0.1234" in text
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


def test_an_evaluation_is_always_shown() -> None:
    progress, out, _ = shown()
    progress.evaluated(step=5, epoch=1, epochs=2, figures="accuracy 95.12%", loss=None)
    assert out.getvalue() == "epoch 1/2, step 5/10: accuracy 95.12%\n"


def test_other_ranks_show_nothing() -> None:
    progress, out, now = shown(main=False, terminal=True)
    now[0] = 99.0
    measure(progress)
    progress.say("text")
    progress.evaluated(step=5, epoch=1, epochs=2, figures="accuracy 95.12%", loss=0.1)
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
