"""An epoch's own figures, however its ends and the log points lie."""

from __future__ import annotations

import math

import pytest

from train.logging.progress import EpochStats, EpochStatsCounter

BATCH = 10


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
