"""Sums on the device, and training time."""

from __future__ import annotations

import math

import pytest
import torch

from train.record.tally import Stopwatch, Tally, sums

LOGITS = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])


def tally(*losses: float) -> Tally:
    found = Tally(torch.device("cpu"))
    for loss in losses:
        found.take(sums(torch.tensor(loss), LOGITS, torch.tensor([0, 1, 1])))
    return found


def test_means_are_over_samples() -> None:
    means = tally(1.0, 3.0).read(lambda total: total)
    assert means is not None
    assert (means.loss, means.samples) == (2.0, 6)
    assert means.accuracy == pytest.approx(2 / 3)


def test_ranks_are_summed_before_the_division() -> None:
    means = tally(1.0).read(lambda total: total.mul_(4))
    assert means is not None
    assert (means.loss, means.samples) == (1.0, 12)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_bad_loss_is_still_seen_at_the_next_reading(bad: float) -> None:
    means = tally(1.0, bad, 1.0).read(lambda total: total)
    assert means is not None
    assert not math.isfinite(means.loss)


def test_an_empty_tally_has_no_means() -> None:
    found = tally(1.0)
    found.clear()
    assert found.read(lambda total: total) is None


def test_pauses_and_earlier_starts_are_told_apart() -> None:
    now = [0.0]
    watch = Stopwatch(100.0, clock=lambda: now[0])
    now[0] = 5.0
    with watch.paused():
        now[0] = 50.0
    now[0] = 52.0
    assert watch.seconds == 107.0
