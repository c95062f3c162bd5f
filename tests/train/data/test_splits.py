"""A data set is counted in bytes, and may be mirrored unless it says no."""

from __future__ import annotations

from dataclasses import replace

import torch

from train.data.shape import Shape
from train.data.splits import DataSplits
from train.data.synthetic import SyntheticSource


def sets(frames: int | None = None) -> DataSplits:
    size = (4, 5) if frames is None else (frames, 4, 5)
    sides = [SyntheticSource(0, torch.zeros(count, dtype=torch.int64), 4) for count in (7, 3)]
    shape = Shape(channels=2, size=size)
    return DataSplits(training=sides[0], validation=sides[1], classes=("a", "b"), shape=shape)


def test_both_sides_are_counted_together() -> None:
    assert sets().bytes_ == 10 * 4 * 5 * 2


def test_a_clip_counts_with_all_its_frames() -> None:
    assert sets(frames=6).bytes_ == 6 * sets().bytes_


def test_a_float_counts_for_the_four_bytes_that_it_takes_in_memory() -> None:
    assert replace(sets(), floats=True).bytes_ == 4 * sets().bytes_


def test_a_data_set_may_be_mirrored_unless_it_says_no() -> None:
    assert sets().mirror
    assert sets().notes == ()
