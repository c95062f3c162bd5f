"""Which samples are for validation."""

from __future__ import annotations

import numpy as np
import pytest

from train.data import image_folder

LABELS = np.array([0] * 20 + [1] * 7 + [2] * 3)


@pytest.mark.parametrize("count", [0, 1, 7, 30])
def test_exactly_as_many_are_set_aside_as_asked(count: int) -> None:
    assert image_folder.validation_mask(LABELS, count).sum() == count


def test_every_class_gives_its_share() -> None:
    chosen = image_folder.validation_mask(np.repeat(np.arange(3), (100, 50, 10)), 16)
    assert np.bincount(np.repeat(np.arange(3), (100, 50, 10))[chosen]).tolist() == [10, 5, 1]


def test_the_split_is_the_same_every_time() -> None:
    first, second = (image_folder.validation_mask(LABELS, 9) for _ in range(2))
    assert first.tolist() == second.tolist()


def test_no_labels_are_no_samples() -> None:
    assert image_folder.validation_mask(np.empty(0, np.int64), 0).tolist() == []
